"""One spell of being announced: one responder, one set of links, one name. A change of any is a new session."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet

from zeroconf import NonUniqueNameException, RecordUpdate, RecordUpdateListener, ServiceInfo, Zeroconf
from zeroconf._dns import DNSAddress, DNSService
from zeroconf.asyncio import AsyncZeroconf

from pocketserver.lan.identity import Identity
from pocketserver.lan.names import SERVICE_TYPES, instance_label
from pocketserver.lan.responder import Link, Responder

GOODBYE_SECONDS = 3.0  # the longest that leaving may take
DEFENCE_INTERVAL_SECONDS = 1.0  # RFC 6762 section 6: a record is multicast at most once a second
NAMES_TRIED = 100


class NamesExhaustedError(Exception):
    """Every numbered form of the name is taken."""


class Session(RecordUpdateListener):
    """Claims a name, announces it, and notices when another server uses it or our host name.

    `own_addresses` are all (packed) that this server has had: an echo of an old one is not a rival. `wake` is called
    when `lost_name` or `lost_host` becomes true.
    """

    def __init__(
        self,
        *,
        links: Sequence[Link],
        port: int,
        identity: Identity,
        own_addresses: AbstractSet[bytes],
        wake: Callable[[], None],
    ) -> None:
        super().__init__()
        self.links = tuple(links)
        self.lost_name = False
        self.lost_host = False
        self._port = port
        self._host_name = identity.host_name
        self._own_addresses = own_addresses
        self._wake = wake
        self._infos: list[ServiceInfo] = []
        self._defended_at = 0.0
        self._responder = Responder(links)
        self._zeroconf = AsyncZeroconf(zc=self._responder)

    async def start(self) -> None:
        """Wait for the sockets."""
        await self._responder.async_wait_for_start()

    async def claim(self, wanted: str, first: int, text: dict[str, str]) -> int:
        """The first numbered form of the name that nobody on these links uses, for all service types alike."""
        for number in range(first, first + NAMES_TRIED):
            self._infos = [self._info(kind, instance_label(wanted, number), text) for kind in SERVICE_TYPES]
            if await self._is_free():
                return number
        raise NamesExhaustedError(f'too many servers are called "{wanted}" here, start this one with another --name')

    async def announce(self) -> None:
        """Announce the claimed name, and from now on look out for others that use it."""
        self._responder.async_add_listener(self, None)
        register = self._zeroconf.async_register_service
        await _broadcast(register(info, cooperating_responders=True) for info in self._infos)

    async def retell(self, text: dict[str, str]) -> None:
        """Announce a new text record under the same name."""
        self._infos = [self._info(info.type, info.name.removesuffix("." + info.type), text) for info in self._infos]
        await _broadcast(self._zeroconf.async_update_service(info) for info in self._infos)

    async def close(self) -> None:
        """Say goodbye, unless the name is another server's now: that would end its listing too. Safe to call twice."""
        if self.lost_name:
            self._responder.registry.async_remove(self._infos)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_SECONDS):
                await self._zeroconf.async_close()

    def async_update_records(self, _zc: Zeroconf, _now: float, records: list[RecordUpdate]) -> None:
        """Called by the library with everything that is heard on the links."""
        for update in records:
            record = update.new
            if isinstance(record, DNSService) and self._is_rival(record):
                self._contest(record)
            elif isinstance(record, DNSAddress) and self._is_impostor(record):
                self.lost_host = True
                self._wake()

    def _is_rival(self, record: DNSService) -> bool:
        return any(record.key == info.key for info in self._infos) and self._target(record) != self._own_target()

    def _is_impostor(self, record: DNSAddress) -> bool:
        return record.key == self._host_name and record.address not in self._own_addresses

    def _contest(self, record: DNSService) -> None:
        """Of two servers that announced one name together, the greater (host, port) keeps it (RFC 6762 section 8.2)."""
        if self._own_target() < self._target(record):
            self.lost_name = True
            self._wake()
        elif time.monotonic() - self._defended_at > DEFENCE_INTERVAL_SECONDS:
            self._defended_at = time.monotonic()
            for info in self._infos:
                self._responder.async_send(self._responder.generate_service_broadcast(info, None))

    def _own_target(self) -> tuple[str, int]:
        return (self._host_name, self._port)

    @staticmethod
    def _target(record: DNSService) -> tuple[str, int]:
        return (record.server.lower(), record.port)

    async def _is_free(self) -> bool:
        checks = (self._responder.async_check_service(info, allow_name_change=False) for info in self._infos)
        results = await asyncio.gather(*checks, return_exceptions=True)
        for error in results:
            if error is not None and not isinstance(error, NonUniqueNameException):
                raise error
        return not any(results)

    def _info(self, kind: str, label: str, text: dict[str, str]) -> ServiceInfo:
        return ServiceInfo(
            kind,
            f"{label}.{kind}",
            port=self._port,
            properties=text,
            server=self._host_name,
            addresses=[link.address.packed for link in self.links],
        )


async def _broadcast(calls: Iterable[Awaitable[Awaitable[object]]]) -> None:
    """Start these calls of the library, then wait until all they announce has been sent."""
    await asyncio.gather(*await asyncio.gather(*calls))
