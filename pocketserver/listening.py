"""Listening sockets: the same port on every address that the settings ask for."""

import errno
import socket

from pocketserver.errors import StartupError

EVERYWHERE = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - serving the local network is the purpose
_BACKLOG = 128


class PortTaken(StartupError):  # noqa: N818 - it says what is
    """Another program listens there."""


def listen(host: str, port: int) -> list[socket.socket]:
    """Bind. `0.0.0.0` and `::` mean every IPv4 and, where the system has it, every IPv6 address, on one port.

    Raises StartupError when the port is taken or the address is not ours.
    """
    if host not in EVERYWHERE:
        return [_bind(_family(host), host, port)]
    first = _bind(socket.AF_INET, "0.0.0.0", port)  # noqa: S104 - see EVERYWHERE
    sockets = [first]
    try:
        sockets.append(_bind(socket.AF_INET6, "::", first.getsockname()[1]))
    except PortTaken:
        first.close()
        if port == 0:
            return listen(host, port)  # the free IPv4 port was taken on IPv6: take another one
        raise
    except (StartupError, OSError):
        pass  # a system without IPv6
    return sockets


def is_loopback(host: str) -> bool:
    return host in {"localhost", "::1"} or host.startswith("127.")


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _bind(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            message = (
                f"Port {port} is taken; `pocketserver doctor --port {port}` tells by what. Choose another with --port, "
                "or any free one with --port 0."
            )
            raise PortTaken(message) from error
        if error.errno in (errno.EADDRNOTAVAIL, errno.EACCES) or isinstance(error, socket.gaierror):
            raise StartupError(f"Cannot listen on {host}:{port}: {error.strerror}. Check --host and --port.") from error
        raise
    return listener
