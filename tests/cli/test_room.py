"""`pocketserver room` and `serve --room`, as a person types them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pocketserver.cli.main import with_own_room
from pocketserver.lan.names import Description, text_record
from pocketserver.settings import load
from tests.test_serve_command import Started

COMMAND = [sys.executable, "-m", "pocketserver.cli.main"]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["serve", "--room"], ["serve", "--room=auto"]),
        (["serve", "--room", "--no-mdns"], ["serve", "--room=auto", "--no-mdns"]),
        (["serve", "--room", "4TKG9P", "--no-mdns"], ["serve", "--room", "4TKG9P", "--no-mdns"]),
        (["room", "guests"], ["room", "guests"]),
        ([], []),
    ],
)
def test_a_room_without_a_code_is_this_folders_own(typed: list[str], meant: list[str]) -> None:
    assert with_own_room(typed) == meant


def test_a_room_lets_requests_wait_unless_somebody_says_otherwise() -> None:
    assert load(flags={"room": "auto"}, environment={}).settings.admission == "queue"
    assert load(flags={"room": "auto", "admission": "mutex"}, environment={}).settings.admission == "mutex"
    assert load(flags={}, environment={}).settings.admission == "mutex"


def test_the_code_is_in_the_record_that_others_hear() -> None:
    assert text_record(Description(version="1", room="4TKG9P"), "id")["room"] == "4TKG9P"
    assert "room" not in text_record(Description(version="1"), "id")


def test_the_owner_sees_and_closes_the_room(tmp_path: Path) -> None:
    server = Started(tmp_path, "--room", "4TKG9P")
    try:

        def run(*words: str) -> subprocess.CompletedProcess[str]:
            environment = {"POCKETSERVER_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
            argv = [*COMMAND, "room", *words]
            return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)

        assert json.loads(run("guests", "--json").stdout) == {
            "code": "4TKG9P", "open": True, "api_clients": True, "guests": [],
        }  # fmt: skip
        nobody = run("kick", "nobody")
        assert (nobody.returncode, "no guest named" in nobody.stderr) == (2, True)
        assert "off" in run("clients", "off").stdout
        assert run("close").returncode == 0
        after = json.loads(run("guests", "--json").stdout)
        assert (after["open"], after["api_clients"]) == (False, False)
    finally:
        server.process.kill()
        server.finish()
