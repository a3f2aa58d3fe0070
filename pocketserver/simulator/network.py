"""The device's network as its clients meet it: open, closed, or silent. Sockets and transports, no HTTP.

What loopback cannot show: a SYN that is never answered. A silent device lets the kernel accept and then says nothing.
"""

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, Protocol

from pocketserver.engines.sim.state import App, Network

MOST_HELD_BYTES = 1024 * 1024
_BACKLOG = 128
_RETRY_SECONDS = 0.01


class Reach(StrEnum):
    """What becomes of a client that connects."""

    OPEN = "open"
    CLOSED = "closed"
    SILENT = "silent"


def reach(app: App, network: Network) -> Reach:
    """Without network nobody comes in, whatever the app does."""
    if network is Network.GONE or app in (App.BACKGROUND, App.KILLED):
        return Reach.CLOSED
    if network is Network.SILENT or app is App.LOCKED:
        return Reach.SILENT
    return Reach.OPEN


class Connection(Protocol):
    """A client's connection, as aiohttp's server keeps it."""

    transport: asyncio.Transport | None


class Listeners(Protocol):
    """The server's listening sockets, see http_server.py."""

    on_connection: Callable[[Any], None] | None

    def connections(self) -> list[Any]: ...

    def close(self) -> None: ...

    async def open(self, sockets: list[socket.socket]) -> None: ...

    @property
    def addresses(self) -> list[tuple[socket.AddressFamily, Any]]: ...


class HeldTransport(asyncio.Transport):
    """Stands before a connection's transport while nothing reaches the client. What is written waits, bounded."""

    def __init__(self, inner: asyncio.Transport) -> None:
        super().__init__()
        self.inner = inner
        self._held = bytearray()
        inner.pause_reading()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if len(self._held) < MOST_HELD_BYTES:
            self._held += data

    def release(self) -> asyncio.Transport:
        """Send what waited; the transport itself."""
        if not self.inner.is_closing():
            self.inner.write(bytes(self._held))
            self.inner.resume_reading()
        return self.inner

    def writelines(self, list_of_data: Any) -> None:
        for data in list_of_data:
            self.write(data)

    def is_closing(self) -> bool:
        return self.inner.is_closing()

    def close(self) -> None:
        self.inner.close()

    def abort(self) -> None:
        self.inner.abort()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.inner.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """It is paused already."""

    def resume_reading(self) -> None:
        """Only `release` resumes."""

    def is_reading(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return len(self._held)


class DeviceNetwork:
    """Opens, closes and silences the server's port. `enter` may be called from anywhere in the loop's thread."""

    def __init__(self, listeners: Listeners) -> None:
        self._listeners = listeners
        self._addresses = listeners.addresses
        self._now = Reach.OPEN
        self._port: asyncio.Task[None] | None = None
        self._end: asyncio.TimerHandle | None = None
        self._placeholders: list[socket.socket] = []
        self._address: str | None = None
        self._defunct = False

    def enter(self, wanted: Reach, *, grace_seconds: float | None, defunct: bool) -> None:
        """Change to a reach.

        Connections are reset at once, or, with `grace_seconds`, fall silent and are reset later, None being never.
        `defunct`: connections of now do not come back when the port opens again.
        """
        if wanted is self._now:
            return
        self._cancel_end()
        if wanted is Reach.OPEN:
            self._let_go(reset=self._defunct)
            self._defunct = False
        else:
            self._defunct = defunct
            self._hold(grace_seconds)
        closed = wanted is Reach.CLOSED
        if closed != (self._now is Reach.CLOSED):
            self._change_port(closed=closed)
        self._listeners.on_connection = _hold if wanted is Reach.SILENT else None
        self._now = wanted

    def move(self, address: str | None) -> None:
        """Be reachable under this address alone, None being the first ones. Connections are reset.

        The address must be one of this machine's, see `is_ours`.
        """
        if address == self._address:
            return
        self._address = address
        self._reset()
        self._change_port(closed=self._now is Reach.CLOSED)

    async def settled(self) -> None:
        """Wait until the port is as it should be."""
        if self._port is not None:
            await asyncio.shield(self._port)

    async def close(self) -> None:
        """Let everything go; the server itself is ending."""
        self._cancel_end()
        self._let_go(reset=self._now is not Reach.OPEN)
        if self._port is not None:
            self._port.cancel()
            await asyncio.gather(self._port, return_exceptions=True)
        for placeholder in self._placeholders:
            placeholder.close()

    def _hold(self, grace_seconds: float | None) -> None:
        if grace_seconds == 0:
            self._reset()
            return
        for connection in self._listeners.connections():
            _hold(connection)
        if grace_seconds is not None:
            self._end = asyncio.get_running_loop().call_later(grace_seconds, self._reset)

    def _reset(self) -> None:
        for connection in self._listeners.connections():
            if connection.transport is not None:
                hang_up(connection.transport, reset=True)

    def _let_go(self, *, reset: bool) -> None:
        for connection in self._listeners.connections():
            held = connection.transport
            if isinstance(held, HeldTransport):
                if reset:
                    hang_up(held, reset=True)
                else:
                    connection.transport = held.release()

    def _change_port(self, *, closed: bool) -> None:
        before = self._port
        self._port = asyncio.get_running_loop().create_task(self._set_port(before, closed=closed))

    async def _set_port(self, before: asyncio.Task[None] | None, *, closed: bool) -> None:
        if before is not None:
            await before
        self._listeners.close()
        for placeholder in self._placeholders:
            placeholder.close()
        self._placeholders = [await _bound(family, where) for family, where in self._wanted_addresses()]
        if closed:
            return
        sockets, self._placeholders = self._placeholders, []
        for placeholder in sockets:
            placeholder.listen(_BACKLOG)
        await self._listeners.open(sockets)

    def _wanted_addresses(self) -> list[tuple[socket.AddressFamily, Any]]:
        if self._address is None:
            return self._addresses
        port = self._addresses[0][1][1]
        return [(_family(self._address), (self._address, port))]

    def _cancel_end(self) -> None:
        if self._end is not None:
            self._end.cancel()
            self._end = None


def is_ours(address: str) -> bool:
    """Whether this machine can be reached under an address: on Linux, every 127.x.x.x among them."""
    with contextlib.suppress(OSError), socket.socket(_family(address), socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))
        return True
    return False


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def hang_up(transport: asyncio.Transport, *, reset: bool) -> None:
    """End a connection: after what is written, or at once with a reset (RST)."""
    inner = transport.inner if isinstance(transport, HeldTransport) else transport
    if not reset:
        inner.close()
        return
    for borrowed in _socket_of(inner):
        borrowed.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    inner.abort()


def _socket_of(transport: asyncio.Transport) -> Iterator[socket.socket]:
    """A second handle on the connection's socket: event loops do not let theirs be changed."""
    with contextlib.suppress(OSError):
        given = transport.get_extra_info("socket")
        if given is not None and given.fileno() >= 0:
            with socket.socket(fileno=os.dup(given.fileno())) as borrowed:
                yield borrowed


def _hold(connection: Connection) -> None:
    if connection.transport is not None and not isinstance(connection.transport, HeldTransport):
        connection.transport = HeldTransport(connection.transport)


async def _bound(family: socket.AddressFamily, where: Any) -> socket.socket:
    """A socket that keeps the port and does not listen, so that connecting is refused."""
    while True:
        placeholder = socket.socket(family, socket.SOCK_STREAM)
        try:
            placeholder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                placeholder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            placeholder.setblocking(False)
            placeholder.bind(where)
        except OSError:
            placeholder.close()  # the listening socket is not quite gone yet
            await asyncio.sleep(_RETRY_SECONDS)
        else:
            return placeholder
