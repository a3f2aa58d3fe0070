"""`pocketserver models`: what it prints where, against a home folder of its own."""

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pocketserver.cli.models import app
from pocketserver.errors import StartupError
from pocketserver.models.settings_file import read_settings
from tests.models.gguf_builder import gguf, write_model
from tests.models.test_ollama_folder import blob, manifest
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


def run(home: Path, *words: str, ollama: Path | None = None) -> Result:
    outside = {"POCKETSERVER_HOME": str(home), "OLLAMA_MODELS": str(ollama or home / "none")}
    environment = {**offline_pip(home.parent / "wheels"), **outside}
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


def test_a_model_is_made_copied_shown_found_and_removed(home: Path, tmp_path: Path) -> None:
    (tmp_path / "Modelfile").write_text(
        'FROM ./outside.gguf\nSYSTEM Be brief.\nPARAMETER stop "END"\nRENDERER x\nTEMPLATE "{{ .Prompt }}"\n'
    )
    write_model(tmp_path / "outside.gguf")

    made = run(home, "create", "brief:v1", "-f", str(tmp_path / "Modelfile"))
    copied = run(home, "cp", "BRIEF:v1", "short")
    shown = run(home, "show", "short")
    written = run(home, "show", "short", "--modelfile")
    found = run(home, "path", "brief:V1")

    assert [each.exit_code for each in (made, copied, shown, written, found)] == [0] * 5
    assert (made.stdout, copied.stdout) == ("", "")
    assert "warning: RENDERER (line 4) has no effect here." in made.stderr
    assert "warning: The template is written for Go" in made.stderr
    assert {"System       Be brief.", "Made from    outside"} < set(shown.stdout.splitlines())
    assert {"FROM short", "PARAMETER stop END"} < set(written.stdout.splitlines())
    assert found.stdout == f"{home / 'models' / 'brief@v1.gguf'}\n"
    assert json.loads(run(home, "show", "short", "--json").stdout)["model"]["name"] == "short:latest"
    assert run(home, "rm", "brief:v1").exit_code == 0
    assert {"short", "mine"} < set(states(home))


@pytest.mark.parametrize(
    ("modelfile", "said"),
    [
        ("FROM mine\nPARAMETER x 1", "Modelfile line 2: unknown parameter 'x'"),
        ("FROM nope", "model 'nope' not found"),
        (None, "cannot be read: No such file or directory. Name it with -f."),
    ],
)
def test_a_model_that_cannot_be_made_is_explained_in_one_line(modelfile: str | None, said: str, home: Path) -> None:
    if modelfile is not None:
        (home / "Modelfile").write_text(modelfile)

    ended = run(home, "create", "new", "-f", str(home / "Modelfile"))

    assert isinstance(ended.exception, StartupError)
    assert said in str(ended.exception)
    assert "new" not in states(home)


def test_ollamas_folder_is_listed_in_place(home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ollama"
    manifest(folder, "registry.ollama.ai/library/theirs/q4", model=blob(folder, gguf()))

    listed = run(home, "list", "--json", ollama=folder)

    assert "theirs:q4" in {row["id"] for row in json.loads(listed.stdout)["models"]}


def test_the_documents_commands_and_catalogue_work_as_they_stand(home: Path, tmp_path: Path) -> None:
    document = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    [commands] = re.findall(r"```sh\n(.*?)```", document, re.DOTALL)
    catalogue = next(text for text in re.findall(r"```toml\n(.*?)```", document, re.DOTALL) if "source" in text)
    (home / "catalog.toml").write_text(catalogue)
    write_model(home / "models" / "tiny.gguf")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "POCKETSERVER_HOME": str(home),
        "OLLAMA_MODELS": str(tmp_path / "none"),
    }

    ran = subprocess.run(
        ["sh", "-ec", commands], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )

    for name in ("corsair:v2", "small", "small:hub"):
        assert re.search(rf"^{name} ", ran.stdout, re.MULTILINE)
    assert f"{home / 'models' / 'pirate.gguf'}\n" in ran.stdout
    assert not (home / "models" / "pirate.gguf").exists()


def test_the_settings_file_in_the_document_is_one(tmp_path: Path) -> None:
    document = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    text = next(text for text in re.findall(r"```toml\n(.*?)```", document, re.DOTALL) if "[[messages]]" in text)
    (tmp_path / "tiny.toml").write_text(text)

    assert read_settings(tmp_path / "tiny.toml").parameters == {"temperature": 0.2, "stop": ["Captain:"]}
