"""What the doctor finds on networks: real interfaces, filters and responders in namespaces."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pocketserver.cli.doctor import discovery, firewall, network
from pocketserver.cli.doctor.finding import Level
from pocketserver.cli.doctor.nftables import Packet, Verdict, verdict
from tests.lan.bed import LanBed, Machine, until
from tests.lan.conftest import lan_bed, lan_possible

__all__ = ["lan_bed", "lan_possible"]

pytestmark = pytest.mark.lan
COMMAND = (sys.executable, "-m", "pocketserver.cli.main")
NFT = "/usr/sbin/nft"


@pytest.fixture
def machine(lan_bed: LanBed) -> Machine:
    return lan_bed.machine("10.77.0.1/24", name="server")


@pytest.fixture(scope="session")
def nft() -> str:
    found = shutil.which("nft", path=f"{os.environ['PATH']}:/usr/sbin")
    if found is None and os.environ.get("CI"):
        pytest.fail("nft is needed in CI (Debian: nftables)")
    if found is None:
        pytest.skip("nft is not installed (Debian: nftables)")
    return found


def doctor(bed: LanBed, machine: Machine, *arguments: str) -> dict[str, dict[str, Any]]:
    words = ["env", f"POCKETSERVER_HOME={machine.folder / 'home'}", *COMMAND, "doctor", "--json", "--engine", "sim"]
    ran = bed.run_in(machine, [*words, *arguments], timeout_seconds=90)
    assert ran.stdout, ran.stderr
    return {row["name"]: row for row in json.loads(ran.stdout)}


def test_a_machine_on_one_network_hears_its_own_announcement(lan_bed: LanBed, machine: Machine) -> None:
    found = doctor(lan_bed, machine)

    assert {
        name: found[name]["level"] for name in ("addresses", "mdns", "vpn", "firewall", "responders")
    } == dict.fromkeys(("addresses", "mdns", "vpn", "firewall", "responders"), "ok")
    assert found["addresses"]["sentence"].startswith("10.77.0.1 on wlan0 is shown")
    assert found["isolation"]["level"] == "hint"


def test_a_running_server_is_heard_and_one_that_keeps_quiet_is_not(lan_bed: LanBed, machine: Machine) -> None:
    home = machine.folder / "home"
    for quiet, level in (((), "ok"), (("--no-mdns",), "warning")):
        ready = machine.folder / f"ready{len(quiet)}.json"
        words = [*COMMAND, "sim", "serve", "--home", str(home), "--port", "0", "--ready-json", str(ready), *quiet]
        server = lan_bed.start_in(machine, words)
        until(ready.exists, "the server")
        found = doctor(lan_bed, machine)
        server.terminate()
        server.wait(30)

        assert found["mdns"]["level"] == level, found["mdns"]


def test_a_second_network_and_a_vpn_are_told(lan_bed: LanBed, machine: Machine) -> None:
    lan_bed.decoy(machine, "eth1", "192.168.50.4/24")
    lan_bed.decoy(machine, "tun0", "10.200.0.2/24")
    lan_bed.ip(machine, "route", "replace", "default", "dev", "tun0")
    found = doctor(lan_bed, machine)

    assert found["addresses"]["level"] == "hint"
    assert "192.168.50.4 (eth1)" in found["addresses"]["remedy"] + found["addresses"]["sentence"]
    assert found["vpn"]["level"] == "warning"
    assert "tun0" in found["vpn"]["sentence"]


def test_a_filter_that_drops_is_found(lan_bed: LanBed, machine: Machine, nft: str) -> None:
    rules = "table inet f { chain i { type filter hook input priority 0; policy drop; iif lo accept; }; }"
    assert lan_bed.run_in(machine, [nft, rules]).returncode == 0
    found = doctor(lan_bed, machine)

    assert found["firewall"]["level"] in {"broken", "warning"}
    assert found["mdns"]["level"] == "warning"


def test_avahi_is_named_as_another_responder(lan_bed: LanBed, machine: Machine) -> None:
    lan_bed.start_avahi(machine)
    found = doctor(lan_bed, machine)

    assert "avahi-daemon" in found["responders"]["sentence"]
    assert found["mdns"]["level"] == "ok"


def test_no_network_at_all_is_broken(lan_possible: None, tmp_path: Path) -> None:
    ran = subprocess.run(
        ["unshare", "--net", *COMMAND, "doctor", "--json", "--engine", "sim"],
        env={**os.environ, "POCKETSERVER_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    found = {row["name"]: row for row in json.loads(ran.stdout)}

    assert found["addresses"]["level"] == "broken"
    assert found["mdns"]["level"] == "warning"
    assert ran.returncode == 1


INPUT = "type filter hook input priority 0;"
RULESETS = {
    "no rules": ("", Verdict.ACCEPTED),
    "the policy accepts": (f"chain i {{ {INPUT} policy accept; }}", Verdict.ACCEPTED),
    "the policy drops": (
        f"chain i {{ {INPUT} policy drop; iif lo accept; ct state established accept; }}",
        Verdict.BLOCKED,
    ),
    "the port is open": (f"chain i {{ {INPUT} policy drop; tcp dport 8080 accept; }}", Verdict.ACCEPTED),
    "a set has the port": (
        f"chain i {{ {INPUT} policy drop; tcp dport {{ 22, 8000-8100 }} accept; }}",
        Verdict.ACCEPTED,
    ),
    "another port is open": (f"chain i {{ {INPUT} policy drop; tcp dport {{ 22, 443 }} accept; }}", Verdict.BLOCKED),
    "the port is for udp": (f"chain i {{ {INPUT} policy drop; udp dport 8080 accept; }}", Verdict.BLOCKED),
    "rejected at the end": (f"chain i {{ {INPUT} policy accept; tcp dport 22 accept; reject; }}", Verdict.BLOCKED),
    "for one network": (f"chain i {{ {INPUT} policy drop; ip saddr 10.0.0.0/8 accept; }}", Verdict.UNSURE),
    "another chain decides": (
        f"chain o {{ tcp dport 8080 accept; }} chain i {{ {INPUT} policy drop; jump o; }}",
        Verdict.ACCEPTED,
    ),
    "another chain returns": (
        f"chain o {{ return; tcp dport 8080 accept; }} chain i {{ {INPUT} policy drop; jump o; }}",
        Verdict.BLOCKED,
    ),
    "all but the port": (f"chain i {{ {INPUT} policy accept; tcp dport != 22 drop; }}", Verdict.BLOCKED),
    "a named set": (
        f"set ports {{ type inet_service; elements = {{ 8080 }}; }} chain i {{ {INPUT} policy drop; tcp dport @ports accept; }}",
        Verdict.UNSURE,
    ),
    "one chain of two drops": (
        f"chain i {{ {INPUT} policy accept; }} chain j {{ type filter hook input priority 5; policy drop; }}",
        Verdict.BLOCKED,
    ),
}


@pytest.mark.parametrize("name", RULESETS)
def test_a_real_ruleset_is_read_rightly(lan_possible: None, nft: str, name: str) -> None:
    chains, wanted = RULESETS[name]
    parted = chains.replace("} chain", "}; chain") + ";"
    script = f"{nft} 'table inet f {{ {parted} }}' && {nft} -j list ruleset"
    ran = subprocess.run(["unshare", "--net", "sh", "-c", script], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr

    assert verdict(json.loads(ran.stdout), Packet("tcp", 8080)) is wanted


UFW = """Status: active
Logging: on (low)
Default: deny (incoming), allow (outgoing), disabled (routed)

To                         Action      From
--                         ------      ----
22/tcp                     ALLOW IN    Anywhere
8080/tcp                   ALLOW IN    192.168.0.0/16
"""


@pytest.mark.parametrize(
    ("status", "port", "level"), [(UFW, 8080, Level.OK), (UFW, 8081, Level.BROKEN), ("", 8080, Level.HINT)]
)
def test_what_ufw_says_is_understood(status: str, port: int, level: Level) -> None:
    found = firewall.ufw(status, port)

    assert found.level is level
    assert found.level is Level.OK or f"ufw allow {port}/tcp" in found.remedy


def test_an_avahi_that_shares_with_nobody_is_broken() -> None:
    assert discovery.shared(["avahi-daemon"], "[server]\ndisallow-other-stacks = yes\n").level is Level.BROKEN
    assert discovery.shared(["avahi-daemon"], "#disallow-other-stacks=yes\n").level is Level.OK
    assert discovery.shared([], "disallow-other-stacks=yes\n").level is Level.OK


def test_neighbours_are_counted_when_they_are_certain() -> None:
    table = (
        "IP address       HW type     Flags       HW address            Mask     Device\n"
        "192.168.1.1      0x1         0x2         02:00:00:00:00:01     *        wlan0\n"
        "192.168.1.7      0x1         0x2         02:00:00:00:00:07     *        wlan0\n"
        "192.168.1.9      0x1         0x0         00:00:00:00:00:00     *        wlan0\n"
    )

    assert network.neighbours(table) == 2
    assert network.neighbours("") == 0
