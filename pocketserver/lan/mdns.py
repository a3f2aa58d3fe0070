"""Telling the local network that this server is here: DNS-SD services that follow names, addresses and state.

What is announced is decided here; how the packets look is `responder`'s, what the texts look like is `names`'.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Self

from pocketserver.errors import StartupError
from pocketserver.lan.address import Candidate
from pocketserver.lan.identity import Identity
from pocketserver.lan.names import Description, instance_label, text_record
from pocketserver.lan.responder import Link, links_of
from pocketserver.lan.session import Session

log = logging.getLogger(__name__)

SETTLE_SECONDS = 1.0  # an address list must look the same twice, this far apart, before it is followed
RETRY_SECONDS = 60.0
TEXT_INTERVAL_SECONDS = 6.0  # RFC 6762 section 8.4: at most ten updates a minute


class State(StrEnum):
    """Where the advertiser is."""

    OFF = "off"
    STARTING = "starting"
    ADVERTISED = "advertised"
    NO_ADDRESS = "no_address"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What other devices see now. `name` and `host_name` are the real ones, after all conflicts."""

    state: State
    name: str
    host_name: str
    addresses: tuple[str, ...] = ()
    sentence: str = ""


class Advertiser:
    """`async with Advertiser(...)` announces a listening HTTP port until the block is left, then says goodbye.

    Entering returns at once; everything happens in one task of its own. No fault of the network ends it: what goes
    wrong is told once through `report`, and tried again. `look` returns the addresses to announce (`Choice.announced`)
    and runs in a thread, every `poll_seconds`.
    """

    def __init__(
        self,
        *,
        name: str,
        port: int,
        identity: Identity,
        description: Description,
        look: Callable[[], Sequence[Candidate]],
        report: Callable[[Status], None],
        poll_seconds: float = 10.0,
        settle_seconds: float = SETTLE_SECONDS,
        text_interval_seconds: float = TEXT_INTERVAL_SECONDS,
    ) -> None:
        self._wanted_name = name
        self._port = port
        self._identity = identity
        self._description = description
        self._look = look
        self._report = report
        self._poll_seconds = poll_seconds
        self._settle_seconds = settle_seconds
        self._text_interval_seconds = text_interval_seconds
        self._number = 1
        self._own_addresses: set[bytes] = set()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.status = Status(state=State.OFF, name=instance_label(name), host_name=identity.host_name)

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="mdns")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._task = None

    def update(self, description: Description) -> None:
        """Announce other facts (model, state); several in a short time go out as one."""
        self._description = description
        self._wake.set()

    async def _run(self) -> None:
        try:
            links = await self._links()
            while True:
                await self._advertise_or_wait(links)
                links = await self._settled_links()
        finally:
            self._set(State.OFF)

    async def _advertise_or_wait(self, links: Sequence[Link]) -> None:
        """Announce on these links until they change or the name is lost; with nothing to announce, wait a while."""
        if not links:
            self._set(State.NO_ADDRESS, "mDNS waits: there is no local network address to announce.")
            await asyncio.sleep(self._poll_seconds)
            return
        try:
            await self._advertise_on(links)
        except Exception as error:
            log.debug("mDNS failed", exc_info=True)
            self._set(State.FAILED, f"mDNS is off, other devices have to be told the address: {error}.")
            await asyncio.sleep(RETRY_SECONDS)

    async def _advertise_on(self, links: Sequence[Link]) -> None:
        self._set(State.STARTING)
        self._own_addresses.update(link.address.packed for link in links)
        session = Session(
            links=links,
            port=self._port,
            identity=self._identity,
            own_addresses=self._own_addresses,
            wake=self._wake.set,
        )
        try:
            await session.start()
            self._number = await session.claim(self._wanted_name, self._number, self._text())
            await session.announce()
            self._set(State.ADVERTISED, self._success(), links)
            await self._until_stale(session)
        finally:
            await session.close()
        self._take_other_names(session)

    async def _until_stale(self, session: Session) -> None:
        """Keep the text current and the name defended; returns when the links changed or a name was lost."""
        text = self._text()
        next_look = _now() + self._poll_seconds
        next_text = _now() + self._text_interval_seconds
        while not session.lost_name and not session.lost_host:
            is_stale = self._text() != text
            await self._sleep(min(next_look, next_text if is_stale else next_look) - _now())
            if is_stale and _now() >= next_text:
                text = self._text()
                await session.retell(text)
                next_text = _now() + self._text_interval_seconds
            if _now() >= next_look:
                if set(await self._links()) != set(session.links):
                    return
                next_look = _now() + self._poll_seconds

    def _take_other_names(self, session: Session) -> None:
        if session.lost_name:
            self._number += 1
        if session.lost_host:
            self._identity = self._identity.renamed()

    async def _settled_links(self) -> tuple[Link, ...]:
        """The links, once two looks in a row agree: Wi-Fi that flaps is not followed at every turn."""
        links, before = await self._links(), None
        while before is None or set(links) != set(before):
            await asyncio.sleep(self._settle_seconds)
            links, before = await self._links(), links
        return links

    async def _links(self) -> tuple[Link, ...]:
        """The links now; none when what `--advertise` names, or the whole network, is not there at the moment."""
        try:
            return links_of(await asyncio.to_thread(self._look))
        except (StartupError, OSError):
            return ()

    async def _sleep(self, seconds: float) -> None:
        """Wait for something to do, at most this long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0.0)):
                await self._wake.wait()
        self._wake.clear()

    def _text(self) -> dict[str, str]:
        return text_record(self._description, self._identity.hexadecimal)

    def _success(self) -> str:
        name, wanted = instance_label(self._wanted_name, self._number), instance_label(self._wanted_name)
        if name == wanted:
            return f'Other devices see this server as "{name}".'
        return f'The name "{wanted}" is taken on this network; other devices see this server as "{name}".'

    def _set(self, state: State, sentence: str = "", links: Iterable[Link] = ()) -> None:
        status = Status(
            state=state,
            name=instance_label(self._wanted_name, self._number),
            host_name=self._identity.host_name,
            addresses=tuple(str(link.address) for link in links),
            sentence=sentence,
        )
        if status != self.status:
            self.status = status
            self._report(status)


def _now() -> float:
    return time.monotonic()
