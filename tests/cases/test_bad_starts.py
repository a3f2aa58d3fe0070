"""Starts that cannot be: each ends in one sentence and exit code 1, before a port is open or native code runs."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pocketserver.gate.keys import KeyStore
from tests.test_serve_command import run

SIM = ["serve", "--engine", "sim", "--host", "127.0.0.1", "--port", "0"]


def broken_keys(home: Path) -> None:
    home.mkdir()
    path = home / "keys.json"
    path.write_text("[")
    path.chmod(0o600)


@pytest.mark.parametrize(
    ("prepare", "arguments", "word"),
    [
        (broken_keys, [], "keys.json is not a key file"),
        (lambda home: home.touch(), [], "cannot be"),
        (Path.mkdir, ["--ready-json", "/nonexistent/ready"], "--ready-json"),
        (Path.mkdir, ["--ready-json", "/"], "--ready-json"),
    ],
)
def test_a_start_that_cannot_be_is_one_sentence(
    tmp_path: Path, prepare: Callable[[Path], None], arguments: list[str], word: str
) -> None:
    home = tmp_path / "home"
    prepare(home)
    ended = run(home, *SIM, *arguments)

    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert word in ended.stderr.strip().splitlines()[-1]


@pytest.mark.real_model
@pytest.mark.parametrize("kept", [0, 4, 23, 0.1, 0.99, -1])
def test_a_model_file_that_was_cut_is_refused_with_the_remedy(
    tmp_path: Path, default_model_path: Path, kept: float
) -> None:
    whole = default_model_path.stat().st_size
    size = int(kept * whole) if 0 < kept < 1 else int(kept) % whole
    cut = tmp_path / "cut.gguf"
    with default_model_path.open("rb") as source, cut.open("wb") as target:
        target.write(source.read(min(size, 4_000_000)))
        target.truncate(size)
    ended = run(tmp_path / "home", "serve", "--engine", "llama", "--model", str(cut), "--port", "0")

    assert ended.returncode == 1
    assert "cut.gguf" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1


@pytest.mark.real_model
def test_a_template_that_is_no_file_is_refused(tmp_path: Path, default_model_path: Path) -> None:
    model = ["--model", str(default_model_path), "--port", "0"]
    ended = run(tmp_path / "home", "serve", "--engine", "llama", *model, "--chat-template", "/dev/null")

    assert (ended.returncode, ended.stderr.strip().splitlines()[-1].startswith("pocketserver: --chat-template")) == (
        1,
        True,
    )


def test_the_main_key_is_there_after_the_first_start(tmp_path: Path) -> None:
    home = tmp_path / "home"
    ended = run(home, *SIM, "--ready-json", "/nonexistent/ready")
    made = (home / "keys.json").read_bytes()

    assert ended.returncode == 1
    assert KeyStore(home).main_key().encode() in made
