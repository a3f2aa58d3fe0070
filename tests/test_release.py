"""What `make dist` builds is whole: a clean environment that has nothing but the wheel serves the simulator."""

import json
import os
import re
import subprocess
import sys
import tarfile
import urllib.request
import venv
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from pocketserver import __version__

ROOT = Path(__file__).resolve().parent.parent
LIMIT_SECONDS = 280

pytestmark = pytest.mark.timeout(2 * LIMIT_SECONDS)


@dataclass(frozen=True)
class Dist:
    wheel: Path
    sdist: Path


def attempt(command: Sequence[str], folder: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("POCKETSERVER", "PYTHON"))}
    return subprocess.run(
        command,
        cwd=folder,
        env={**kept, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )


def fetched(command: Sequence[str], folder: Path) -> None:
    """Run what needs a package index: skipped without one, failed in CI."""
    done = attempt(command, folder)
    if done.returncode:
        reason = f"packages cannot be fetched or built: {done.stdout[-500:]}{done.stderr[-1500:]}"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Dist:
    """Built as `make dist` does: the wheel out of the sdist, so the one is whole when the other is."""
    folder = tmp_path_factory.mktemp("dist")
    fetched([sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)], folder)
    [wheel], [sdist] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return Dist(wheel, sdist)


@pytest.fixture(scope="module")
def program(dist: Dist, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`pocketserver` in an environment of its own."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder / "venv")
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "venv" / "bin" / "python"), "--quiet"]
    install = ["--disable-pip-version-check", "install", "--no-compile", "-c", str(ROOT / "constraints.txt")]
    fetched([*pip, *install, str(dist.wheel)], folder)
    return folder / "venv" / "bin" / "pocketserver"


def test_the_wheel_has_the_settings_the_page_and_the_mark_of_types(dist: Dist) -> None:
    with zipfile.ZipFile(dist.wheel) as wheel:
        names = set(wheel.namelist())

    assert "pocketserver/py.typed" in names
    for file in (ROOT / "settings").rglob("*.toml"):
        assert f"pocketserver/shipped_settings/{file.relative_to(ROOT / 'settings')}" in names
    for file in (ROOT / "pocketserver" / "page" / "static").iterdir():
        assert f"pocketserver/page/static/{file.name}" in names
    assert not [name for name in names if not name.startswith(("pocketserver/", f"pocketserver-{__version__}."))]


def test_the_sdist_has_what_a_person_needs_to_work_on_it_and_nothing_that_was_installed(dist: Dist) -> None:
    with tarfile.open(dist.sdist) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}

    assert {"README.md", "LICENSE", "CHANGELOG.md", "Makefile", "pyproject.toml", "constraints.txt"} <= names
    assert {"tests/test_release.py", "settings/profiles/hub.toml", "examples/curl/test.sh"} <= names
    assert not [name for name in names if re.search(r"(^|/)(node_modules|\.venv|\.test-home|dist)(/|$)", name)]


def test_its_version_and_its_completion_work(program: Path, tmp_path: Path) -> None:
    asked = {"_POCKETSERVER_COMPLETE": "complete_bash", "COMP_WORDS": "pocketserver sta", "COMP_CWORD": "1"}

    assert attempt([str(program), "--version"], tmp_path).stdout.strip() == __version__
    assert attempt([str(program)], tmp_path, **asked).stdout.split() == ["status"]


@pytest.mark.parametrize("engine", [["serve", "--engine", "sim"], ["sim", "serve"]])
def test_it_serves_the_simulator_and_its_page(program: Path, tmp_path: Path, engine: list[str]) -> None:
    words = [*engine, "--host", "127.0.0.1", "--port", "0", "--no-mdns", "--speed", "max", "--home", str(tmp_path)]
    command = [str(program), *words, "--ready-json", "-", "--exit-on-stdin-close"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path
    ) as server:
        assert server.stdout is not None
        try:
            ready = json.loads(server.stdout.readline())
            origin = ready["base_url"].removesuffix("/v1")
            answer = json.loads(fetch(f"{origin}/v1/chat/completions", ready["api_key"], {"messages": HI}))
            page = fetch(f"{origin}/", None, None)
        finally:
            server.communicate()  # closes its input, which ends it

    assert server.returncode == 0
    assert answer["usage"]["completion_tokens"] == 40
    assert "<html" in page


HI = [{"role": "user", "content": "hi"}]


def fetch(url: str, key: str | None, body: object) -> str:
    headers = {"Accept": "text/html"} if key is None else {"Authorization": f"Bearer {key}"}
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=60) as response:
        return str(response.read().decode())


@pytest.mark.parametrize("kind", ["profiles", "devices", "scenarios"])
def test_it_knows_what_is_shipped(program: Path, tmp_path: Path, kind: str) -> None:
    command = {
        "devices": ["sim", "devices"],
        "scenarios": ["sim", "scenarios"],
        "profiles": ["serve", "--profile", "none-of-these"],
    }[kind]
    said = attempt([str(program), *command], tmp_path)

    for file in (ROOT / "settings" / kind).glob("*.toml"):
        assert file.stem in said.stdout + said.stderr


@pytest.mark.real_model
def test_without_the_extra_a_real_model_is_refused_with_what_to_do(
    program: Path, tmp_path: Path, default_model_path: Path
) -> None:
    words = ["serve", "--no-mdns", "--host", "127.0.0.1", "--port", "0", "--model", str(default_model_path)]
    said = attempt([str(program), *words, "--home", str(tmp_path)], tmp_path)

    assert said.returncode == 1
    assert "Traceback" not in said.stderr
    assert "pocketserver[llama]" in said.stderr
