"""`pocketserver key`: what stands on standard output, and how faults end."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pocketserver.gate.keys import KeyStore


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = "import sys; from pocketserver.cli.main import main; sys.argv[0] = 'pocketserver'; main()"
    return subprocess.run(
        [sys.executable, "-c", program, "key", *arguments],
        env={**os.environ, "POCKETSERVER_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_show_prints_the_main_key_alone(home: Path) -> None:
    shown = run(home, "show")

    assert shown.stdout == KeyStore(home).main_key() + "\n"
    assert shown.stderr == ""
    assert run(home, "show").stdout == shown.stdout


def test_new_prints_a_key_that_works_and_list_does_not(home: Path) -> None:
    made = run(home, "new", "ann", "--scope", "metrics", "--scope", "chat")
    listed = run(home, "list", "--json")

    identity = KeyStore(home).authenticate([f"Bearer {made.stdout.strip()}"])
    assert (identity.name, identity.scopes) == ("ann", {"chat", "metrics"})
    assert [(key["name"], key["scopes"]) for key in json.loads(listed.stdout)] == [("ann", ["chat", "metrics"])]
    assert made.stdout.strip() not in listed.stdout
    assert "ann" in run(home, "list").stdout


def test_revoke_takes_the_key_away(home: Path) -> None:
    run(home, "new", "ann")

    assert run(home, "revoke", "ann").returncode == 0
    assert not KeyStore(home).is_valid("ann")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["new", "a b"], 2, "cannot be named"),
        (["new", "ann", "--scope", "root"], 2, "chat, metrics, admin"),
        (["revoke", "nobody"], 1, "no key named 'nobody'"),
    ],
)
def test_faults_are_one_line_that_says_what_is_allowed(home: Path, arguments: list[str], code: int, words: str) -> None:
    ended = run(home, *arguments)

    assert ended.returncode == code
    assert words in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert ended.stdout == ""
