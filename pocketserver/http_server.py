"""aiohttp's server with our manners: what never reaches a handler is answered in our shape, without tracebacks."""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import ContentEncodingError
from aiohttp.web_protocol import RequestHandler

from pocketserver.errors import Code, Refusal
from pocketserver.gate.entrance import unsupported_encoding

LINGER_SECONDS = 3.0
"""How long the rest of a refused body is read, so that the answer is not lost in a connection reset."""
KEEP_ALIVE_SECONDS = 75.0
CLIENT_GONE = 499
MOST_CONNECTIONS = 512
"""Open connections altogether, so that file descriptors last."""
MOST_CONNECTIONS_OF_A_PEER = 384
"""Of one address, so that nobody can take every place."""

Refuse = Callable[[Refusal], web.Response]


class HttpListeners:
    """The sockets on which a server accepts connections. They can be closed and opened again, as on a phone."""

    def __init__(
        self, manager: web.Server, protocol: Callable[["HttpListeners"], RequestHandler], stack: AsyncExitStack
    ) -> None:
        self._manager = manager
        self._protocol = protocol
        self._servers: list[asyncio.Server] = []
        self.addresses: list[tuple[socket.AddressFamily, Any]] = []
        """Family and address of each socket, for whoever wants to bind them again."""
        self._open: Counter[str] = Counter()
        self.on_connection: Callable[[RequestHandler], None] | None = None
        """Told of each new connection, when it is set."""
        stack.callback(self.close)

    def connections(self) -> list[RequestHandler]:
        return list(self._manager.connections)

    def admits(self, peer: str) -> bool:
        """Whether there is a place for another connection of this peer; if so it is taken."""
        if self._open.total() >= MOST_CONNECTIONS or self._open[peer] >= MOST_CONNECTIONS_OF_A_PEER:
            return False
        self._open[peer] += 1
        return True

    def leaves(self, peer: str) -> None:
        """Give a place back."""
        self._open[peer] -= 1
        if not self._open[peer]:
            del self._open[peer]

    async def open(self, sockets: Sequence[socket.socket]) -> None:
        loop = asyncio.get_running_loop()
        self.addresses = [(listener.family, listener.getsockname()) for listener in sockets]
        for listener in sockets:
            self._servers.append(await loop.create_server(lambda: self._protocol(self), sock=listener))

    def close(self) -> None:
        """Accept nobody any more; connections live on. Safe to call twice."""
        for server in self._servers:
            server.close()
        self._servers.clear()


@asynccontextmanager
async def serving_http(
    app: web.Application,
    sockets: Sequence[socket.socket],
    *,
    refuse: Refuse,
    log: logging.Logger,
    reader_seconds: float,
) -> AsyncIterator[HttpListeners]:
    """Accept connections on listening sockets until the block is left; then idle ones are closed.

    A handler is cancelled when its client leaves: aiohttp does that only when it is asked to. A client that leaves its
    answer unread for `reader_seconds` counts as gone.
    """
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    server = runner.server
    assert server is not None
    loop = asyncio.get_running_loop()

    def protocol(listeners: HttpListeners) -> RequestHandler:
        return _Connection(server, listeners, loop=loop, refuse=refuse, log=log, reader_seconds=reader_seconds)

    async with AsyncExitStack() as stack:
        stack.push_async_callback(runner.cleanup)
        listeners = HttpListeners(server, protocol, stack)
        await listeners.open(sockets)
        yield listeners


class _Connection(RequestHandler):
    """One connection. `handle_error` is aiohttp's hook for what no handler could answer.

    asyncio tells by `pause_writing` that the peer is behind with reading, and by `resume_writing` that it caught up. In
    between the handler waits, with the model in its hand: not longer than `reader_seconds`.
    """

    __slots__ = ("_listeners", "_log", "_patience", "_peer", "_reader_seconds", "_refuse")

    def __init__(
        self,
        manager: web.Server,
        listeners: HttpListeners,
        *,
        loop: asyncio.AbstractEventLoop,
        refuse: Refuse,
        log: logging.Logger,
        reader_seconds: float,
    ) -> None:
        super().__init__(
            manager,
            loop=loop,
            logger=log,
            access_log=None,  # type: ignore[arg-type]  # None switches it off; every request has a line of our own
            keepalive_timeout=KEEP_ALIVE_SECONDS,
            lingering_time=LINGER_SECONDS,
        )
        self._refuse = refuse
        self._log = log
        self._listeners = listeners
        self._reader_seconds = reader_seconds
        self._patience: asyncio.TimerHandle | None = None
        self._peer: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        peer = str((transport.get_extra_info("peername") or ("",))[0])
        if not self._listeners.admits(peer):
            self._log.info("%s has too many connections; another one is refused.", peer)
            self.force_close()
            return
        self._peer = peer
        if self._listeners.on_connection is not None:
            self._listeners.on_connection(self)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._patience = asyncio.get_running_loop().call_later(self._reader_seconds, self._give_up)

    def resume_writing(self) -> None:
        self._forget_patience()
        super().resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._forget_patience()
        if self._peer is not None:
            self._listeners.leaves(self._peer)
            self._peer = None
        super().connection_lost(exc)

    def _give_up(self) -> None:
        self._log.info("A client has read nothing for %g seconds; its connection is ended.", self._reader_seconds)
        if self.transport is not None:
            self.transport.abort()

    def _forget_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """aiohttp's hook for what goes wrong after the answer, while it reads what is left of the body.

        A body that cannot be unpacked is the client's fault, and the client has its answer.
        """
        if not isinstance(kw.get("exc_info"), web.RequestPayloadError):
            super().log_exception(*args, **kw)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - aiohttp calls it so
    ) -> web.StreamResponse:
        """Answer by our error table; the connection is closed afterwards, since its state is unknown."""
        response = self._answer(request, status, exc)
        response.force_close()
        return response

    def _answer(self, request: web.BaseRequest, status: int, error: BaseException | None) -> web.Response:
        if isinstance(error, ConnectionError):
            return web.Response(status=CLIENT_GONE)  # nobody reads it: the client has left
        if request.writer.output_size > 0:
            raise ConnectionError("a response has begun, so no other can be sent")
        if isinstance(error, ContentEncodingError):
            return self._refuse(unsupported_encoding())
        if status == 400:
            self._log.info("%s sent no valid HTTP request: %s", request.remote, type(error).__name__)
            return self._refuse(Refusal(Code.MALFORMED_REQUEST, "This is not a valid HTTP/1.1 request."))
        self._log.error("a request failed outside its handler", exc_info=error)
        return self._refuse(Refusal(Code.INTERNAL_ERROR, "Something went wrong inside the server; see its log."))
