"""The port, the addresses, VPNs, and what keeps devices on one Wi-Fi apart."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from pocketserver.cli.doctor.finding import Finding, Level, Situation, parted
from pocketserver.errors import StartupError
from pocketserver.lan.address import Candidate, Choice, Kind, candidates, choose
from pocketserver.listening import PortTaken, listen

_NEIGHBOURS = Path("/proc/net/arp")
_ARP_COMPLETE = 0x2


def port_is_free(about: Situation) -> Iterator[Finding]:
    """Really listens there for a moment; says who does where it cannot."""
    port = about.settings.port
    own = next((server for server in about.running if server.port == port), None)
    if own is not None:
        yield Finding("port", Level.OK, f"Port {port} is served by pocketserver itself (process {own.pid}).")
        return
    try:
        for listener in listen(about.settings.host, port):
            listener.close()
    except PortTaken:
        yield _taken(about, port)
    except StartupError as error:
        yield Finding("port", Level.BROKEN, *parted(error))
    else:
        yield Finding("port", Level.OK, f"Port {port} is free.")


def _taken(about: Situation, port: int) -> Finding:
    sentence = f"Port {port} is taken by {_listener(port)}."
    if about.moves_when_taken:
        return Finding("port", Level.WARNING, sentence, "The server will take another port by itself.")
    return Finding(
        "port", Level.BROKEN, sentence, "End that program, or choose another port: --port 8081, or --port 0."
    )


def _listener(port: int) -> str:
    """Who listens on a port, as far as the system tells us."""
    try:
        connections = psutil.net_connections("tcp")
    except psutil.AccessDenied:  # macOS tells this to administrators only
        return f"another program (`sudo lsof -i :{port}` names it)"
    pids = {
        one.pid
        for one in connections
        if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == port and one.pid
    }
    names = [named for pid in sorted(pids) if (named := _process(pid))]
    return ", ".join(names) or f"a program of another user (`sudo ss -ltnp 'sport = :{port}'` names it)"


def _process(pid: int) -> str | None:
    try:
        return f"{psutil.Process(pid).name()} (process {pid})"
    except psutil.Error:
        return None


def addresses_are_told(about: Situation) -> Iterator[Finding]:
    """Which addresses there are, and which one is shown and announced."""
    if not about.serves_network:
        sentence = f"The server listens on {about.settings.host}, for this machine only."
        yield Finding("addresses", Level.OK, sentence)
        return
    try:
        choice = choose(about.settings.advertise, about.settings.host)
    except StartupError as error:
        yield Finding("addresses", Level.BROKEN, *parted(error))
        return
    yield advertised(choice)


def advertised(choice: Choice) -> Finding:
    """What others are told, from a choice of addresses."""
    primary = choice.primary
    if primary.kind in {Kind.LOOPBACK, Kind.CONTAINER}:
        return Finding(
            "addresses",
            Level.BROKEN,
            f"This machine has no network address; {primary.address} is the best one ({primary.reason}).",
            "Connect it to the Wi-Fi or by cable.",
        )
    shown = f"{primary.address} on {primary.interface} is shown and announced ({primary.reason})."
    rivals = [one for one in choice.others if one.ip.version == 4 and one.kind in {Kind.LAN, Kind.LINK_LOCAL}]
    if primary.kind is Kind.LINK_LOCAL:
        return Finding("addresses", Level.WARNING, shown, "The router gave no address: reconnect, or look at its DHCP.")
    if rivals:
        others = ", ".join(f"{one.address} ({one.interface})" for one in rivals)
        remedy = f"Devices elsewhere need one of: {others}. To show it first: --advertise {rivals[0].interface}."
        return Finding("addresses", Level.HINT, f"{shown} There are several networks here.", remedy)
    return Finding("addresses", Level.OK, shown)


def no_vpn_in_the_way(about: Situation) -> Iterator[Finding]:
    yield vpn(candidates())


def vpn(found: list[Candidate]) -> Finding:
    """Whether the default route goes through a tunnel, from the machine's addresses."""
    tunnels = [one for one in found if one.kind is Kind.VPN]
    routed = next((one for one in tunnels if "default route" in one.reason), None)
    if routed is not None:
        return Finding(
            "vpn",
            Level.WARNING,
            f"All traffic goes through {routed.interface} ({routed.address}), a VPN. Many keep the local network out.",
            "Allow the local network in the VPN's settings (split tunnelling), or leave the VPN while serving.",
        )
    if tunnels:
        names = ", ".join(sorted({one.interface for one in tunnels}))
        return Finding("vpn", Level.OK, f"There are tunnels ({names}), and the default route is not among them.")
    return Finding("vpn", Level.OK, "No VPN.")


def devices_are_not_kept_apart(about: Situation) -> Iterator[Finding]:
    """Isolation cannot be seen from one device; whether neighbours are seen at all is the best hint."""
    if not about.serves_network:
        return
    text = _NEIGHBOURS.read_text() if sys.platform == "linux" and os.access(_NEIGHBOURS, os.R_OK) else ""
    seen = neighbours(text)
    remedy = (
        'If a phone on the same Wi-Fi gets no answer: guest networks, and "client isolation" or "AP isolation", keep '
        "devices apart. Use the main Wi-Fi, or switch that off in the router."
    )
    if seen > 1:
        yield Finding("isolation", Level.OK, f"{seen} other devices were met on the network lately.")
    else:
        yield Finding("isolation", Level.HINT, "No other device but the router was met on the network lately.", remedy)


def neighbours(table: str) -> int:
    """How many devices an ARP table of Linux knows for certain."""
    rows = [line.split() for line in table.splitlines()[1:]]
    return sum(len(row) >= 6 and int(row[2], 16) & _ARP_COMPLETE != 0 for row in rows)
