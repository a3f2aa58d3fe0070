"""What a client sees while the model is busy with others: its place, its headers, its limits."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from pocketserver.engines.sim.engine import SimEngine, SimOptions
from tests.serving import Running, running
from tests.waiting import until

SLOW = SimOptions(tokens_per_second=2.0)
BODY = {"model": "sim-1b", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 40}


@asynccontextmanager
async def busy(home: Path, **settings: object) -> AsyncIterator[tuple[Running, aiohttp.ClientSession]]:
    """A server whose model is taken by an answer that takes 20 seconds."""
    async with running(home, SimEngine(SLOW), profile="hub", mdns=False, **settings) as server:
        async with server.session() as session, session.post("/v1/chat/completions", json={**BODY, "stream": True}):
            await until(lambda: server.server.door.busy)
            yield server, session


async def test_a_waiting_stream_gets_its_headers_early_and_is_told_its_place(tmp_path: Path) -> None:
    async with (
        busy(tmp_path, early_headers_after_seconds=0.05, keep_alive_seconds=0.05) as (server, session),
        session.post("/v1/chat/completions", json={**BODY, "stream": True}) as waiting,
    ):
        assert waiting.status == 200
        assert waiting.headers["x-pocketserver-queue"] == "position=2 ahead=1"
        said = [await waiting.content.readline() for _ in range(3)]
        assert said == [b": queued position=2 ahead=1\n", b"\n", b": queued position=2 ahead=1\n"]
        assert server.server.door.waiting == 1


async def test_what_fails_after_early_headers_is_an_error_in_the_stream(tmp_path: Path) -> None:
    async with (
        busy(tmp_path, early_headers_after_seconds=0.05, queue_seconds=0.3) as (_server, session),
        session.post("/v1/chat/completions", json={**BODY, "stream": True}) as waiting,
    ):
        assert waiting.status == 200
        text = await waiting.text()
    [error] = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    assert error["error"]["code"] == "generation_stalled"
    assert "[DONE]" not in text


async def test_who_does_not_stream_gets_no_byte_before_the_answer_and_a_status_of_its_own(tmp_path: Path) -> None:
    async with (
        busy(tmp_path, early_headers_after_seconds=0.05, queue_seconds=0.3) as (_server, session),
        session.post("/v1/chat/completions", json=BODY) as waiting,
    ):
        assert waiting.status == 504
        assert (await waiting.json())["error"]["code"] == "generation_stalled"


async def test_a_full_queue_says_when_to_come_back(tmp_path: Path) -> None:
    async with (
        busy(tmp_path, max_queue=1) as (_server, session),
        session.post("/v1/chat/completions", json=BODY) as refused,
    ):
        assert refused.status == 429
        assert (await refused.json())["error"]["code"] == "queue_full"
        assert 1 <= int(refused.headers["Retry-After"]) <= 120


async def test_a_waiting_client_that_leaves_gives_its_place_up(tmp_path: Path) -> None:
    async with busy(tmp_path, max_queue=2) as (server, session):
        waiting = asyncio.create_task(session.post("/v1/chat/completions", json=BODY))
        await until(lambda: server.server.door.waiting == 1)
        waiting.cancel()
        await until(lambda: server.server.door.waiting == 0)


async def test_six_requests_at_once_meet_a_bound_of_four(tmp_path: Path) -> None:
    async with (
        running(
            tmp_path, SimEngine(SimOptions(tokens_per_second=400.0)), profile="hub", mdns=False, max_queue=4
        ) as server,
        server.session() as session,
    ):
        answers = await asyncio.gather(*(session.post("/v1/chat/completions", json=BODY) for _ in range(6)))
        assert sorted(answer.status for answer in answers) == [200, 200, 200, 200, 429, 429]


async def test_revoking_a_key_ends_its_waiting_requests(tmp_path: Path) -> None:
    async with busy(tmp_path) as (server, _session):
        assert server.server.keys is not None
        key = server.server.keys.new("phone")
        headers = {"Authorization": f"Bearer {key}"}
        async with aiohttp.ClientSession(server.origin, headers=headers) as phone:
            waiting = asyncio.create_task(phone.post("/v1/chat/completions", json=BODY))
            await until(lambda: server.server.door.waiting == 1)
            server.server.keys.revoke("phone")
            refused = await asyncio.wait_for(waiting, 30)
            assert refused.status == 401
            assert (await refused.json())["error"]["code"] == "invalid_api_key"


async def test_a_silent_stream_is_kept_alive_by_comments(tmp_path: Path) -> None:
    engine = SimEngine(SimOptions(tokens_per_second=2.0))
    async with (
        running(tmp_path, engine, profile="hub", mdns=False, keep_alive_seconds=0.1) as server,
        server.session() as session,
        session.post("/v1/chat/completions", json={**BODY, "max_tokens": 2, "stream": True}) as answer,
    ):
        lines = (await answer.text()).splitlines()
    assert ": keep-alive" in lines
    assert lines[-2] == "data: [DONE]"
