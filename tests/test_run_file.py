"""Run files: private, whole, and forgotten with their process."""

import os
import stat
import time
from pathlib import Path

import pytest

from pocketserver.errors import StartupError, UsageError
from pocketserver.run_file import RunningServer, choose, running_servers, write


def entry(pid: int, port: int = 8080) -> RunningServer:
    return RunningServer(
        pid=pid,
        port=port,
        base_url=f"http://127.0.0.1:{port}/v1",
        profile="pocketllm",
        engine="sim",
        control_url="http://127.0.0.1:1",
        control_token="t",
        started=time.time(),
    )


def test_a_run_file_is_its_owners_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "run", entry(os.getpid()))

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert running_servers(tmp_path / "run") == [choose(tmp_path / "run", pid=None, port=None)]


def test_files_of_dead_processes_are_removed(tmp_path: Path) -> None:
    path = write(tmp_path, entry(2**22 + 12345))

    assert running_servers(tmp_path) == []
    assert not path.exists()


def test_a_damaged_file_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "7.json").write_text('{"pid": ')

    assert running_servers(tmp_path) == []


def test_without_a_server_the_command_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="pocketserver serve"):
        choose(tmp_path, pid=None, port=None)


def test_a_number_that_fits_no_server_lists_those_that_run(tmp_path: Path) -> None:
    write(tmp_path, entry(os.getpid(), 8080))

    with pytest.raises(UsageError, match="--port 8080"):
        choose(tmp_path, pid=None, port=9)


@pytest.mark.parametrize("pid", [-5, 0, 2**62])
def test_a_number_that_is_no_process_is_no_server(tmp_path: Path, pid: int) -> None:
    write(tmp_path, entry(pid))

    assert running_servers(tmp_path) == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_rubbish_in_the_folder_stops_no_command(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "1.json")
    (tmp_path / "2.json").mkdir()
    (tmp_path / "3.json").write_bytes(b"\xff\xfe[[[[")
    (tmp_path / "4.json").write_text("[" * 50_000)
    write(tmp_path, entry(os.getpid()))

    assert [server.pid for server in running_servers(tmp_path)] == [os.getpid()]


def test_a_folder_that_takes_no_files_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(StartupError, match="POCKETSERVER_HOME"):
        write(tmp_path / "file" / "run", entry(os.getpid()))
