"""`pocketserver serve` as a person and a parent process meet it: ready line, signals, exit codes, what goes where."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

LIMIT_SECONDS = 60.0


class Started:
    """A server process of the simulator with its ready line."""

    def __init__(
        self, home: Path, *arguments: str, environment: dict[str, str] | None = None, port: int | None = 0
    ) -> None:
        self.home = home
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "pocketserver.cli.main", "sim", "serve", "--host", "127.0.0.1"),
                *(() if port is None else ("--port", str(port))),
                *("--ready-json", "-", "--speed", "max", *arguments),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "POCKETSERVER_HOME": str(home), **(environment or {})},
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr and self.process.stderr.read()
        self.ready: dict[str, Any] = json.loads(line)

    def ask(self, path: str, body: dict[str, Any] | None = None, key: str | None = None) -> Any:
        request = urllib.request.Request(
            self.ready["base_url"].removesuffix("/v1") + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {key or self.ready['api_key']}"},
        )
        return urllib.request.urlopen(request, timeout=LIMIT_SECONDS)

    def finish(self) -> tuple[int, str, str]:
        """Exit code, the rest of standard output, standard error."""
        out, err = self.process.communicate(timeout=LIMIT_SECONDS)
        return self.process.returncode, out, err


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def started(home: Path) -> Iterator[Started]:
    server = Started(home)
    yield server
    if server.process.poll() is None:
        server.process.kill()
        server.finish()


def run(home: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pocketserver.cli.main", *arguments],
        env={**os.environ, "POCKETSERVER_HOME": str(home), **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )


def test_the_ready_line_is_all_of_standard_output_and_the_server_answers(started: Started) -> None:
    with started.ask("/v1/models") as response:
        assert json.load(response)["data"][0]["id"] == started.ready["model"]
    started.process.send_signal(signal.SIGTERM)
    code, out, err = started.finish()

    assert code == 0
    assert out == ""
    assert "Base URL" in err
    assert started.ready["api_key"] not in err
    assert {"event", "base_url", "port", "api_key", "pid", "profile", "engine", "model"} <= set(started.ready)


def test_the_run_file_is_private_and_gone_afterwards(started: Started) -> None:
    [path] = (started.home / "run").glob("*.json")
    mode = stat.S_IMODE(path.stat().st_mode)
    started.process.send_signal(signal.SIGINT)
    started.finish()

    assert mode == 0o600
    assert not path.exists()


def test_status_and_stop_find_the_server_by_themselves(started: Started) -> None:
    status = run(started.home, "status", "--json")
    stop = run(started.home, "stop")

    assert json.loads(status.stdout)["pid"] == started.ready["pid"]
    assert "Nothing was being generated" in stop.stdout


def test_with_two_servers_a_command_asks_which(started: Started) -> None:
    other = Started(started.home)
    try:
        unclear = run(started.home, "status")
        chosen = run(started.home, "status", "--json", "--port", str(other.ready["port"]))
    finally:
        other.process.kill()
        other.finish()

    assert unclear.returncode == 2
    assert str(started.ready["pid"]) in unclear.stderr
    assert json.loads(chosen.stdout)["pid"] == other.ready["pid"]


def test_stop_server_ends_it(started: Started) -> None:
    run(started.home, "stop", "--server")

    assert started.finish()[0] == 0


def test_the_server_ends_with_its_parents_pipe(home: Path) -> None:
    server = Started(home, "--exit-on-stdin-close")
    assert server.process.stdin is not None
    server.process.stdin.close()
    server.process.stdin = None

    assert server.finish()[0] == 0


def test_a_running_answer_may_finish_and_nobody_new_comes_in(home: Path) -> None:
    server = Started(home, "--speed", "1", environment={"POCKETSERVER_TOKENS_PER_SECOND": "20"})
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
    with server.ask("/v1/chat/completions", body) as response:
        first = response.readline()
        server.process.send_signal(signal.SIGTERM)
        rest = response.read()

    assert first.startswith(b"data: ")
    assert rest.endswith(b"data: [DONE]\n\n")
    assert server.finish()[0] == 0


def test_an_answer_over_its_grace_ends_with_an_error_chunk(home: Path) -> None:
    slow = {"POCKETSERVER_TOKENS_PER_SECOND": "0.01", "POCKETSERVER_SHUTDOWN_GRACE_SECONDS": "0.2"}
    server = Started(home, "--speed", "1", environment=slow)
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
    with server.ask("/v1/chat/completions", body) as response:
        response.readline()
        server.process.send_signal(signal.SIGTERM)
        rest = response.read()

    assert b'"error"' in rest
    assert b"[DONE]" not in rest
    assert server.finish()[0] == 0


def test_a_second_signal_ends_at_once(home: Path) -> None:
    slow = {"POCKETSERVER_TOKENS_PER_SECOND": "0.01", "POCKETSERVER_SHUTDOWN_GRACE_SECONDS": "3600"}
    server = Started(home, "--speed", "1", environment=slow)
    with server.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "stream": True}) as asked:
        asked.readline()
        server.process.send_signal(signal.SIGINT)
        assert server.process.stderr is not None
        while "Stopping" not in server.process.stderr.readline():
            pass
        server.process.send_signal(signal.SIGINT)
        code = server.process.wait(LIMIT_SECONDS)
    server.finish()

    assert code == 1


def test_ctrl_backslash_cancels_the_generation_and_the_server_goes_on(home: Path) -> None:
    server = Started(home, "--speed", "1", environment={"POCKETSERVER_TOKENS_PER_SECOND": "0.01"})
    try:
        with server.ask(
            "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "stream": True}
        ) as asked:
            asked.readline()
            server.process.send_signal(signal.SIGQUIT)
            assert b"request_cancelled" in asked.read()
        with server.ask("/health") as health:
            assert json.load(health)["status"] == "ok"
    finally:
        server.process.kill()
        server.finish()


def test_a_taken_port_is_one_line_and_exit_code_one(started: Started) -> None:
    second = run(started.home, "sim", "serve", "--host", "127.0.0.1", "--port", str(started.ready["port"]))

    assert second.returncode == 1
    assert second.stderr.strip().splitlines()[-1].startswith("pocketserver: Port ")
    assert "Traceback" not in second.stderr


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--port", "99999"], "port"),
        (["--engine", "magic"], "engine"),
        (["--profile", "nope"], "profile"),
        (["--auth", "perhaps"], "auth"),
        (["--speed", "0"], "speed"),
        (["--settings", "/nonexistent.toml"], "settings file"),
    ],
)
def test_a_wrong_setting_is_one_line_that_names_it(home: Path, arguments: list[str], word: str) -> None:
    ended = run(home, "serve", *arguments)

    assert ended.returncode == 2
    assert len(ended.stderr.strip().splitlines()) == 1
    assert word in ended.stderr


def test_the_key_from_the_environment_works_and_is_never_written(home: Path) -> None:
    server = Started(home, environment={"POCKETSERVER_API_KEY": "sk-only-for-this-run-0123456789"})
    try:
        with server.ask("/v1/models", key="sk-only-for-this-run-0123456789") as response:
            assert response.status == 200
        written = [path for path in home.rglob("*") if path.is_file() and b"only-for-this-run" in path.read_bytes()]
        arguments = Path(f"/proc/{server.ready['pid']}/cmdline")
        if arguments.exists():
            assert b"sk-" not in arguments.read_bytes()
    finally:
        server.process.send_signal(signal.SIGTERM)
        _, _, err = server.finish()

    assert written == []
    assert "only-for-this-run" not in err


def test_json_logs_are_one_document_a_line_with_the_request_id(home: Path) -> None:
    server = Started(home, "--log", "json")
    with server.ask("/health") as response:
        request_id = response.headers["x-request-id"]
    time.sleep(0)
    server.process.send_signal(signal.SIGTERM)
    _, _, err = server.finish()
    lines = [json.loads(line) for line in err.splitlines() if line.startswith("{")]

    assert any(line.get("request_id") == request_id for line in lines)


def test_commands_do_not_import_what_they_do_not_need() -> None:
    code = (
        "import sys, pocketserver.cli.main as m\n"
        "import contextlib, io\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
        "    m.app(['--help'])\n"
        "print(sorted({'aiohttp', 'zeroconf', 'llama_cpp', 'numpy', 'prometheus_client'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert out.strip() == "[]"
