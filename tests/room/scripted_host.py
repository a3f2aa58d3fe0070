"""A host that knows the handshake and nothing else: what it does with a link is the test's own script."""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from pocketserver.room import handshake, protocol
from pocketserver.room.handshake import digest_of
from tests.room.rooming import CODE

KEY = "sk-known-to-both-of-them"
Script = Callable[[web.WebSocketResponse], Awaitable[None]]
READY = protocol.Announcement(model="far-away", context_size=4096, ready=True)


async def welcome(socket: web.WebSocketResponse, key: str) -> None:
    """The host's half of the handshake, for any guest."""
    hello = (await socket.receive()).data
    challenge = protocol.encode(protocol.Challenge(version=1, nonce=secrets.token_bytes(32)))
    await socket.send_bytes(challenge)
    await socket.receive()
    mac = handshake.host_proof(handshake.secret(digest_of(key), CODE), hello, challenge, "host", "you")
    await socket.send_bytes(protocol.encode(protocol.Welcome(mac=mac, name="host", you="you")))


@asynccontextmanager
async def scripted_host(script: Script, key: str = KEY) -> AsyncIterator[str]:
    """Its origin, until the block is left."""

    async def link(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=(protocol.SUBPROTOCOL,), max_msg_size=protocol.MAX_GUEST_FRAME_BYTES)
        await socket.prepare(request)
        await welcome(socket, key)
        await script(socket)
        return socket

    app = web.Application()
    app.router.add_get("/room", link)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.2)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
