"""What the doctor finds on one machine, each fault provoked for real: ports, files, disks, memory, llama.cpp."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from pocketserver import run_file, settings
from pocketserver.cli.doctor import building, command, machine, network
from pocketserver.cli.doctor.finding import Finding, Level, Situation, examine, situation
from pocketserver.engines.llama.safe_mode import SafeModeMemory, combination
from pocketserver.gate.keys import KeyStore
from tests.models.gguf_builder import gguf, write_model
from tests.test_serve_command import Started

LIMIT_SECONDS = 90.0


def about(home: Path, **flags: object) -> Situation:
    effective = settings.load(flags={"home": str(home), "ollama_models": "off", **flags}, environment={})
    return situation(effective.settings)


def only(findings: Iterable[Finding]) -> Finding:
    [finding] = findings
    return finding


def doctor(home: Path, *arguments: str, **environment: str) -> tuple[int, dict[str, Finding]]:
    """The command with --json; the worst finding of each name."""
    ran = run(home, "--json", *arguments, **environment)
    assert ran.stdout, ran.stderr
    found = [Finding(**{**row, "level": Level(row["level"])}) for row in json.loads(ran.stdout)]
    order = list(Level)
    return ran.returncode, {one.name: one for one in sorted(found, key=lambda one: order.index(one.level))}


def run(home: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pocketserver.cli.main", "doctor", "--host", "127.0.0.1", *arguments],
        env={**os.environ, "POCKETSERVER_HOME": str(home), **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )


def test_a_sound_machine_is_said_to_be_one(tmp_path: Path) -> None:
    ran = run(tmp_path, "--engine", "sim", "--port", "0")

    assert ran.returncode == 0, ran.stdout
    assert "Nothing is broken." in ran.stdout
    assert "\x1b" not in ran.stdout


def test_a_taken_port_is_said_to_be_taken_by_whom(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        found = only(network.port_is_free(about(tmp_path, host="127.0.0.1", port=port)))
        code, _ = doctor(tmp_path, "--engine", "sim", "--port", str(port))

    assert found.level is Level.BROKEN
    assert f"(process {os.getpid()})" in found.sentence
    assert found.remedy
    assert code == 1


def test_a_port_served_by_ourselves_is_fine_and_a_dead_servers_file_is_told(tmp_path: Path) -> None:
    server = Started(tmp_path)
    try:
        code, found = doctor(tmp_path, "--engine", "sim", "--port", str(server.ready["port"]))
        assert found["port"].level is Level.OK
        assert found["servers"].level is Level.OK
        assert f"{server.ready['pid']}" in found["servers"].sentence
        assert code == 0
    finally:
        server.process.kill()
        server.finish()
    _, found = doctor(tmp_path, "--engine", "sim", "--port", "0")
    assert found["servers"].level is Level.HINT
    assert not list((tmp_path / "run").glob("*.json"))


def test_a_server_that_does_not_answer_is_broken(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        entry = {"port": 1, "base_url": url, "profile": "pocketllm", "engine": "sim", "control_url": url}
        server = run_file.RunningServer(pid=os.getpid(), control_token="t", started=time.time(), **entry)  # type: ignore[arg-type]
        run_file.write(tmp_path / "run", server)
        found = only(machine.servers_answer(about(tmp_path)))

    assert found.level is Level.BROKEN
    assert "does not answer" in found.sentence


@pytest.mark.skipif(os.name != "posix", reason="mode bits are POSIX")
def test_a_key_file_that_others_can_read_is_broken(tmp_path: Path) -> None:
    KeyStore(tmp_path).main_key()
    assert only(machine.keys_are_private(about(tmp_path))).level is Level.OK
    (tmp_path / "keys.json").chmod(0o644)
    found = only(machine.keys_are_private(about(tmp_path)))

    assert found.level is Level.BROKEN
    assert "chmod 600" in found.remedy


@pytest.mark.skipif(os.name != "posix", reason="mode bits are POSIX")
def test_a_home_folder_that_others_can_change_is_a_warning(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    found = only(machine.keys_are_private(about(tmp_path)))

    assert (found.level, "chmod go-w" in found.remedy) == (Level.WARNING, True)


def test_a_truncated_model_is_found(tmp_path: Path) -> None:
    write_model(tmp_path / "models" / "good.gguf")
    (tmp_path / "models" / "cut.gguf").write_bytes(gguf()[:-200])
    found = only(machine.models_are_sound(about(tmp_path)))

    assert found.level is Level.WARNING
    assert "cut.gguf" in found.sentence
    assert "pocketserver models rm cut" in found.remedy


def test_a_model_that_is_served_and_broken_or_missing_is_broken(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "cut.gguf").write_bytes(gguf()[:-200])

    for model in ("cut", "no-such-model"):
        found = only(machine.memory_suffices(about(tmp_path, model=model)))
        assert (found.name, found.level) == ("model", Level.BROKEN)
        assert found.remedy


def test_a_model_that_does_not_fit_into_memory_is_broken_and_a_short_context_a_warning(tmp_path: Path) -> None:
    write_model(tmp_path / "models" / "good.gguf")
    fits = only(machine.memory_suffices(about(tmp_path, model="good")))
    small = only(machine.memory_suffices(about(tmp_path, model="good", memory_limit_bytes=1 << 20)))

    assert fits.level is Level.OK
    assert small.level is Level.BROKEN
    assert "MiB" in small.sentence


def test_a_model_to_be_fetched_is_told_with_its_size(tmp_path: Path) -> None:
    assert "MiB) will be fetched" in only(machine.memory_suffices(about(tmp_path))).sentence


def test_a_full_disk_is_broken(tmp_path: Path) -> None:
    """A little file system in a mount namespace, so that it is gone with the command."""
    home = tmp_path / "small"
    home.mkdir()
    words = f"mount -t tmpfs -o size=1m none {home} && exec {sys.executable} -m pocketserver.cli.main doctor --json"
    ran = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f"{words} --engine sim --host 127.0.0.1 --port 0"],
        env={**os.environ, "POCKETSERVER_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    if "Operation not permitted" in ran.stderr and not os.environ.get("CI"):
        pytest.skip("mount namespaces are not permitted here")
    [found] = [row for row in json.loads(ran.stdout) if row["name"] == "disk"]

    assert found["level"] == "broken"
    assert "Only 1 MiB" in found["sentence"]
    assert ran.returncode == 1


def test_settings_that_cannot_be_are_a_finding_and_the_rest_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text("max_queue = 'many'\n")
    code, found = doctor(tmp_path)

    assert code == 1
    assert found["settings"].level is Level.BROKEN
    assert "max_queue" in found["settings"].sentence
    assert "disk" in found


@pytest.mark.parametrize(
    ("now", "level"), [(0, Level.OK), (-3 * 86400, Level.WARNING), (30 * 365 * 86400, Level.WARNING)]
)
def test_a_clock_that_cannot_be_right_is_a_warning(now: float, level: Level) -> None:
    installed = 1_760_000_000.0

    assert machine.clock(installed + now, installed).level is level


# llama.cpp


def test_the_installed_llama_cpp_loads(tmp_path: Path) -> None:
    found = list(building.llama_works(about(tmp_path)))

    assert {one.level for one in found} <= {Level.OK, Level.HINT}
    assert [one.name for one in found] == ["llama.cpp", "safe mode"]


@pytest.mark.parametrize(
    ("module", "word", "remedy"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "ended the process", "Build it again"),
        ("raise ModuleNotFoundError(\"No module named 'llama_cpp'\")", "not installed", "-m pip install"),
        ("raise RuntimeError('libgomp.so.1: cannot open')", "libgomp.so.1", "-m pip install"),
    ],
)
def test_a_llama_cpp_that_cannot_be_used_is_broken(tmp_path: Path, module: str, word: str, remedy: str) -> None:
    (tmp_path / "llama_cpp.py").write_text(module)
    _, found = doctor(tmp_path / "home", PYTHONPATH=str(tmp_path))

    assert found["llama.cpp"].level is Level.BROKEN
    assert word in found["llama.cpp"].sentence
    assert remedy in found["llama.cpp"].remedy


def test_safe_mode_is_told_with_its_model(tmp_path: Path) -> None:
    path = write_model(tmp_path / "models" / "good.gguf")
    memory = SafeModeMemory(tmp_path / "llama")
    assert only(building.safe_mode(about(tmp_path), "0.3 (x)", "CPU")).level is Level.OK
    memory.remember(combination(path, path.stat().st_size, "0.3 (x)\nCPU"))
    found = only(building.safe_mode(about(tmp_path), "0.3 (x)", "CPU"))

    assert found.level is Level.HINT
    assert found.sentence.startswith("good ")


def test_a_missing_compiler_is_a_hint(tmp_path: Path) -> None:
    code, found = doctor(tmp_path, "--engine", "sim", "--port", "0", PATH=str(tmp_path))

    assert found["compiler"].level is Level.HINT
    assert "apt install g++" in found["compiler"].remedy
    assert code == 0


# The machinery


def test_a_check_that_hangs_or_fails_hides_nothing(tmp_path: Path) -> None:
    def hangs(_about: Situation) -> list[Finding]:
        time.sleep(60)
        return []

    def fails(_about: Situation) -> list[Finding]:
        raise OSError("no such thing")

    def works(_about: Situation) -> list[Finding]:
        return [Finding("works", Level.OK, "Fine.")]

    found = examine({"hangs": hangs, "fails": fails, "works": works}, about(tmp_path), limit_seconds=0.3)

    assert [(one.name, one.level.value) for one in found] == [
        ("hangs", "warning"),
        ("fails", "warning"),
        ("works", "ok"),
    ]
    assert "no such thing" in found[1].sentence


def test_every_finding_that_is_not_fine_has_a_remedy(tmp_path: Path) -> None:
    found: list[dict[str, Any]] = json.loads(run(tmp_path, "--json", "--engine", "sim").stdout)

    assert {row["name"] for row in found} >= set(command.CHECKS) - {"isolation"}
    assert all(row["remedy"] for row in found if row["level"] != "ok")


def test_the_tools_that_these_tests_need_are_here() -> None:
    assert shutil.which("unshare") or not os.environ.get("CI")
