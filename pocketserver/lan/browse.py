"""Hearing other servers on the local network. What is heard is foreign input: bounded, decoded with care."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, IPv6Address, ip_address

import aiohttp
from zeroconf import Error as ZeroconfError
from zeroconf import ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from pocketserver.lan.address import Network, is_local_peer
from pocketserver.lan.names import SERVICE_TYPES
from pocketserver.lan.responder import Link, Responder

MAX_SERVICES = 256
MAX_TXT_PAIRS = 32
MAX_TXT_VALUE_CHARACTERS = 255
RESOLVE_SECONDS = 1.5
HEALTH_SECONDS = 2.0
CHECKS_AT_ONCE = 16
_GENERIC_TYPE = "_http._tcp.local."


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """One server, merged over the service types it announces. Names and texts are exactly as heard: escape them.

    `host`, `port` and `addresses` are empty when the name could not be resolved; `answers` is None until asked.
    """

    name: str
    types: tuple[str, ...]
    host: str = ""
    port: int = 0
    addresses: tuple[str, ...] = ()
    txt: dict[str, str] = field(default_factory=dict, hash=False)
    answers: bool | None = None

    @property
    def base_url(self) -> str | None:
        """The API's base, for clients; None when there is no address."""
        if not self.addresses:
            return None
        host = f"[{self.addresses[0]}]" if ":" in self.addresses[0] else self.addresses[0]
        return f"http://{host}:{self.port}/v1"


class Browser:
    """What is being heard; made by `browsing`. `changed` is set whenever something came, went or changed."""

    def __init__(self, zeroconf: Zeroconf) -> None:
        self.changed = asyncio.Event()
        self._zeroconf = zeroconf
        self._names: set[tuple[str, str]] = set()

    async def servers(self) -> list[Heard]:
        """The servers heard at this moment, in the order of their names; resolves what is not known yet."""
        pairs = sorted(self._names)
        heard = await asyncio.gather(*(self._resolve(kind, name) for kind, name in pairs))
        return merge(heard)

    def on_change(self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        """Called by the library, by keyword, hence the names."""
        del zeroconf
        if state_change is ServiceStateChange.Removed:
            self._names.discard((service_type, name))
        elif len(self._names) < MAX_SERVICES:
            self._names.add((service_type, name))
        self.changed.set()

    async def _resolve(self, kind: str, name: str) -> Heard:
        label = name[: -len(kind) - 1]
        unresolved = Heard(name=label, types=(kind,))
        try:
            info = AsyncServiceInfo(kind, name)
            found = await info.async_request(self._zeroconf, RESOLVE_SECONDS * 1000)
        except (ZeroconfError, ValueError):  # a name that no server may have (control characters, too long)
            return unresolved
        if not found:
            return unresolved
        return Heard(
            name=label,
            types=(kind,),
            host=(info.server or "").removesuffix("."),
            port=info.port or 0,
            addresses=tuple(info.parsed_scoped_addresses()),
            txt=decode_text(info.properties),
        )


@asynccontextmanager
async def browsing(links: Sequence[Link]) -> AsyncIterator[Browser]:
    """Listen on these links for as long as the block lasts. Raises `OSError` when port 5353 cannot be shared."""
    zeroconf = Responder(links)
    browser = Browser(zeroconf)
    async with AsyncZeroconf(zc=zeroconf):
        listener = AsyncServiceBrowser(zeroconf, list(SERVICE_TYPES), handlers=[browser.on_change])
        try:
            yield browser
        finally:
            await listener.async_cancel()


def merge(heard: Iterable[Heard]) -> list[Heard]:
    """One entry a server. A generic `_http._tcp` service counts only when it is one of ours or says `api=openai`."""
    groups: dict[tuple[str, str, int], list[Heard]] = {}
    for one in heard:
        groups.setdefault((one.name, one.host, one.port), []).append(one)
    merged = (_merged(group) for group in groups.values() if any(map(_is_model_server, group)))
    return sorted(merged, key=lambda server: (server.name.casefold(), server.host, server.port))


def decode_text(properties: dict[bytes, bytes | None]) -> dict[str, str]:
    """A TXT record as text: the first of equal keys wins whatever its case, keys without a value are empty."""
    decoded: dict[str, str] = {}
    for key, value in properties.items():
        word = key.decode("utf-8", "replace").lower()
        if word and word not in decoded and len(decoded) < MAX_TXT_PAIRS:
            decoded[word] = (value or b"").decode("utf-8", "replace")[:MAX_TXT_VALUE_CHARACTERS]
    return decoded


async def check_health(servers: Sequence[Heard], networks: Sequence[Network]) -> list[Heard]:
    """The same servers, each with whether its `/health` answered. Only local addresses are asked."""
    limit = asyncio.Semaphore(CHECKS_AT_ONCE)
    timeout = aiohttp.ClientTimeout(total=HEALTH_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as client:
        answers = await asyncio.gather(*(_answers(client, limit, server, networks) for server in servers))
    return [replace(server, answers=answer) for server, answer in zip(servers, answers, strict=True)]


async def _answers(
    client: aiohttp.ClientSession, limit: asyncio.Semaphore, server: Heard, networks: Sequence[Network]
) -> bool:
    async with limit:
        for address in server.addresses:
            if is_local_peer(address, networks) and await _is_healthy(client, address, server.port):
                return True
    return False


async def _is_healthy(client: aiohttp.ClientSession, address: str, port: int) -> bool:
    host = f"[{address}]" if ":" in address else address
    with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError, ValueError):
        async with client.get(f"http://{host}:{port}/health", allow_redirects=False) as response:
            return response.status == 200
    return False


def _is_model_server(heard: Heard) -> bool:
    return heard.types != (_GENERIC_TYPE,) or heard.txt.get("api") == "openai"


def _merged(group: Sequence[Heard]) -> Heard:
    first = min(group, key=lambda one: SERVICE_TYPES.index(one.types[0]))
    types = tuple(sorted({kind for one in group for kind in one.types}))
    addresses = sorted({address for one in group for address in one.addresses}, key=_address_order)
    return Heard(
        name=first.name, types=types, host=first.host, port=first.port, addresses=tuple(addresses), txt=first.txt
    )


def _address_order(text: str) -> tuple[int, IPv4Address | IPv6Address, str]:
    ip = ip_address(text.partition("%")[0])
    return (ip.version, ip, text)
