"""Firewalls: whether one is on and keeps the port closed. Only read, never changed."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from pocketserver.cli.doctor.finding import Finding, Level, Situation
from pocketserver.cli.doctor.nftables import Packet, Verdict, verdict

_SECONDS = 5.0
_MDNS = Packet("udp", 5353)
_UFW_CONFIGURATION = Path("/etc/ufw/ufw.conf")
_SYSTEM_FOLDERS = "/usr/sbin:/sbin:/usr/local/sbin"
_ELSEWHERE = {
    "darwin": "System Settings → Network → Firewall: allow incoming connections for Python. "
    "`/usr/libexec/ApplicationFirewall/socketfilterfw --getglobalstate` tells whether it is on.",
    "win32": "Windows asks at the first start; allow private networks, and set the Wi-Fi to private. Later, as "
    "administrator: `netsh advfirewall firewall add rule name=pocketserver dir=in action=allow protocol=TCP "
    "localport={port}`.",
}


def port_is_open(about: Situation) -> Iterator[Finding]:
    """The port that devices connect to, and the one of mDNS."""
    port = about.settings.port
    if not about.serves_network:
        yield Finding("firewall", Level.OK, "The server listens on this machine only; no firewall matters.")
    elif sys.platform != "linux":
        remedy = _ELSEWHERE.get(sys.platform, "Look at the system's firewall settings.").format(port=port)
        yield Finding(
            "firewall", Level.HINT, f"Whether a firewall keeps port {port} closed cannot be seen here.", remedy
        )
    else:
        yield from _linux(port)


def _linux(port: int) -> Iterator[Finding]:
    if _said("firewall-cmd", "--state")[:7] == "running":
        yield _firewalld(port)
    elif _ufw_is_on():
        yield ufw(_said("ufw", "status", "verbose"), port)
    else:
        yield from _nftables(port)


def _firewalld(port: int) -> Finding:
    if _said("firewall-cmd", f"--query-port={port}/tcp").startswith("yes"):
        return Finding("firewall", Level.OK, f"firewalld is on and lets port {port} through.")
    remedy = f"sudo firewall-cmd --add-port={port}/tcp --add-service=mdns (and again with --permanent)"
    return Finding("firewall", Level.BROKEN, f"firewalld keeps port {port} closed in the default zone.", remedy)


def ufw(status: str, port: int) -> Finding:
    """From what `ufw status verbose` says; empty when it may not be asked (it wants an administrator)."""
    remedy = f"sudo ufw allow {port}/tcp && sudo ufw allow 5353/udp"
    if "Status: active" not in status:
        asked = f"`sudo ufw status` tells whether it lets port {port} through; if not: {remedy}"
        return Finding("firewall", Level.HINT, "ufw is switched on.", asked)
    allowed = re.search(rf"^(?:{port}(?:/tcp)?|Anywhere)\s+ALLOW", status, re.MULTILINE)
    if allowed or re.search(r"Default: allow \(incoming\)", status):
        return Finding("firewall", Level.OK, f"ufw is on and lets port {port} through.")
    return Finding("firewall", Level.BROKEN, f"ufw keeps port {port} closed.", remedy)


def _ufw_is_on() -> bool:
    try:
        return bool(re.search(r"^ENABLED=yes", _UFW_CONFIGURATION.read_text(errors="replace"), re.MULTILINE))
    except OSError:
        return False


def _nftables(port: int) -> Iterator[Finding]:
    said = _said("nft", "-j", "list", "ruleset")
    try:
        ruleset = json.loads(said)
    except ValueError:
        sentence = "No ufw or firewalld is on. Other rules can only be read by an administrator, or there are none."
        yield Finding("firewall", Level.OK, sentence)
        return
    yield filtered(verdict(ruleset, Packet("tcp", port)), port)
    if verdict(ruleset, _MDNS) is Verdict.BLOCKED:
        remedy = "sudo nft insert rule inet filter input udp dport 5353 accept (with your table's and chain's names)"
        yield Finding("firewall", Level.WARNING, "The packet filter drops mDNS (UDP port 5353).", remedy)


def filtered(found: Verdict, port: int) -> Finding:
    """What a packet filter's verdict means."""
    remedy = f"sudo nft insert rule inet filter input tcp dport {port} accept (with your table's and chain's names)"
    match found:
        case Verdict.ACCEPTED:
            return Finding("firewall", Level.OK, f"The packet filter lets port {port} through.")
        case Verdict.BLOCKED:
            return Finding("firewall", Level.BROKEN, f"The packet filter drops what comes for port {port}.", remedy)
        case Verdict.UNSURE:
            sentence = f"A packet filter is on; whether it lets port {port} through depends on who connects."
            return Finding("firewall", Level.HINT, sentence, f"If devices get no answer: {remedy}")


def _said(program: str, *arguments: str) -> str:
    """A program's standard output; empty when it is not there, fails, or takes long."""
    found = shutil.which(program, path=f"{os.defpath}:{_SYSTEM_FOLDERS}")
    if found is None:
        return ""
    try:
        ran = subprocess.run(
            [found, *arguments],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
            env={"PATH": f"{os.defpath}:{_SYSTEM_FOLDERS}", "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ran.stdout if ran.returncode == 0 else ""
