"""`pocketserver sim …` against a running simulator: each command, its words, and its exit code."""

import json
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from pocketserver.cli.sim import app
from pocketserver.errors import StartupError, UsageError
from pocketserver.simulator.faults import FAULTS
from tests.test_serve_command import Started

HI = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """One simulator for the module; each test resets it."""
    server = Started(tmp_path_factory.mktemp("home"), "--device", "iphone-15-pro", "--no-mdns")
    yield server
    server.process.terminate()
    server.finish()


@pytest.fixture(autouse=True)
def fresh(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POCKETSERVER_HOME", str(started.home))
    assert sim("reset").exit_code == 0


def sim(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments])


def error(result: Result, kind: type[StartupError]) -> str:
    assert isinstance(result.exception, kind), result.output
    return str(result.exception)


def asked(started: Started) -> tuple[int, Any]:
    try:
        with started.ask("/v1/chat/completions", HI) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)


def test_status_shows_the_device() -> None:
    shown = json.loads(sim("status", "--json").stdout)

    assert (shown["device"], shown["thermal"], shown["speed"]) == ("iphone-15-pro", "nominal", "max")
    assert "iphone-15-pro" in sim("status").stdout


def test_set_changes_it_and_names_a_wrong_word() -> None:
    assert "serious" in sim("set", "thermal=serious", "low_power=true").stdout
    assert "thermal" in error(sim("set", "thermal=boiling"), UsageError)
    assert "NAME=VALUE" in error(sim("set", "thermal"), UsageError)


def test_a_fault_strikes_as_it_was_asked_to(started: Started) -> None:
    assert sim("fault", "model_busy", "retry_after=2", "--next", "1").stdout == "fault-1\n"

    status, document = asked(started)
    assert (status, document["error"]["code"]) == (429, "model_busy")
    assert asked(started)[0] == 200
    assert "seconds" in error(sim("fault", "delay_headers"), UsageError)


def test_a_rule_is_text_or_json(started: Started) -> None:
    sim("rule", "Hello!", "--times", "1")
    assert asked(started)[1]["choices"][0]["message"]["content"] == "Hello!"
    sim("rule", '{"tool_calls": [{"name": "clock"}]}')
    assert asked(started)[1]["choices"][0]["finish_reason"] == "tool_calls"


def test_requests_and_the_report_tell_what_clients_did(started: Started) -> None:
    sim("fault", "model_busy")
    asked(started)
    asked(started)

    assert sim("requests", "--last", "2").stdout.count("/v1/chat/completions") == 2
    assert started.ready["api_key"] not in sim("requests", "--json").stdout
    report = sim("report")
    assert report.exit_code == 1
    assert "ignored_retry_after" in report.stdout


def test_time_and_stories_move_on_command(tmp_path: Path) -> None:
    assert "minutes" in sim("play", "overheating").stdout
    sim("advance", "80")
    assert json.loads(sim("status", "--json").stdout)["thermal"] == "serious"

    own = tmp_path / "own.toml"
    own.write_text('summary = "mine"\n[[step]]\nat_seconds = 0\nset = { battery = 3 }\n')
    assert sim("play", str(own)).stdout == "mine\n"
    assert json.loads(sim("status", "--json").stdout)["battery"] == 3


def test_every_fault_is_listed_without_a_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POCKETSERVER_HOME", str(tmp_path))

    listed = sim("faults").stdout
    assert all(name in listed for name in FAULTS)
    assert json.loads(sim("faults", "--json").stdout).keys() == FAULTS.keys()
    assert "No server is running" in error(sim("status"), UsageError)
