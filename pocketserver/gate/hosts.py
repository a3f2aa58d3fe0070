"""Which Host, Origin and peer a request may have: against DNS rebinding, foreign web pages and the internet.

Each rule is frozen data with one `check`; what a kind (a word of a profile) means is decided in one `match`.
"""

import ipaddress
import re
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar, assert_never
from urllib.parse import urlsplit

from pocketserver.errors import Code, Refusal

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Found = TypeVar("Found")

HostKind = Literal["own", "exact_loopback", "loopback_names"]
OriginKind = Literal["own_or_none", "none_at_all", "local_apps"]
PeerKind = Literal["local", "loopback"]

_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\]|[^:\[\]@/?#\s%]+)(?::([0-9]{1,5}))?")
_ASK_AGAIN_SECONDS = 2.0
_MEMORY_SECONDS = 30.0
_MOST_REMEMBERED = 512
_APP_SCHEMES = frozenset({"app", "file", "tauri", "vscode-webview"})
_DEFAULT_PORTS = {"http": 80, "https": 443}
_CORS_METHODS = "GET, POST, DELETE, HEAD, OPTIONS"
_CORS_HEADERS = "Authorization, Content-Type, x-api-key, anthropic-version, anthropic-beta"
_EXPOSED_HEADERS = "x-request-id, Retry-After"
_HEADER_LIST = re.compile(r"[A-Za-z0-9_, -]{1,1000}")


class _Remembered:
    """Texts that passed not long ago, so that a busy client's address is not parsed ten thousand times a second."""

    def __init__(self) -> None:
        self._texts: set[str] = set()
        self._emptied = time.monotonic()

    def __contains__(self, text: str) -> bool:
        if time.monotonic() - self._emptied > _MEMORY_SECONDS:
            self._empty()
        return text in self._texts

    def add(self, text: str) -> None:
        if len(self._texts) >= _MOST_REMEMBERED:
            self._empty()
        self._texts.add(text)

    def _empty(self) -> None:
        self._texts.clear()
        self._emptied = time.monotonic()


class _AskedRarely(Generic[Found]):
    """What the operating system says about addresses; asked again after 2 seconds at the earliest."""

    def __init__(self, ask: Callable[[], Collection[Found]]) -> None:
        self._ask = ask
        self._asked = float("-inf")
        self._found: Collection[Found] = ()

    def any(self, fits: Callable[[Found], bool]) -> bool:
        """Whether something fits, as of at most 2 seconds ago when nothing does."""
        if self._is_fresh(_MEMORY_SECONDS) and any(map(fits, self._found)):
            return True
        if self._is_fresh(_ASK_AGAIN_SECONDS):
            return False
        self._asked = time.monotonic()
        self._found = self._ask()
        return any(map(fits, self._found))

    def _is_fresh(self, seconds: float) -> bool:
        return time.monotonic() - self._asked < seconds


def _nothing() -> Collection[Address]:
    return ()


def _no_networks() -> Collection[Network]:
    return ()


def _no_names() -> Collection[str]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRule:
    """Which Host headers are ours.

    - `own`: an address of this machine, one of `own_names()`, or localhost, with any port or none
    - `exact_loopback`: `127.0.0.1:<port>` or `localhost:<port>`, nothing else
    - `loopback_names`: a loopback address, localhost or a name under it, with any port or none

    `configured` names (`name` or `name:port`) are ours under every kind. Names are compared without case and without
    a last dot. `port` is asked when it is needed, because port 0 becomes a number late.
    """

    kind: HostKind
    port: Callable[[], int]
    own_addresses: Callable[[], Collection[Address]] = _nothing
    own_names: Callable[[], Collection[str]] = _no_names
    configured: Collection[str] = ()
    _addresses: _AskedRarely[Address] = field(init=False, repr=False, compare=False)
    _passed: _Remembered = field(default_factory=_Remembered, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_addresses", _AskedRarely(self.own_addresses))
        object.__setattr__(self, "configured", frozenset(name.lower().rstrip(".") for name in self.configured))

    def check(self, hosts: Sequence[str], authority: str | None = None) -> None:
        """Raise HOST_NOT_ALLOWED unless there is exactly one Host header and it is ours.

        `authority` is that of an absolute-form request line (`GET http://name/…`), which must be ours as well.
        """
        if len(hosts) != 1:
            raise Refusal(Code.HOST_NOT_ALLOWED, "Send exactly one Host header, with the address of this server.")
        if hosts[0] not in self._passed:
            self._check_one(hosts[0])
        if authority is not None and authority not in self._passed:
            self._check_one(authority)

    def _check_one(self, host: str) -> None:
        if not self._is_ours(host):
            raise Refusal(
                Code.HOST_NOT_ALLOWED,
                f"The Host {_shown(host)} is not a name of this server. Use the address that the server prints at its "
                "start, or add the name to its setting `allowed_hosts`.",
            )
        self._passed.add(host)

    def _is_ours(self, host: str) -> bool:
        match = _AUTHORITY.fullmatch(host)
        if match is None:
            return False
        name, port = match[1].lower(), int(match[2]) if match[2] else None
        bare = name.removesuffix(".")
        if bare in self.configured or f"{bare}:{port}" in self.configured:
            return True
        match self.kind:
            case "exact_loopback":
                return name in {"127.0.0.1", "localhost"} and port == self.port()
            case "loopback_names":
                return _is_loopback_name(bare)
            case "own":
                return self._is_own(bare)
            case _:
                assert_never(self.kind)

    def _is_own(self, name: str) -> bool:
        address = _address(name.strip("[]"))
        if address is None:
            return name == "localhost" or any(name == own.lower().rstrip(".") for own in self.own_names())
        return address.is_loopback or self._addresses.any(lambda own: own == address)


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginRule:
    """Which web pages may call, by the Origin header that browsers send.

    - `own_or_none`: other pages are answered but get no CORS headers, so a browser keeps the answer from them; under
      `guarded` paths they are refused
    - `none_at_all`: a request with an Origin is refused
    - `local_apps`: pages of this machine and of desktop apps; every other Origin is refused

    `configured` origins (`http://tools.example:3000`, or `*` for all) may call under every kind.
    """

    kind: OriginKind
    configured: Collection[str] = ()
    guarded: tuple[str, ...] = ("/page/",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "configured", frozenset(origin.lower().rstrip("/") for origin in self.configured))

    def check(self, origins: Sequence[str], *, path: str = "/", host: str = "") -> None:
        """Raise ORIGIN_NOT_ALLOWED, naming the origin and how to allow it. `host` is the checked Host header."""
        for origin in origins:
            if self._is_refused(origin, path, host):
                raise Refusal(
                    Code.ORIGIN_NOT_ALLOWED,
                    f"Web pages of {_shown(origin)} may not call this server. To allow them, add that origin to its "
                    "setting `allowed_origins`.",
                )

    def cors_headers(self, origin: str | None) -> dict[str, str]:
        """Headers that let a page read the answer: for configured origins and local apps, none for others."""
        if origin is None or not self._may_read(origin):
            return {}
        return {
            "Access-Control-Allow-Origin": "*" if "*" in self.configured else origin,
            "Access-Control-Expose-Headers": _EXPOSED_HEADERS,
            "Vary": "Origin",
        }

    def preflight_headers(
        self, origin: str | None, *, requested_headers: str = "", private_network: bool = False
    ) -> dict[str, str] | None:
        """Headers of the answer (204) to a browser's OPTIONS, which carries no key; None when the page may not call.

        `requested_headers` is Access-Control-Request-Headers, `private_network` whether the browser asks with
        Access-Control-Request-Private-Network, as it does from a public page.
        """
        headers = self.cors_headers(origin)
        if not headers:
            return None
        headers["Access-Control-Allow-Methods"] = _CORS_METHODS
        headers["Access-Control-Allow-Headers"] = (
            requested_headers if _HEADER_LIST.fullmatch(requested_headers) else _CORS_HEADERS
        )
        headers["Access-Control-Max-Age"] = "600"
        if private_network:
            headers["Access-Control-Allow-Private-Network"] = "true"
        return headers

    def _is_refused(self, origin: str, path: str, host: str) -> bool:
        if self._may_read(origin):
            return False
        match self.kind:
            case "none_at_all" | "local_apps":
                return True
            case "own_or_none":
                return path.startswith(self.guarded) and not _same_origin(origin, host)
            case _:
                assert_never(self.kind)

    def _may_read(self, origin: str) -> bool:
        if "*" in self.configured or origin.lower() in self.configured:
            return True
        return self.kind == "local_apps" and _is_local_app(origin)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRule:
    """From where a connection may come, by its TCP peer's address.

    - `loopback`: this machine
    - `local`: loopback, private and link-local addresses, and every address on one of `networks()`, our own links

    `allow_public` lets everybody in.
    """

    kind: PeerKind
    allow_public: bool = False
    networks: Callable[[], Collection[Network]] = _no_networks
    _links: _AskedRarely[Network] = field(init=False, repr=False, compare=False)
    _passed: _Remembered = field(default_factory=_Remembered, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_links", _AskedRarely(self.networks))

    def check(self, peer: str) -> None:
        """Raise PEER_NOT_LOCAL unless the peer may connect. An empty or unreadable address may not."""
        if self.allow_public or peer in self._passed:
            return
        if not self._is_allowed(peer):
            raise Refusal(Code.PEER_NOT_LOCAL, self._why_not(peer))
        self._passed.add(peer)

    def _is_allowed(self, peer: str) -> bool:
        address = _address(peer)
        if address is None or address.is_unspecified or address.is_multicast:
            return False
        match self.kind:
            case "loopback":
                return address.is_loopback
            case "local":
                return _is_local(address) or self._links.any(lambda network: address in network)
            case _:
                assert_never(self.kind)

    def _why_not(self, peer: str) -> str:
        served = "devices on its own network" if self.kind == "local" else "programs on its own machine"
        return (
            f"This server answers {served} only, and {_shown(peer)} is none of them. Its owner can start it with the "
            "setting `allow_public` to serve every address."
        )


def _shown(foreign: str) -> str:
    """Foreign text, quoted, cut and without control characters."""
    return ascii(foreign[:100])


def _address(text: str) -> Address | None:
    """An address without its zone; an IPv4 address in IPv6 clothes is the IPv4 address."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _is_local(address: Address) -> bool:
    return address.is_loopback or address.is_private or address.is_link_local


def _is_loopback_name(name: str) -> bool:
    """Loopback addresses, localhost and names under it, which no DNS server may answer for (RFC 6761, 6.3)."""
    address = _address(name.strip("[]"))
    return address.is_loopback if address else name == "localhost" or name.endswith(".localhost")


def _is_local_app(origin: str) -> bool:
    scheme, separator, authority = origin.lower().partition("://")
    if not separator:
        return False
    if scheme in _APP_SCHEMES:
        return True
    match = _AUTHORITY.fullmatch(authority)
    return scheme in _DEFAULT_PORTS and match is not None and _is_loopback_name(match[1])


def _same_origin(origin: str, host: str) -> bool:
    """Whether a page came from the very address it calls; we speak plain HTTP, a proxy before us may speak HTTPS."""
    try:
        page, called = urlsplit(origin.lower()), urlsplit(f"//{host.lower()}")
        default = _DEFAULT_PORTS.get(page.scheme)
        same_port = (page.port or default) == (called.port or default)
    except ValueError:
        return False
    return default is not None and bool(page.hostname) and page.hostname == called.hostname and same_port
