"""mDNS: whether announcements can be made and are heard on this machine, and who else answers here."""

import asyncio
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
from zeroconf import ServiceInfo, ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncZeroconf

from pocketserver.cli.doctor.finding import Finding, Level, Situation
from pocketserver.errors import StartupError
from pocketserver.lan.address import choose
from pocketserver.lan.browse import browsing
from pocketserver.lan.responder import Link, Responder, links_of
from pocketserver.run_file import RunningServer

_HEAR_SECONDS = 6.0
_POLL_SECONDS = 0.2
_TRIAL_TYPE = "_pocketcheck._tcp.local."
"""A type of its own, so that nobody's list of servers shows the trial."""
_AVAHI_CONFIGURATION = Path("/etc/avahi/avahi-daemon.conf")
_REMEDY = (
    "Let UDP port 5353 through the firewall, and see whether the Wi-Fi filters multicast. Until then give devices the "
    "address itself: `pocketserver qr`."
)


def announcements_are_heard(about: Situation) -> Iterator[Finding]:
    """A running server by its real announcement; without one, a short trial of another type."""
    settings = about.settings
    if not settings.mdns or not about.serves_network:
        yield Finding("mdns", Level.OK, "Servers are not announced, as the settings say.")
        return
    try:
        links = links_of(choose(settings.advertise, settings.host).announced)
    except StartupError:
        links = ()
    if not links:
        yield Finding("mdns", Level.WARNING, "There is no network to announce on.", "Connect this machine to one.")
        return
    try:
        yield asyncio.run(_heard(links, about.running))
    except OSError as error:
        sentence = f"UDP port 5353 cannot be used: {error}."
        yield Finding("mdns", Level.BROKEN, sentence, "Another program holds it for itself alone; see `responders`.")


async def _heard(links: Sequence[Link], running: Sequence[RunningServer]) -> Finding:
    if running:
        missing = await _unheard(links, {server.port for server in running})
        if not missing:
            return Finding("mdns", Level.OK, "The announcement of the running server is heard.")
        ports = ", ".join(map(str, sorted(missing)))
        sentence = f"The server on port {ports} is not heard on this machine itself."
        return Finding("mdns", Level.WARNING, sentence, f"Was it started with --no-mdns? {_REMEDY}")
    if await _trial(links):
        return Finding(
            "mdns", Level.OK, "A trial announcement was heard here. A phone shows whether the Wi-Fi passes it."
        )
    return Finding("mdns", Level.WARNING, "An announcement made here is not even heard here.", _REMEDY)


async def _unheard(links: Sequence[Link], ports: set[int]) -> set[int]:
    own = {str(link.address) for link in links}
    async with browsing(links) as browser:
        for _ in range(int(_HEAR_SECONDS / _POLL_SECONDS)):
            await asyncio.sleep(_POLL_SECONDS)
            ports = ports - {server.port for server in await browser.servers() if own.intersection(server.addresses)}
            if not ports:
                break
    return ports


async def _trial(links: Sequence[Link]) -> bool:
    """Announce something with one socket, hear it with another."""
    label = f"doctor-{secrets.token_hex(4)}"
    info = ServiceInfo(
        _TRIAL_TYPE,
        f"{label}.{_TRIAL_TYPE}",
        port=9,
        server=f"{label}.local.",
        addresses=[link.address.packed for link in links],
        properties={"txtvers": "1"},
    )
    heard = asyncio.Event()

    def changed(zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        if name.startswith(label):
            heard.set()

    async with AsyncZeroconf(zc=Responder(links)) as listening, AsyncZeroconf(zc=Responder(links)) as telling:
        browser = AsyncServiceBrowser(listening.zeroconf, [_TRIAL_TYPE], handlers=[changed])
        try:
            announced = await telling.async_register_service(info)
            async with asyncio.timeout(_HEAR_SECONDS):
                await heard.wait()
            await announced
        except TimeoutError:
            return False
        finally:
            await browser.async_cancel()
            await (await telling.async_unregister_service(info))
    return True


def responders(about: Situation) -> Iterator[Finding]:
    """Other programs on UDP port 5353; they share it, unless one insists on having it alone."""
    try:
        connections = psutil.net_connections("udp")
    except psutil.AccessDenied:
        yield Finding(
            "responders", Level.OK, "The system does not tell who else answers mDNS; usually all share the port."
        )
        return
    own = {server.pid for server in about.running}
    names = {_name(one.pid) for one in connections if one.laddr and one.laddr.port == 5353 and one.pid not in own}
    text = _AVAHI_CONFIGURATION.read_text(errors="replace") if _AVAHI_CONFIGURATION.is_file() else ""
    yield shared(sorted(names), text)


def shared(names: Sequence[str], avahi_configuration: str) -> Finding:
    """Whether the programs that answer mDNS here let others do so too."""
    lines = [line.replace(" ", "") for line in avahi_configuration.splitlines()]
    if any("avahi" in name for name in names) and "disallow-other-stacks=yes" in lines:
        return Finding(
            "responders",
            Level.BROKEN,
            "avahi-daemon has UDP port 5353 for itself alone, so that servers cannot be announced.",
            f"Set disallow-other-stacks=no in {_AVAHI_CONFIGURATION} and restart avahi-daemon.",
        )
    if names:
        return Finding("responders", Level.OK, f"{', '.join(names)} answers mDNS too, and shares the port.")
    return Finding("responders", Level.OK, "Nobody else answers mDNS here.")


def _name(pid: int | None) -> str:
    try:
        return psutil.Process(pid).name() if pid else "another user's program"
    except psutil.Error:
        return "a program that has ended"
