"""Two upstreams as processes, one killed: whoever had no token yet is answered by the other one, the rest are told."""

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest

from tests.engines.upstream.gateway import HI, in_front_of
from tests.engines.upstream.processes import simulator
from tests.waiting import until

CALLERS = 12


async def ask(session: aiohttp.ClientSession, number: int, started: set[int], stream: bool) -> tuple[int, str, bool]:
    """Status, text and whether the answer is whole."""
    body = {"model": "sim-1b", "messages": [{"role": "user", "content": f"{HI[0]['content']} {number}"}]}
    async with session.post("/v1/chat/completions", json={**body, "stream": stream}) as answer:
        if not stream or answer.status != 200:
            document = await answer.json()
            whole = answer.status == 200
            return answer.status, document["choices"][0]["message"]["content"] if whole else "", whole
        text = ""
        whole = False
        async for line in answer.content:
            if line.startswith(b"data: [DONE]"):
                whole = True
            elif line.startswith(b"data: ") and b'"error"' not in line:
                text += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
                if text:
                    started.add(number)
        return answer.status, text, whole


@pytest.mark.parametrize("stream", [True, False])
async def test_no_request_without_a_token_is_lost_when_an_upstream_is_killed(tmp_path: Path, stream: bool) -> None:
    slow, fast = ("--speed", "0.5", "--seed", "1"), ("--speed", "max", "--seed", "1")
    queue = ("--admission", "queue", "--max-queue", "64")
    with simulator(tmp_path / "1", *slow, *queue) as first, simulator(tmp_path / "2", *fast, *queue) as second:
        async with in_front_of(
            tmp_path / "door", first.base_url, second.base_url, concurrency=CALLERS, max_queue=64
        ) as server:
            started: set[int] = set()
            async with server.session() as session:
                asking = [asyncio.create_task(ask(session, number, started, stream)) for number in range(CALLERS)]
                engine = server.server.engine
                await until(lambda: server.server.door.taken == CALLERS)
                if stream:
                    await until(lambda: len(started) == 1)
                first.kill()
                answers = await asyncio.wait_for(asyncio.gather(*asking), 60)
                for number, (status, text, whole) in enumerate(answers):
                    if number in started:
                        assert not whole or status == 200
                    else:
                        assert (status, whole) == (200, True), number
                        assert text
                if stream:
                    assert sum(not whole for _status, _text, whole in answers) == 1, "the one that had begun"
                await until(lambda: [one.healthy for one in engine.figures()] == [False, True])  # type: ignore[attr-defined]
                assert (await ask(session, 99, started, stream))[2]


async def test_the_last_upstream_dies_and_comes_back(tmp_path: Path) -> None:
    with simulator(tmp_path / "1", "--speed", "max") as first:
        async with in_front_of(tmp_path / "door", first.base_url) as server, server.session() as session:
            started: set[int] = set()
            assert (await ask(session, 1, started, stream=False))[0] == 200
            first.kill()
            status, _, _ = await ask(session, 2, started, stream=False)
            assert status == 503
            await until(lambda: server.server.engine.status.model is None)
            port = str(first.ready["port"])
            with simulator(tmp_path / "1", "--speed", "max", "--port", port):
                await until(lambda: server.server.engine.status.model == "sim-1b")
                assert (await ask(session, 3, started, stream=False))[0] == 200
