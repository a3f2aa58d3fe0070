"""Servers on a local network of namespaces, seen by avahi and by `pocketserver discover`.

One bed a group of promises: starting avahi costs a second, so it is shared where servers do not disturb each other.
"""

import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.lan.bed import LanBed, Machine, Resolved, stop, until

pytestmark = pytest.mark.lan

ANNOUNCER = Path(__file__).with_name("announcer.py")
TYPES = ("_pocketllm._tcp", "_openai._tcp", "_http._tcp")
ODD_NAME = 'Ann\'s v1.2 \\ "box" é猫.local'


class Announcer:
    """One announcing program inside a machine."""

    def __init__(self, bed: LanBed, machine: Machine, *words: str, name: str = "announcer") -> None:
        home = str(machine.folder / "home")
        argv = [sys.executable, "-m", "tests.lan.announcer", "--home", home, *words]
        self.process = bed.start_in(machine, argv, name=name)
        self._log = machine.folder / f"{name}.log"

    def statuses(self) -> list[dict[str, object]]:
        lines = self._log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def status(self, state: str) -> dict[str, object]:
        """Wait until the newest status is in this state."""

        def newest() -> dict[str, object] | None:
            statuses = self.statuses()
            return statuses[-1] if statuses and statuses[-1]["state"] == state else None

        return until(newest, f"the state {state}: {self._log.read_text()}")


@pytest.fixture
def client(lan_bed: LanBed) -> Machine:
    machine = lan_bed.machine("10.77.0.9/24", name="client")
    lan_bed.start_avahi(machine)
    return machine


def seen(bed: LanBed, client: Machine, kind: str = TYPES[0]) -> dict[str, Resolved]:
    return {found.name: found for found in bed.browse(client, kind)}


def addresses_of(found: dict[str, Resolved]) -> set[str]:
    return {server.address for server in found.values()}


def wait_for(bed: LanBed, client: Machine, *names: str) -> dict[str, Resolved]:
    return until(
        lambda: found if set(names) == set(found := seen(bed, client)) else None, f"{names} to be seen by avahi"
    )


def places_of(found: dict[str, Resolved]) -> set[tuple[str, int]]:
    return {(server.address, server.port) for server in found.values()}


def discover(bed: LanBed, machine: Machine, *words: str) -> subprocess.CompletedProcess[str]:
    return bed.run_in(machine, [sys.executable, "-m", "tests.lan.commands", "discover", *words])


def test_avahi_finds_a_server_under_exactly_its_name_and_loses_it_at_once(lan_bed: LanBed, client: Machine) -> None:
    machine = lan_bed.machine("10.77.0.1/24")
    announcer = Announcer(lan_bed, machine, "--name", ODD_NAME, "--port", "8085")
    status = announcer.status("advertised")

    found = until(lambda: found if len(found := lan_bed.browse(client, None)) >= 3 else None, "three services")
    assert {server.type for server in found} <= {*TYPES, "Web Site"}
    assert {server.name for server in found} == {ODD_NAME}
    for server in found:
        assert (server.address, server.port) == ("10.77.0.1", 8085)
        assert f"{server.host}." == status["host_name"]
        assert all(pair in server.text for pair in ('"txtvers=1"', '"model=tiny"', '"state=ready"'))

    [heard] = json.loads(discover(lan_bed, client, "--json", "--seconds", "1").stdout)
    assert heard["name"] == ODD_NAME
    assert heard["base_url"] == "http://10.77.0.1:8085/v1"
    assert heard["answers"] is True
    assert heard["types"] == sorted(TYPES)

    announcer.process.send_signal(signal.SIGUSR1)
    until(lambda: '"state=busy"' in seen(lan_bed, client)[ODD_NAME].text, "the new state", timeout_seconds=20)

    stop(announcer.process)
    until(lambda: not seen(lan_bed, client), "the goodbye", timeout_seconds=5)


def test_a_name_of_63_bytes_is_announced_and_a_longer_one_cut(lan_bed: LanBed, client: Machine) -> None:
    Announcer(lan_bed, lan_bed.machine("10.77.0.1/24"), "--name", "é" * 40)
    Announcer(lan_bed, lan_bed.machine("10.77.0.2/24"), "--name", "x" * 63)

    wait_for(lan_bed, client, "é" * 31, "x" * 63)


def test_servers_of_one_name_rename_themselves_and_all_stay_visible(lan_bed: LanBed, client: Machine) -> None:
    first, second = lan_bed.machine("10.77.0.1/24"), lan_bed.machine("10.77.0.2/24")
    together = [Announcer(lan_bed, machine) for machine in (first, second)]
    on_one_machine = Announcer(lan_bed, first, "--port", "8081", name="beside")
    names = ("pocketserver", "pocketserver (2)", "pocketserver (3)")

    places = {("10.77.0.1", 8080), ("10.77.0.2", 8080), ("10.77.0.1", 8081)}

    found = until(  # a listener may hold a name's old address for a moment after its owner changed
        lambda: found if places_of(found := wait_for(lan_bed, client, *names)) == places else None, f"{places}"
    )

    assert len({server.host for server in found.values()}) == 3
    told = {str(one.status("advertised")["name"]) for one in (*together, on_one_machine)}
    assert told == set(names)
    renamed = [one for one in (*together, on_one_machine) if one.status("advertised")["name"] != "pocketserver"]
    assert all("is taken on this network" in str(one.status("advertised")["sentence"]) for one in renamed)

    late = Announcer(lan_bed, lan_bed.machine("10.77.0.3/24"))
    assert late.status("advertised")["name"] == "pocketserver (4)"
    gone = on_one_machine.status("advertised")["name"]
    stop(on_one_machine.process)
    found = wait_for(lan_bed, client, *({*names, "pocketserver (4)"} - {gone}))
    assert addresses_of(found) == {"10.77.0.1", "10.77.0.2", "10.77.0.3"}
    assert found["pocketserver (4)"].address == "10.77.0.3"
    assert all(one.process.poll() is None for one in (*together, late))


def test_a_killed_server_is_marked_and_its_restart_replaces_it(lan_bed: LanBed, client: Machine) -> None:
    machine = lan_bed.machine("10.77.0.1/24")
    killed = Announcer(lan_bed, machine, "--port", "8080")
    wait_for(lan_bed, client, "pocketserver")

    stop(killed.process, signal.SIGKILL)
    # Nothing withdrew it: a listener that cached it goes on showing it, but not as answering.
    follower = lan_bed.start_in(
        client,
        [sys.executable, "-m", "tests.lan.commands", "discover", "--json", "--follow", "--seconds", "1"],
        name="follow",
    )
    again = Announcer(lan_bed, machine, "--port", "8099", name="again")
    again.status("advertised")

    server = until(
        lambda: found if (found := seen(lan_bed, client)["pocketserver"]).port == 8099 else None,
        "the new port",
    )
    assert server.name == "pocketserver"

    log = client.folder / "follow.log"
    until(lambda: '"port": 8099' in log.read_text(), "discover to hear of the new port")
    stop(again.process, signal.SIGKILL)
    until(lambda: '"answers": false' in log.read_text(), "discover to notice that it does not answer")
    assert all(json.loads(line) for line in log.read_text().splitlines())
    stop(follower)


@pytest.mark.parametrize("words", [(), ("--advertise", "wlan0")], ids=["any interface", "one interface"])
def test_a_new_address_replaces_the_old_one(lan_bed: LanBed, client: Machine, words: tuple[str, ...]) -> None:
    machine = lan_bed.machine("10.77.0.1/24")
    announcer = Announcer(lan_bed, machine, *words)
    wait_for(lan_bed, client, "pocketserver")

    lan_bed.ip(machine, "address", "flush", "dev", "wlan0")
    announcer.status("no_address")
    lan_bed.ip(machine, "address", "add", "10.77.0.51/24", "dev", "wlan0")

    assert announcer.status("advertised")["addresses"] == ["10.77.0.51"]
    until(
        lambda: [found.address for found in lan_bed.browse(client)] == ["10.77.0.51"],
        "avahi to know the new address, and only that",
    )
    assert announcer.status("advertised")["name"] == "pocketserver"


def test_a_copied_home_folder_does_not_make_two_hosts_fight_over_a_name(lan_bed: LanBed) -> None:
    machines = [lan_bed.machine(f"10.77.0.{number}/24") for number in (1, 2)]
    home = str(lan_bed.shared_folder)
    announcers = [Announcer(lan_bed, one, "--home", home, "--name", one.namespace) for one in machines]

    until(
        lambda: len({one.status("advertised")["host_name"] for one in announcers}) == 2,
        "the two to have different host names",
    )


@pytest.mark.parametrize("default_route", [True, False], ids=["default route", "no default route"])
def test_only_the_lan_address_is_announced_beside_docker_and_vpn(lan_bed: LanBed, default_route: bool) -> None:
    client = lan_bed.machine("192.168.50.9/24", name="client")
    lan_bed.start_avahi(client)
    machine = lan_bed.machine("192.168.50.20/24", default_route=default_route)
    lan_bed.decoy(machine, "docker0", "172.17.0.1/16")
    lan_bed.decoy(machine, "tun0", "10.8.0.2/24")
    announcer = Announcer(lan_bed, machine)

    assert addresses_of(wait_for(lan_bed, client, "pocketserver")) == {"192.168.50.20"}
    assert announcer.status("advertised")["addresses"] == ["192.168.50.20"]


def test_each_link_hears_that_links_address(lan_bed: LanBed, tmp_path: Path) -> None:
    machine = lan_bed.machine("10.77.0.1/24")
    other_folder = tmp_path / "other"
    other_folder.mkdir()
    with LanBed(other_folder) as other:
        other.attach(machine, "eth0", "10.88.0.1/24")
        here, there = lan_bed.machine("10.77.0.9/24"), other.machine("10.88.0.9/24")
        lan_bed.start_avahi(here)
        other.start_avahi(there)
        announcer = Announcer(lan_bed, machine)
        assert announcer.status("advertised")["addresses"] == ["10.77.0.1", "10.88.0.1"]

        assert addresses_of(wait_for(lan_bed, here, "pocketserver")) == {"10.77.0.1"}
        assert addresses_of(wait_for(other, there, "pocketserver")) == {"10.88.0.1"}


def test_a_responder_on_the_same_machine_is_no_obstacle(lan_bed: LanBed, client: Machine) -> None:
    machine = lan_bed.machine("10.77.0.1/24")
    lan_bed.start_avahi(machine, host_name="serverhost")
    Announcer(lan_bed, machine).status("advertised")

    wait_for(lan_bed, client, "pocketserver")
    assert "pocketserver" in seen(lan_bed, machine)


def test_without_port_5353_the_server_goes_on_and_says_so(lan_bed: LanBed) -> None:
    machine = lan_bed.machine("10.77.0.1/24")
    lan_bed.start_in(machine, [sys.executable, "-c", HOLD_PORT], name="holder")
    until(lambda: "held" in (machine.folder / "holder.log").read_text(), "the port to be held")
    announcer = Announcer(lan_bed, machine)

    assert "other devices have to be told the address" in str(announcer.status("failed")["sentence"])
    answer = lan_bed.run_in(machine, [sys.executable, "-c", ASK_HEALTH])
    assert answer.stdout.strip() == "200"
    told = discover(lan_bed, machine, "--seconds", "1")
    assert told.returncode == 1
    assert told.stderr.startswith("pocketserver: mDNS cannot be heard")
    assert "Traceback" not in told.stderr


def test_hostile_neighbours_are_shown_escaped_and_break_nothing(lan_bed: LanBed, client: Machine) -> None:
    Announcer(lan_bed, lan_bed.machine("10.77.0.1/24"), "--name", "honest").status("advertised")
    hostile = lan_bed.machine("10.77.0.66/24", name="hostile")
    lan_bed.start_in(hostile, [sys.executable, "-m", "tests.lan.hostile", "10.77.0.66"], name="hostile")
    until(lambda: "sent" in (hostile.folder / "hostile.log").read_text(), "the hostile packets")

    with ThreadPoolExecutor() as threads:
        both = [threads.submit(discover, lan_bed, client, "--seconds", "2", *words) for words in (("--json",), ())]
    as_json, as_text = (one.result() for one in both)

    heard = {server["name"]: server for server in json.loads(as_json.stdout)}
    assert heard["honest"]["answers"] is True
    assert any("\x1b[31m" in name for name in heard), "the hostile name was heard at all"
    assert not any(server["answers"] for name, server in heard.items() if name != "honest")
    assert "honest" in as_text.stdout
    assert "\\x1b[31m" in as_text.stdout
    controls = [character for character in as_text.stdout + as_json.stdout if not character.isprintable()]
    assert set(controls) <= {"\n"}
    assert "Traceback" not in as_text.stderr + as_json.stderr


def test_without_a_network_discover_explains_itself(lan_bed: LanBed) -> None:
    machine = lan_bed.machine("10.77.0.1/24")
    lan_bed.ip(machine, "address", "flush", "dev", "wlan0")

    told = discover(lan_bed, machine)

    assert (told.returncode, told.stdout) == (1, "")
    assert "Connect it to a network first" in told.stderr


HOLD_PORT = """
import socket, time
held = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
held.bind(("", 5353))
print("held", flush=True)
time.sleep(600)
"""

ASK_HEALTH = """
import urllib.request
print(urllib.request.urlopen("http://127.0.0.1:8080/health", timeout=5).status)
"""
