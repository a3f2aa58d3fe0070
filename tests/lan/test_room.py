"""A room over a real network: a host with the real model, two guests, each in a network namespace of its own."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lan.bed import LanBed, Machine, stop, until

pytestmark = pytest.mark.lan

CODE = "4TKG9P"
COMMAND = [sys.executable, "-m", "pocketserver.cli.main"]
OPENAI = """
import sys
from openai import OpenAI
with OpenAI(base_url="http://127.0.0.1:8080/v1", api_key="unused", max_retries=0) as client:
    [model] = [model.id for model in client.models.list()]
    stream = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": sys.argv[1]}], stream=True, max_tokens=int(sys.argv[2]),
        temperature=0)
    try:
        for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                print(chunk.choices[0].delta.content, end="", flush=True)
    except Exception as error:
        print(f"\\n{type(error).__name__} {getattr(error, 'code', '')}", flush=True)
"""
ANTHROPIC = """
import sys
from anthropic import Anthropic
with Anthropic(base_url="http://127.0.0.1:8080", api_key="unused", max_retries=0) as client:
    [model] = [model.id for model in client.models.list()]
    message = client.messages.create(
        model=model, max_tokens=int(sys.argv[2]), messages=[{"role": "user", "content": sys.argv[1]}])
    print(message.content[0].text)
"""
GET = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())"


class Program:
    """`pocketserver serve` or `join` on one machine of the bed, with its ready line."""

    def __init__(self, bed: LanBed, machine: Machine, *arguments: str, name: str, **environment: str) -> None:
        self.bed, self.machine, self.name = bed, machine, name
        self.home = machine.folder / "home"
        ready = machine.folder / f"{name}.json"
        ready.unlink(missing_ok=True)
        variables = {"POCKETSERVER_HOME": str(self.home), **environment}
        argv = ["env", *(f"{key}={value}" for key, value in variables.items()), *COMMAND, *arguments]
        self.process = bed.start_in(machine, [*argv, "--ready-json", str(ready)], name=name)
        text = until(lambda: ready.exists() and ready.read_text(), f"{name} to be ready", timeout_seconds=90)
        self.ready: dict[str, Any] = json.loads(text)

    def command(self, *arguments: str) -> str:
        return self.bed.run_in(self.machine, ["env", f"POCKETSERVER_HOME={self.home}", *COMMAND, *arguments]).stdout

    @property
    def log(self) -> str:
        return (self.machine.folder / f"{self.name}.log").read_text()

    def health(self) -> dict[str, Any]:
        answer = self.bed.run_in(self.machine, [sys.executable, "-c", GET, "http://127.0.0.1:8080/health"]).stdout
        found: dict[str, Any] = json.loads(answer)
        return found

    def chat(self, script: str, text: str = "Say hello.", tokens: int = 12) -> str:
        argv = [sys.executable, "-c", script, text, str(tokens)]
        done = self.bed.run_in(self.machine, argv, timeout_seconds=90)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


def host(bed: LanBed, machine: Machine, model: Path, name: str) -> Program:
    serve = ["serve", "--profile", "hub", "--model", str(model), "--room", CODE, "--port", "8080", "--tuning", "off"]
    return Program(bed, machine, *serve, name=name)


def guest(bed: LanBed, machine: Machine, key: str, name: str) -> Program:
    join = ["join", CODE, "--port", "8080", "--wait", "60", "--name", name]
    return Program(bed, machine, *join, name=name, POCKETSERVER_ROOM_KEY=key)


@pytest.mark.real_model
def test_two_guests_chat_one_is_kicked_and_the_host_dies_and_comes_back_elsewhere(
    lan_bed: LanBed, default_model_path: Path
) -> None:
    machine = lan_bed.machine("10.77.0.1/24", name="host")
    serving = host(lan_bed, machine, default_model_path, "first")
    key = serving.ready["api_key"]
    one = guest(lan_bed, lan_bed.machine("10.77.0.2/24", name="one"), key, "one")
    two = guest(lan_bed, lan_bed.machine("10.77.0.3/24", name="two"), key, "two")

    until(lambda: one.health()["ready"] and two.health()["ready"], "both guests to be ready", timeout_seconds=60)
    model = one.health()["model"]
    assert one.health() == {
        "ok": True, "room": CODE, "connected": True, "ready": True, "model": model, "ctx": 8192, "queue": 0, "served": 0
    }  # fmt: skip
    assert model.startswith("pooled/")
    for client in (OPENAI, ANTHROPIC):
        assert one.chat(client)
        assert two.chat(client)
    assert one.health()["served"] == two.health()["served"] == 2
    assert {found["name"] for found in json.loads(serving.command("room", "guests", "--json"))["guests"]} == {
        "one",
        "two",
    }

    assert "was disconnected" in serving.command("room", "kick", "two", "--reason", "Enough for today.")
    until(lambda: two.health().get("closed") == "Enough for today.", "the kick to arrive")
    assert not two.health()["connected"]

    # kill -9 in mid-stream, and back under another address
    talking = lan_bed.start_in(
        one.machine,
        [sys.executable, "-u", "-c", OPENAI, "Count from one to a thousand, in words.", "2000"],
        name="talk",
    )
    said = one.machine.folder / "talk.log"
    until(lambda: len(said.read_text()) > 20, "the answer to begin", timeout_seconds=60)
    _kill(serving)
    until(lambda: talking.poll() is not None, "the stream to end")
    assert said.read_text().rstrip().endswith("APIError host_gone")
    until(lambda: not one.health()["connected"], "the loss to be seen")
    assert "closed" not in one.health()

    lan_bed.ip(machine, "address", "del", "10.77.0.1/24", "dev", "wlan0")
    lan_bed.ip(machine, "address", "add", "10.77.0.7/24", "dev", "wlan0")
    lan_bed.ip(machine, "route", "replace", "default", "dev", "wlan0")
    again = host(lan_bed, machine, default_model_path, "second")
    assert again.ready["api_key"] == key
    until(lambda: one.health()["ready"], "the guest to find its host again", timeout_seconds=90)
    assert one.chat(OPENAI)
    assert "10.77.0.7" in one.log
    assert not two.health()["connected"], "whoever was kicked stays away"
    for program in (one, two):
        stop(program.process)
        assert "Traceback" not in program.log
        assert key not in program.log
    assert "Traceback" not in again.log


def _kill(program: Program) -> None:
    """The server and the process of its model, as a power cut does."""
    pid = program.ready["pid"]
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for number in (pid, *map(int, children)):
        os.kill(number, signal.SIGKILL)


def test_joining_without_a_host_serves_all_the_same_and_says_so(lan_bed: LanBed) -> None:
    machine = lan_bed.machine("10.77.0.2/24", name="one")
    join = ["join", CODE, "--port", "8080", "--wait", "0.5"]
    alone = Program(lan_bed, machine, *join, name="alone", POCKETSERVER_ROOM_KEY="sk-whatever-it-is")

    assert alone.ready["model"] is None
    assert alone.health() == {
        "ok": True, "room": CODE, "connected": False, "ready": False, "model": None, "ctx": None, "queue": 0, "served": 0
    }  # fmt: skip


def test_joining_without_a_key_or_a_code_is_one_line(lan_bed: LanBed) -> None:
    machine = lan_bed.machine("10.77.0.2/24", name="one")
    cases = (
        (["join", CODE], "", "POCKETSERVER_ROOM_KEY"),
        (["join", "nonsense"], "sk-something", "no room code"),
        (["join", CODE, "--no-mdns"], "sk-something", "--url"),
    )
    for arguments, key, words in cases:
        environment = [f"POCKETSERVER_HOME={machine.folder}", f"POCKETSERVER_ROOM_KEY={key}"]
        done = lan_bed.run_in(machine, ["env", *environment, *COMMAND, *arguments])
        assert done.returncode == 2
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 1
