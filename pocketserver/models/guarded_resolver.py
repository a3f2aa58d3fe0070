"""Where a download may lead: to the host that the catalogue names, wherever it is, and else only into the public net.

A redirect could otherwise make this machine ask its own services or its neighbours' (SSRF). The check is made on the
addresses that are connected to, so that a name that resolves to a private address is refused too.
"""

import ipaddress
import socket

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver
from yarl import URL

from pocketserver.errors import Code
from pocketserver.models.pull_fault import PullFault


class GuardedResolver(AbstractResolver):
    """Resolves names; those that are not allowed by name must lead to public addresses."""

    def __init__(self, allowed_hosts: frozenset[str]) -> None:
        self._allowed = allowed_hosts
        self._inner = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        if host not in self._allowed and not all(_is_public(each["host"]) for each in found):
            raise _refused(host)
        return found

    async def close(self) -> None:
        await self._inner.close()


def check_literal(url: URL, allowed_hosts: frozenset[str]) -> None:
    """The same for addresses written as numbers, which no resolver sees. Raises PullFault."""
    host = url.host or ""
    if host not in allowed_hosts and _is_address(host) and not _is_public(host):
        raise _refused(host)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_public(address: str) -> bool:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_global and not (mapped or parsed).is_multicast


def _refused(host: str) -> PullFault:
    return PullFault(
        Code.UPSTREAM_FAILED,
        f"The download is redirected to {host[:100]!a}, which is no public address. Name that host in the catalogue.",
    )
