"""Ten thousand random and mutated frames at a living host and a living guest: both go on, and so does everybody else."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import msgspec
from aiohttp import web

from pocketserver.chat import Finished, FinishReason, TextDelta, Usage
from pocketserver.engines.room import RoomLimits
from pocketserver.room import protocol
from pocketserver.room.finding import at
from pocketserver.room.protocol import (
    Accepted,
    Announcement,
    ApiClients,
    Ask,
    Cancel,
    Count,
    Counted,
    Events,
    Goodbye,
    Heartbeat,
    Hello,
    Proof,
    Queued,
    Refused,
    Welcome,
    Working,
    encode,
)
from tests.room.rooming import CODE, Stranger, hosting, joining, linked
from tests.room.scripted_host import KEY, READY, welcome
from tests.room.test_room import ask, asking
from tests.waiting import until

FRAMES = 10_000
FROM_GUESTS = [
    asking(1),
    asking(2, stop=("x",), max_tokens=3),
    Count(id=3, request=asking(3).request),
    Cancel(id=1),
    Heartbeat(),
    Hello(version=1, room=CODE, name="x", nonce=bytes(32)),
    Proof(mac=bytes(32)),
]
FROM_HOSTS = [
    READY,
    Announcement(loading=True),
    Queued(id=1, position=2),
    Working(id=1),
    Accepted(id=1),
    Events(id=1, events=[TextDelta(text="x")]),
    Events(id=1, events=[Finished(reason=FinishReason.STOP, usage=Usage(prompt_tokens=1, completion_tokens=1))]),
    Counted(id=1, tokens=5),
    Refused(id=1, code="worker_lost", message="x"),
    ApiClients(allowed=True),
    Heartbeat(),
]


def hostile(seed: int, messages: list[object]) -> Iterator[bytes]:
    """Endless: random bytes, and messages cut, lengthened, with changed bytes or changed fields."""
    source = random.Random(seed)
    while True:
        frame = bytearray(encode(source.choice(messages)))
        match source.randrange(10):
            case 0:
                frame = bytearray(source.randbytes(source.randrange(200)))
            case 1:
                del frame[source.randrange(len(frame)) :]
            case 2:
                frame += source.randbytes(source.randrange(1, 20))
            case 3:
                for _ in range(source.randrange(1, 4)):
                    frame[source.randrange(len(frame))] = source.randrange(256)
            case 4:
                fields = msgspec.msgpack.decode(frame)
                fields[source.choice(list(fields))] = source.choice([None, -1, 2**64 - 1, "", [], {}, b"\xff", 1e308])
                frame = bytearray(msgspec.msgpack.encode(fields))
            case _:
                pass  # as it is, at the wrong time
        yield bytes(frame)


async def test_a_host_outlives_ten_thousand_hostile_frames_and_nobody_else_notices(tmp_path: Path) -> None:
    async with hosting(tmp_path / "host") as host, joining(tmp_path / "guest", at(host.url), host.key) as guest:
        await linked(guest)
        frames = hostile(1, FROM_GUESTS)
        sent = links = 0
        async with aiohttp.ClientSession() as client:
            while sent < FRAMES:
                async with client.ws_connect(f"{host.url}/room", protocols=(protocol.SUBPROTOCOL,)) as socket:
                    links += 1
                    if links % 8:
                        await Stranger(socket).prove(host.key)
                    sent += await _pelted(socket, frames, FRAMES - sent)
                if links % 500 == 0:
                    assert (await ask(guest)).usage.completion_tokens == 40

        assert links > 1000
        assert (await ask(guest)).usage.completion_tokens == 40
        assert guest.running.server.engine.status.connected
        await until(lambda: [one.name for one in host.room.guests()] == ["laptop"])
        assert not host.running.server.door.busy
        assert not [one for one in host.running.exchanges if one.error == "internal_error"]
        assert host.room._strangers == 0


async def _pelted(socket: aiohttp.ClientWebSocketResponse, frames: Iterator[bytes], most: int) -> int:
    """Send until the host has had enough; how many that were."""
    reading = asyncio.create_task(_until_closed(socket))
    sent = 0
    try:
        while sent < most and not reading.done():
            await socket.send_bytes(next(frames))
            sent += 1
            await _delivered()
    except ConnectionError:
        pass
    finally:
        await socket.close()
        await reading
    return sent


async def _delivered() -> None:
    """Long enough for the other side, which is in this process, to read a frame and close the link."""
    for _ in range(3):
        await asyncio.sleep(0)


async def _until_closed(socket: aiohttp.ClientWebSocketResponse | web.WebSocketResponse) -> None:
    while (await socket.receive()).type is aiohttp.WSMsgType.BINARY:
        pass


async def test_a_guest_outlives_ten_thousand_hostile_frames_of_its_host(tmp_path: Path) -> None:
    """The host here knows the key and has gone mad; between its links the real one is asked."""
    frames = hostile(2, FROM_HOSTS)
    sent = 0
    links: list[int] = []
    finished = asyncio.Event()

    async def link(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        socket = web.WebSocketResponse(protocols=(protocol.SUBPROTOCOL,))
        await socket.prepare(request)
        await welcome(socket, KEY)
        links.append(sent)
        if sent == FRAMES:
            finished.set()
            await socket.send_bytes(encode(READY))
            await _sane(socket)
            return socket
        reading = asyncio.create_task(_until_closed(socket))
        try:
            while sent < FRAMES and not reading.done():
                await socket.send_bytes(next(frames))
                sent += 1
                await _delivered()
        except ConnectionError:
            pass
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        return socket

    app = web.Application()
    app.router.add_get("/room", link)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.2)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with joining(tmp_path, at(url), KEY, limits=RoomLimits(wait=0.0), pause=0.0) as guest:
            asked = 0
            while not finished.is_set():
                assert (await guest.health())["ok"] is True
                async with guest.running.session() as client:
                    body = {"model": "pooled/far-away", "messages": [{"role": "user", "content": "hi"}]}
                    async with client.post("/v1/chat/completions", json=body) as response:
                        assert response.status in (200, 400, 404, 429, 500, 503, 504)
                        asked += 1
                await asyncio.sleep(0.05)
            await linked(guest)
            assert (await ask(guest, model="pooled/far-away")).choices[0].message.content == "sane"
            assert asked > 1
            assert sent == FRAMES
            assert len(links) > 1000
    finally:
        await runner.cleanup()


async def _sane(socket: web.WebSocketResponse) -> None:
    end = Finished(reason=FinishReason.STOP, usage=Usage(prompt_tokens=1, completion_tokens=1))
    async for received in socket:
        message = protocol.from_guest(received.data)
        if isinstance(message, Ask):
            await socket.send_bytes(encode(Accepted(id=message.id)))
            await socket.send_bytes(encode(Events(id=message.id, events=[TextDelta(text="sane"), end])))


async def test_frames_that_are_too_large_end_the_link_and_cost_no_memory(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host, aiohttp.ClientSession() as client:
        async with client.ws_connect(f"{host.url}/room", protocols=(protocol.SUBPROTOCOL,)) as socket:
            await socket.send_bytes(bytes(protocol.MAX_HANDSHAKE_BYTES + 1))
            stranger = Stranger(socket)
            assert (await stranger.next(Goodbye)).reason == "malformed"
        async with client.ws_connect(f"{host.url}/room", protocols=(protocol.SUBPROTOCOL,)) as socket:
            stranger = Stranger(socket)
            await stranger.prove(host.key)
            await stranger.next(Welcome)
            await socket.send_bytes(bytes(protocol.MAX_GUEST_FRAME_BYTES + 1))
            code, _ = await stranger.closed()
            assert code == aiohttp.WSCloseCode.MESSAGE_TOO_BIG


async def test_whoever_says_nothing_at_the_door_is_let_go(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host, aiohttp.ClientSession() as client:
        async with client.ws_connect(f"{host.url}/room", protocols=(protocol.SUBPROTOCOL,)) as socket:
            await until(lambda: host.room._strangers == 1)
            received = await asyncio.wait_for(socket.receive(), 20 * protocol.HANDSHAKE_SECONDS)
            assert received.type is aiohttp.WSMsgType.CLOSE
            assert host.room._strangers == 0
