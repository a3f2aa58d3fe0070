"""A room inside the test's own process: a host and its guests, each a whole server on a free loopback port."""

import asyncio
import dataclasses
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from pocketserver.engines.engine import Engine
from pocketserver.engines.room import RoomEngine, RoomLimits
from pocketserver.engines.sim.engine import SimEngine, SimOptions
from pocketserver.room import handshake, protocol
from pocketserver.room.finding import Find
from pocketserver.room.guest import GuestLink, LinkOptions
from pocketserver.room.handshake import digest_of
from pocketserver.room.host import RoomHost
from pocketserver.room.pace import Pace
from tests.serving import Running, running
from tests.waiting import until

CODE = "4TKG9P"
LIMITS = RoomLimits(wait=20.0)
QUICK = Pace(heartbeat=0.1, deadline=5.0, look=0.02, slow_reader=0.5)


@dataclass
class Host:
    """A server with a room."""

    running: Running

    @property
    def room(self) -> RoomHost:
        room = self.running.server.room_host
        assert room is not None
        return room

    @property
    def url(self) -> str:
        return self.running.origin

    @property
    def key(self) -> str:
        return self.running.key

    @property
    def sim(self) -> SimEngine:
        engine = self.running.server.engine
        assert isinstance(engine, SimEngine)
        return engine


@dataclass
class Guest:
    """A server whose model is in a room."""

    running: Running

    @property
    def engine(self) -> RoomEngine:
        engine = self.running.server.engine
        assert isinstance(engine, RoomEngine)
        return engine

    async def health(self) -> dict[str, Any]:
        async with aiohttp.ClientSession() as client, client.get(f"{self.running.origin}/health") as response:
            found: dict[str, Any] = await response.json()
            return found

    @property
    def status(self) -> Any:
        return self.engine.status


@asynccontextmanager
async def hosting(
    home: Path, engine: Engine | None = None, pace: Pace = QUICK, **settings: object
) -> AsyncIterator[Host]:
    """A host until the block is left."""
    chosen = engine or SimEngine(SimOptions(tokens_per_second=None))
    async with running(home, chosen, **{"profile": "hub", "room": CODE, "mdns": False, **settings}) as host:
        room = host.server.room_host
        assert room is not None
        room.house = dataclasses.replace(room.house, pace=pace)
        yield Host(host)


@asynccontextmanager
async def joining(
    home: Path,
    find: Find,
    key: str,
    *,
    name: str = "laptop",
    pace: Pace = QUICK,
    pause: float = 0.01,
    limits: RoomLimits = LIMITS,
    **settings: object,
) -> AsyncIterator[Guest]:
    """A guest until the block is left, linked already if its host is there."""
    options = LinkOptions(
        code=CODE,
        digest=digest_of(key),
        name=name,
        pace=pace,
        first_pause_seconds=pause,
        longest_pause_seconds=5 * pause,
    )
    engine = RoomEngine(GuestLink(options, [find]), limits, instance=secrets.token_hex(8))
    chosen = {"profile": "pooled", "room": CODE, "room_key": key, **settings}
    async with running(home, engine, **chosen) as guest:
        yield Guest(guest)


class Stranger:
    """A raw link, for whoever does not keep to the protocol."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket

    async def send(self, message: object) -> bytes:
        frame = protocol.encode(message)
        await self.socket.send_bytes(frame)
        return frame

    async def next(self, kind: type) -> Any:
        """The next message of this kind; everything else is passed over."""
        async with asyncio.timeout(20):
            while True:
                received = await self.socket.receive()
                assert received.type is aiohttp.WSMsgType.BINARY, f"closed with {received.data} {received.extra}"
                message = protocol.from_host(received.data)
                if isinstance(message, kind):
                    return message

    async def closed(self) -> tuple[int | None, str]:
        """Wait until the host has closed the link; its code and reason."""
        async with asyncio.timeout(20):
            while True:
                received = await self.socket.receive()
                if received.type is aiohttp.WSMsgType.CLOSE:
                    return received.data, received.extra or ""
                if received.type is not aiohttp.WSMsgType.BINARY:
                    return self.socket.close_code, ""

    async def prove(self, key: str, *, room: str = CODE, name: str = "stranger") -> None:
        """Come in, as the protocol says."""
        hello = await self.send(
            protocol.Hello(version=1, room=room, name=name, nonce=secrets.token_bytes(protocol.NONCE_BYTES))
        )
        received = await self.socket.receive()
        secret = handshake.secret(digest_of(key), room)
        await self.send(protocol.Proof(mac=handshake.guest_proof(secret, hello, received.data)))


@asynccontextmanager
async def stranger(url: str, **options: Any) -> AsyncIterator[Stranger]:
    async with (
        aiohttp.ClientSession() as client,
        client.ws_connect(f"{url}/room", protocols=(protocol.SUBPROTOCOL,), **options) as socket,
    ):
        yield Stranger(socket)


async def linked(guest: Guest) -> None:
    await until(lambda: guest.status.model is not None)
