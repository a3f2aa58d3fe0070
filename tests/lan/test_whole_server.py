"""Whole servers on a network of namespaces: found by avahi, read from the QR code's picture, chatted with by the SDK."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lan.bed import LanBed, Machine, Resolved, stop, until

pytestmark = pytest.mark.lan

SERVE = (sys.executable, "-m", "pocketserver.cli.main", "sim", "serve", "--speed", "max")
COMMAND = (sys.executable, "-m", "pocketserver.cli.main")
CHAT = """
import sys
from openai import OpenAI
with OpenAI(base_url=sys.argv[1], api_key=sys.argv[2]) as client:
    [model] = client.models.list()
    stream = client.chat.completions.create(
        model=model.id, messages=[{"role": "user", "content": "hi"}], stream=True)
    print("".join(chunk.choices[0].delta.content or "" for chunk in stream))
"""


class Server:
    """`pocketserver sim serve` on one machine of the bed, with its ready line."""

    def __init__(self, bed: LanBed, machine: Machine, *arguments: str, name: str = "server") -> None:
        self.bed, self.machine, self.name = bed, machine, name
        self.home = machine.folder / "home"
        ready = machine.folder / f"{name}.json"
        environment = ("env", f"POCKETSERVER_HOME={self.home}")
        self.process = bed.start_in(machine, [*environment, *SERVE, "--ready-json", str(ready), *arguments], name=name)
        self.ready: dict[str, Any] = json.loads(until(lambda: ready.exists() and ready.read_text(), "the ready line"))

    def command(self, *arguments: str) -> str:
        words = ["env", f"POCKETSERVER_HOME={self.home}", *COMMAND, *arguments, "--port", str(self.ready["port"])]
        return self.bed.run_in(self.machine, words).stdout

    @property
    def log(self) -> str:
        return (self.machine.folder / f"{self.name}.log").read_text()


@pytest.fixture
def client(lan_bed: LanBed) -> Machine:
    machine = lan_bed.machine("10.77.0.9/24", name="client")
    lan_bed.start_avahi(machine)
    return machine


def seen(bed: LanBed, client: Machine) -> dict[int, Resolved]:
    return {found.port: found for found in bed.browse(client)}


def chat(bed: LanBed, client: Machine, base_url: str, key: str) -> str:
    return bed.run_in(client, [sys.executable, "-c", CHAT, base_url, key]).stdout.strip()


def test_two_servers_are_found_scanned_and_chatted_with(
    lan_bed: LanBed, client: Machine, zbarimg: str, tmp_path: Path
) -> None:
    first = Server(lan_bed, lan_bed.machine("10.77.0.1/24", name="one"), "--port", "8080")
    second = Server(lan_bed, lan_bed.machine("10.77.0.2/24", name="two"), "--port", "8081")

    found = until(lambda: len(seen(lan_bed, client)) == 2 and seen(lan_bed, client), "both servers")
    picture = tmp_path / "code.png"
    first.command("qr", "--png", str(picture))
    scanned = subprocess.run([zbarimg, "-q", "--raw", str(picture)], capture_output=True, text=True, check=True)

    assert scanned.stdout.strip() == "http://10.77.0.1:8080/v1"
    assert len({server.name for server in found.values()}) == 2
    assert chat(lan_bed, client, scanned.stdout.strip(), first.ready["api_key"])
    other = found[8081]
    assert chat(lan_bed, client, f"http://{other.address}:{other.port}/v1", second.ready["api_key"])
    assert all("sk-" not in server.text for server in found.values())
    refused = lan_bed.run_in(client, [sys.executable, "-c", CHAT, "http://10.77.0.1:8080/v1", "sk-wrong"])
    assert "AuthenticationError" in refused.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_ends_says_goodbye(lan_bed: LanBed, client: Machine, number: signal.Signals) -> None:
    server = Server(lan_bed, lan_bed.machine("10.77.0.1/24", name="one"), "--port", "8080")
    until(lambda: seen(lan_bed, client), "the server")

    stop(server.process, number)

    until(lambda: not seen(lan_bed, client), "its removal")


def test_the_banner_shows_the_wifi_address_and_not_the_bridges(lan_bed: LanBed, client: Machine) -> None:
    machine = lan_bed.machine("10.77.0.1/24", name="one", default_route=False)
    lan_bed.decoy(machine, "docker0", "172.17.0.1/16")
    lan_bed.decoy(machine, "tun0", "10.8.0.2/24")
    server = Server(lan_bed, machine, "--port", "8080")

    found = until(lambda: seen(lan_bed, client), "the server")

    assert [server.address for server in found.values()] == ["10.77.0.1"]
    assert "Base URL   http://10.77.0.1:8080/v1" in server.log
    assert json.loads(server.command("status", "--json"))["base_url"] == "http://10.77.0.1:8080/v1"


def test_the_local_name_is_served_and_a_foreign_one_is_not(lan_bed: LanBed, client: Machine) -> None:
    server = Server(lan_bed, lan_bed.machine("10.77.0.1/24", name="one"), "--port", "8080")
    found = until(lambda: seen(lan_bed, client), "the server")
    ask = "import sys, urllib.request as u; r = u.Request('http://10.77.0.1:8080/health', headers={'Host': sys.argv[1]})\n"
    ask += "try: print(u.urlopen(r).status)\nexcept u.HTTPError as e: print(e.code)"

    def status(host: str) -> str:
        return lan_bed.run_in(client, [sys.executable, "-c", ask, host]).stdout.strip()

    until(lambda: status(found[8080].host) == "200", f"an answer under {found[8080].host}")
    assert status("evil.example:8080") == "403"
    assert status("10.77.0.77:8080") == "403"
    assert "Traceback" not in server.log


def test_discover_lists_a_running_server_as_json(lan_bed: LanBed, client: Machine) -> None:
    Server(lan_bed, lan_bed.machine("10.77.0.1/24", name="one"), "--port", "8080")
    until(lambda: seen(lan_bed, client), "the server")

    [heard] = json.loads(lan_bed.run_in(client, [*COMMAND, "discover", "--json"]).stdout)

    assert (heard["port"], heard["answers"]) == (8080, True)
