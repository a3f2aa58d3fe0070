"""Where a room's host may be: an address that somebody gave, or whoever announces the room's code on the network."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import urlsplit

from pocketserver.errors import UsageError
from pocketserver.lan.address import choose, is_local_peer, on_link_networks
from pocketserver.lan.browse import Heard, browsing
from pocketserver.lan.responder import Link, links_of

logger = logging.getLogger(__name__)

LISTEN_SECONDS = 4.0
Find = Callable[[], Awaitable[Sequence[str]]]
"""Origins (`http://192.168.1.20:8080`) that are worth a try now, the best first."""


def checked_url(url: str) -> str:
    """The origin of a host's address, however much of a path stands behind it. Raises UsageError."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable or parts.username or parts.password:
        raise UsageError("--url must be the host's address such as http://192.168.1.20:8080, without a key in it.")
    return f"{parts.scheme}://{parts.netloc}"


def at(url: str) -> Find:
    """The host has this address."""

    async def find() -> Sequence[str]:
        return [url]

    return find


def by_mdns(code: str) -> Find:
    """Whoever announces this room on the local network, heard anew each time; nobody when there is no network."""

    async def find() -> Sequence[str]:
        try:
            links = await asyncio.to_thread(lambda: links_of(choose(None, "").announced))
            return await _heard(links, code) if links else []
        except OSError as error:
            logger.info("room: mDNS cannot be heard: %s", error)
            return []

    return find


async def _heard(links: Sequence[Link], code: str) -> Sequence[str]:
    networks = await asyncio.to_thread(on_link_networks)
    async with browsing(links) as browser:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LISTEN_SECONDS):
                while True:
                    await browser.changed.wait()
                    browser.changed.clear()
                    hosts = [server for server in await browser.servers() if server.txt.get("room", "").upper() == code]
                    if hosts:
                        return [url for host in hosts for url in _origins(host, lambda ip: is_local_peer(ip, networks))]
    return []


def _origins(server: Heard, is_local: Callable[[str], bool]) -> list[str]:
    """A stranger's record must not send us out to the internet."""
    return [
        f"http://{f'[{address}]' if ':' in address else address}:{server.port}"
        for address in server.addresses
        if is_local(address)
    ]
