"""Every state of Pooled's `/health` and every row of its table of statuses that a room can bring about, over sockets."""

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from pocketserver.chat import EngineState
from pocketserver.engines.room import RoomLimits
from pocketserver.engines.sim.engine import SimEngine, SimOptions
from pocketserver.room.finding import at
from tests.room.rooming import CODE, LIMITS, Guest, Host, hosting, joining, linked
from tests.waiting import until

ENDLESS = SimOptions(tokens_per_second=20.0, reply_tokens=100_000, context_size=200_000)
READY = {"connected": True, "ready": True, "model": "pooled/sim-1b", "ctx": 200_000}
NOT_READY = {"connected": True, "ready": False, "model": None, "ctx": None}
NOT_CONNECTED = {"connected": False, "ready": False, "model": None, "ctx": None}


@dataclass
class Scene:
    host: Host
    guest: Guest
    stack: AsyncExitStack


async def _hurt(host: Host) -> None:
    """No model, and a reason."""
    host.sim.state = EngineState.NO_MODEL
    host.sim.problem_code = "insufficient_memory"


async def nothing(scene: Scene) -> None:
    """The room as it should be."""


async def loading(scene: Scene) -> None:
    scene.host.sim.state = EngineState.LOADING


async def no_model(scene: Scene) -> None:
    await _hurt(scene.host)


async def clients_off(scene: Scene) -> None:
    scene.host.room.allow_clients(allowed=False, reason="Only people now.")


async def clients_off_and_on(scene: Scene) -> None:
    await clients_off(scene)
    await until(lambda: scene.guest.status.closed is not None)
    scene.host.room.allow_clients(allowed=True)


async def kicked(scene: Scene) -> None:
    assert scene.host.room.kick("laptop", "Too loud.")


async def closed(scene: Scene) -> None:
    scene.host.room.close()


async def host_gone(scene: Scene) -> None:
    scene.host.room.open = False  # it is found, and lets nobody in
    for seat in scene.host.room._seats.values():
        seat.end(None)


async def room_queue_full(scene: Scene) -> None:
    """A client of the host's own has the only place."""
    await _held(scene, scene.host.running.session(), "sim-1b")
    await until(lambda: scene.host.running.server.door.busy)


async def own_queue_full(scene: Scene) -> None:
    """Two of this guest's clients have both its places."""
    door = scene.guest.running.server.door
    await _held(scene, scene.guest.running.session(), "pooled/sim-1b")
    await until(lambda: door.busy)
    await _held(scene, scene.guest.running.session(), "pooled/sim-1b")
    await until(lambda: door.waiting == 1)


async def _held(scene: Scene, session: aiohttp.ClientSession, model: str) -> None:
    client = await scene.stack.enter_async_context(session)
    body = {"model": model, "max_tokens": 90_000, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    task = asyncio.create_task(client.post("/v1/chat/completions", json=body))

    async def end() -> None:
        task.cancel()
        for result in await asyncio.gather(task, return_exceptions=True):
            if isinstance(result, aiohttp.ClientResponse):
                result.close()

    scene.stack.push_async_callback(end)


@asynccontextmanager
async def scene_of(folder: Path, limits: RoomLimits = LIMITS, max_queue: int = 1) -> AsyncIterator[Scene]:
    async with AsyncExitStack() as stack:
        host = await stack.enter_async_context(
            hosting(folder / "host", SimEngine(ENDLESS), admission="queue", max_queue=max_queue)
        )
        guest = await stack.enter_async_context(
            joining(folder / "guest", at(host.url), host.key, limits=limits, max_queue=2)
        )
        await linked(guest)
        yield Scene(host, guest, stack)


async def asked(guest: Guest, path: str, **body: Any) -> tuple[int, str | None, dict[str, Any]]:
    """Status, Retry-After and error object."""
    asks = {"model": "pooled/sim-1b", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}], **body}
    async with (
        guest.running.session() as client,
        client.post(path, data=io.BytesIO(msgspec.json.encode(asks))) as response,
    ):
        answer = await response.json()
        return response.status, response.headers.get("Retry-After"), answer.get("error") or {}


ROWS: list[tuple[Callable[[Scene], Awaitable[None]], dict[str, Any], str | None, int, int, str | None, str | None]] = [
    # what happens, then: health, `closed`, OpenAI's status, Anthropic's, Retry-After, OpenAI's code
    (nothing, READY, None, 200, 200, None, None),
    (loading, NOT_READY, None, 503, 529, "5", "model_not_loaded"),
    (no_model, NOT_READY, None, 503, 529, "5", "model_not_loaded"),
    (clients_off, NOT_READY, "Only people now.", 503, 529, "5", "disconnected_by_host"),
    (clients_off_and_on, READY, None, 200, 200, None, None),
    (kicked, NOT_CONNECTED, "Too loud.", 503, 529, "5", "disconnected_by_host"),
    (closed, NOT_CONNECTED, "The host closed the room.", 503, 529, "5", "disconnected_by_host"),
    (host_gone, NOT_CONNECTED, None, 503, 529, "5", "host_gone"),
    (room_queue_full, READY, None, 429, 529, "5", "queue_full"),
    (own_queue_full, READY, None, 429, 529, "5", "queue_full"),
]


@pytest.mark.parametrize("row", ROWS, ids=[row[0].__name__ for row in ROWS])
async def test_a_state_of_the_room_is_told_in_health_and_by_status(tmp_path: Path, row: Any) -> None:
    happens, health, reason, openai, anthropic, retry_after, code = row
    async with scene_of(tmp_path) as scene:
        await happens(scene)
        expected = {"ok": True, "room": CODE, **health} | ({} if reason is None else {"closed": reason})
        seen: dict[str, Any] = {}
        async with asyncio.timeout(30):
            while seen != expected:
                seen = await scene.guest.health()
                assert {seen.pop("queue"), seen.pop("served")} <= {0, 1, 2}
                await asyncio.sleep(0.01)

        status, seconds, error = await asked(scene.guest, "/v1/chat/completions")
        assert (status, seconds, error.get("code")) == (openai, retry_after, code)
        status, seconds, error = await asked(scene.guest, "/v1/messages")
        assert (status, seconds) == (anthropic, retry_after)
        async with scene.guest.running.session() as client, client.get("/v1/models") as response:
            listed = [(model["id"], model["max_model_len"]) for model in (await response.json())["data"]]
        assert listed == ([("pooled/sim-1b", 200_000)] if health["ready"] else [])


MID_STREAM: list[tuple[Callable[[Scene], Awaitable[None]], str]] = [
    (kicked, "disconnected_by_host"),
    (closed, "disconnected_by_host"),
    (clients_off, "disconnected_by_host"),
    (host_gone, "host_gone"),
]


@pytest.mark.parametrize(("happens", "code"), MID_STREAM, ids=[row[0].__name__ for row in MID_STREAM])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_in_mid_stream_it_is_an_error_in_the_stream(
    tmp_path: Path, happens: Callable[[Scene], Awaitable[None]], code: str, path: str
) -> None:
    async with scene_of(tmp_path) as scene, scene.guest.running.session() as client:
        body = {
            "model": "pooled/sim-1b",
            "stream": True,
            "max_tokens": 90_000,
            "messages": [{"role": "user", "content": "hi"}],
        }
        text = b""
        async with client.post(path, json=body) as response:
            assert response.status == 200
            async for piece in response.content.iter_any():
                if not text:
                    await happens(scene)
                text += piece
        assert b"[DONE]" not in text
        assert b"message_stop" not in text
        if path == "/v1/messages":
            assert b"event: error" in text
            assert b"overloaded_error" in text
        else:
            assert f'"code":"{code}"'.encode() in text
        await until(lambda: not scene.host.running.server.door.busy)


async def test_served_and_queue_are_counted_here(tmp_path: Path) -> None:
    async with scene_of(tmp_path) as scene:
        await asked(scene.guest, "/v1/chat/completions")
        assert (await scene.guest.health())["served"] == 1
        await asked(scene.guest, "/v1/chat/completions", model="pooled/unknown")
        health = await scene.guest.health()
        assert (health["served"], health["queue"]) == (1, 0)
        await own_queue_full(scene)
        assert (await scene.guest.health())["queue"] == 2


async def test_a_request_that_is_too_large_for_a_room_is_refused_here(tmp_path: Path) -> None:
    async with scene_of(tmp_path) as scene:
        status, _, error = await asked(
            scene.guest, "/v1/chat/completions", messages=[{"role": "user", "content": "x" * 3_600_000}]
        )
        assert (status, error["code"]) == (413, "request_too_large")
        assert scene.guest.status.connected


async def test_a_request_of_nearly_the_largest_size_reaches_the_host(tmp_path: Path) -> None:
    async with scene_of(tmp_path) as scene:
        status, _, error = await asked(
            scene.guest, "/v1/chat/completions", messages=[{"role": "user", "content": "x " * 1_740_000}]
        )
        assert (status, error["code"]) == (400, "context_length_exceeded")
        assert scene.guest.status.connected


async def test_with_a_token_set_others_see_only_that_it_lives(tmp_path: Path) -> None:
    async with hosting(tmp_path / "host") as host:
        async with joining(tmp_path / "guest", at(host.url), host.key, auth="on") as guest:
            assert await guest.health() == {"ok": True}
            async with guest.running.session() as client, client.get("/health") as response:
                assert (await response.json())["connected"] is True
