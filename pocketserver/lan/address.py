"""Which of this machine's addresses another device can reach: real interfaces, scored; no packet is ever sent."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import psutil

from pocketserver.errors import StartupError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Kind(StrEnum):
    """What an address is good for, in the order in which we would show it."""

    LAN = "lan"
    PUBLIC = "public"
    LINK_LOCAL = "link_local"
    VPN = "vpn"
    LOOPBACK = "loopback"
    CONTAINER = "container"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """One address of one interface, as the operating system tells it. Windows tells no `flags`: then they are empty."""

    name: str
    address: str
    prefix_length: int
    is_up: bool = True
    flags: frozenset[str] = frozenset()
    has_default_route: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An address that could be shown to others. A higher score is a better choice; `reason` is for people."""

    address: str
    interface: str
    prefix_length: int
    score: int
    kind: Kind
    reason: str

    @property
    def ip(self) -> Address:
        return ipaddress.ip_address(self.address)

    @property
    def network(self) -> Network:
        return ipaddress.ip_network(f"{self.address}/{self.prefix_length}", strict=False)

    @property
    def url_host(self) -> str:
        """The address as it is written in a URL."""
        return f"[{self.address}]" if self.ip.version == 6 else self.address


@dataclass(frozen=True, slots=True)
class Choice:
    """The address to show first, the others in order, and those that mDNS announces (each on its own link)."""

    primary: Candidate
    others: tuple[Candidate, ...] = ()
    announced: tuple[Candidate, ...] = ()


WILDCARDS = frozenset({"", "*", "0.0.0.0", "::", "[::]"})  # noqa: S104 - the words that mean every address
CARRIER_GRADE_NAT = ipaddress.ip_network("100.64.0.0/10")

# The one place that knows interface names. Linux and macOS names, then the friendly names of Windows; lower case.
_CONTAINER_NAMES = (
    r"docker|br-[0-9a-f]{12}|veth|virbr|vnet\d|cni|flannel|cali|cilium|podman|lxcbr|lxdbr|incusbr|kube|vmnet|vboxnet"
    r"|bridge1\d\d|awdl|llw|ap1$|anpi"
    r"|vethernet|virtualbox|vmware|hyper-v|wsl|bluetooth"
)
_VPN_NAMES = r"tun|tap|utun|wg|wireguard|tailscale|zt|zerotier|ppp|ipsec|nebula|nordlynx|mullvad|openvpn|proton|gpd"
_KIND_BY_NAME = ((re.compile(_CONTAINER_NAMES), Kind.CONTAINER), (re.compile(_VPN_NAMES), Kind.VPN))
_FAMILIAR_NAMES = ((re.compile(r"wl|wi-?fi|wireless"), 8), (re.compile(r"en|eth|em\d|bond|br"), 5))

# Kinds lie further apart than all bonuses together, so that no bonus lifts a container bridge over a LAN address.
_KIND_SCORES = {
    Kind.LAN: 500,
    Kind.PUBLIC: 400,
    Kind.LINK_LOCAL: 300,
    Kind.VPN: 200,
    Kind.LOOPBACK: 100,
    Kind.CONTAINER: 0,
}
_KIND_WORDS = {
    Kind.LAN: "private address on the local network",
    Kind.PUBLIC: "public address, perhaps reachable from the internet",
    Kind.LINK_LOCAL: "self-assigned address, good for devices on the same link only",
    Kind.VPN: "VPN or carrier address, for devices in the same VPN only",
    Kind.LOOPBACK: "this machine only",
    Kind.CONTAINER: "container or virtual machine bridge, for this machine only",
}


def candidates() -> list[Candidate]:
    """Every usable address of this machine, the best first. Blocks for a few milliseconds: call it in a thread."""
    return rank(_interfaces())


def rank(interfaces: Iterable[Interface]) -> list[Candidate]:
    """Score and sort; what is down, or cannot be written in a URL (IPv6 with a zone), is left out."""
    usable = (interface for interface in interfaces if interface.is_up and not _needs_zone(interface.address))
    return sorted(map(score, usable), key=lambda candidate: (-candidate.score, candidate.ip.version, candidate.ip))


def score(interface: Interface) -> Candidate:
    """One address's worth, from plain values. The default route is one hint among others: a VPN may own it."""
    kind = _kind(interface)
    ip = ipaddress.ip_address(interface.address)
    bonuses = (
        (20 if ip.version == 4 else 0, ""),
        (15 if interface.has_default_route else 0, "default route"),
        (_familiarity(interface.name), ""),
        (10 if ip.version == 4 and 8 <= interface.prefix_length <= 29 else 0, ""),
    )
    words = [_KIND_WORDS[kind], *(word for points, word in bonuses if points and word)]
    return Candidate(
        address=interface.address,
        interface=interface.name,
        prefix_length=interface.prefix_length,
        score=_KIND_SCORES[kind] + sum(points for points, _ in bonuses),
        kind=kind,
        reason=", ".join(words),
    )


def choose(advertise: str | None, bind_host: str, found: Sequence[Candidate] | None = None) -> Choice:
    """The address to show for a server that listens on `bind_host`; a wildcard listens on IPv4 and IPv6.

    `advertise` is an address or the name of an interface and comes first when given; only it is announced then.
    Raises `StartupError` when `advertise` names nothing that this server can be reached at.
    """
    known = list(candidates() if found is None else found)
    fitting = [candidate for candidate in known if _fits_bind(candidate, bind_host)]
    if advertise is not None:
        return _chosen_by_hand(advertise, fitting, known, bind_host)
    if not fitting:
        return Choice(_unlisted(bind_host))
    return Choice(fitting[0], tuple(fitting[1:]), _announced(fitting))


def own_addresses() -> frozenset[Address]:
    """All addresses of this machine, loopback and link-local ones too (without their zone)."""
    return frozenset(_parse(interface.address) for interface in _interfaces())


def on_link_networks() -> tuple[Network, ...]:
    """The networks this machine is itself part of; peers inside them count as local."""
    return networks_of(_interfaces())


def networks_of(interfaces: Iterable[Interface]) -> tuple[Network, ...]:
    """Networks of these addresses. A prefix too short to be a link is ignored; in a VPN that hands out single
    carrier-range addresses (Tailscale does), the whole range is the link."""
    found: dict[Network, None] = {}
    for interface in interfaces:
        ip = _parse(interface.address)
        network = ipaddress.ip_network(f"{ip}/{interface.prefix_length}", strict=False)
        if interface.prefix_length >= (8 if ip.version == 4 else 32):
            found[network] = None
        if ip in CARRIER_GRADE_NAT and _kind_by_name(interface.name) is Kind.VPN:
            found[CARRIER_GRADE_NAT] = None
    return tuple(found)


def is_local_peer(peer: str, networks: Iterable[Network]) -> bool:
    """Whether a peer is loopback, private, link-local, or inside one of these networks. No address is not local."""
    try:
        ip = _parse(peer)
    except ValueError:
        return False
    if ip.is_unspecified or ip.is_multicast:
        return False
    return ip.is_loopback or ip.is_private or ip.is_link_local or any(ip in network for network in networks)


# Scoring


def _kind(interface: Interface) -> Kind:
    ip = ipaddress.ip_address(interface.address)
    by_name = _kind_by_name(interface.name)
    if ip.is_loopback or "loopback" in interface.flags:
        return Kind.LOOPBACK
    if by_name is not None:
        return by_name
    if ip in CARRIER_GRADE_NAT or _cannot_multicast(interface.flags):
        return Kind.VPN
    if ip.is_link_local:
        return Kind.LINK_LOCAL
    return Kind.LAN if ip.is_private else Kind.PUBLIC


def _kind_by_name(name: str) -> Kind | None:
    return next((kind for pattern, kind in _KIND_BY_NAME if pattern.match(name.lower())), None)


def _familiarity(name: str) -> int:
    return next((points for pattern, points in _FAMILIAR_NAMES if pattern.match(name.lower())), 0)


def _cannot_multicast(flags: frozenset[str]) -> bool:
    return bool(flags) and ("pointopoint" in flags or not {"broadcast", "multicast"} <= flags)


def _needs_zone(address: str) -> bool:
    ip = _parse(address)
    return ip.version == 6 and ip.is_link_local


# Choosing


def _fits_bind(candidate: Candidate, bind_host: str) -> bool:
    if bind_host in WILDCARDS:
        return True
    if bind_host == "localhost":
        return candidate.kind is Kind.LOOPBACK
    return candidate.address == bind_host.strip("[]")


def _chosen_by_hand(advertise: str, fitting: list[Candidate], known: list[Candidate], bind_host: str) -> Choice:
    wanted = [candidate for candidate in fitting if advertise in {candidate.address, candidate.interface}]
    if not wanted:
        raise StartupError(_why_not(advertise, known, bind_host))
    others = tuple(candidate for candidate in fitting if candidate is not wanted[0])
    return Choice(wanted[0], others, tuple(wanted[:1]) if _can_announce(wanted[0]) else ())


def _why_not(advertise: str, known: list[Candidate], bind_host: str) -> str:
    if any(advertise in {candidate.address, candidate.interface} for candidate in known):
        return (
            f"--advertise {advertise} cannot be reached, because the server listens on {bind_host} only. Change --host."
        )
    offered = ", ".join(f"{candidate.address} ({candidate.interface})" for candidate in known) or "none"
    return f"--advertise {advertise} is no address or interface of this machine. Choose one of: {offered}."


def _announced(fitting: list[Candidate]) -> tuple[Candidate, ...]:
    """One IPv4 address a link: the LAN ones, or the self-assigned ones when there is no other."""
    for kinds in ({Kind.LAN}, {Kind.LINK_LOCAL}):
        chosen = [candidate for candidate in fitting if candidate.kind in kinds and _can_announce(candidate)]
        if chosen:
            return tuple(chosen)
    return ()


def _can_announce(candidate: Candidate) -> bool:
    return candidate.kind is not Kind.LOOPBACK and candidate.ip.version == 4


def _unlisted(bind_host: str) -> Candidate:
    """A stand-in for an address that the system did not list; binding to it succeeds or explains itself."""
    is_name = bind_host in WILDCARDS or bind_host == "localhost"
    address = "127.0.0.1" if is_name else bind_host.strip("[]")
    reason = _KIND_WORDS[Kind.LOOPBACK] if is_name else "as given by --host"
    return Candidate(address=address, interface="", prefix_length=32, score=0, kind=Kind.LOOPBACK, reason=reason)


# Asking the operating system


class _State(Protocol):
    """What `psutil.net_if_stats` tells about one interface, as far as it is used here."""

    @property
    def isup(self) -> bool: ...
    @property
    def flags(self) -> str: ...


def _interfaces() -> list[Interface]:
    """Names, addresses, prefixes and flags, from psutil: its two calls share their names on every system."""
    states = psutil.net_if_stats()
    routed = _default_route_addresses()
    return [
        _interface(name, entry.address, entry.netmask, states.get(name), routed)
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family in {socket.AF_INET, socket.AF_INET6}
    ]


def _interface(name: str, address: str, netmask: str | None, state: _State | None, routed: frozenset[str]) -> Interface:
    return Interface(
        name=name,
        address=address.partition("%")[0],
        prefix_length=_prefix_length(address, netmask),
        is_up=state is None or state.isup,
        flags=_flags(state.flags if state is not None else ""),
        has_default_route=address in routed,
    )


def _flags(words: str) -> frozenset[str]:
    return frozenset(word for word in words.split(",") if word)


def _prefix_length(address: str, netmask: str | None) -> int:
    """Bits of the mask; Windows gives none for IPv6, where 64 is what links have."""
    if not netmask:
        return 64 if ":" in address else 32
    return int(ipaddress.ip_address(netmask)).bit_count()


def _default_route_addresses() -> frozenset[str]:
    """The source addresses of the default routes. Connecting a datagram socket looks up the route and sends nothing."""
    found = set()
    for family, target in ((socket.AF_INET, "198.51.100.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((target, 9))
                found.add(str(probe.getsockname()[0]))
        except OSError:  # no route, or no such family: then nothing is hinted
            continue
    return frozenset(found)


def _parse(address: str) -> Address:
    """An address without its zone; an IPv4 address in IPv6 clothes is the IPv4 address."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        return ip.ipv4_mapped
    return ip
