"""`run/<pid>.json`: how commands find the servers that run on this machine."""

import contextlib
import os
from pathlib import Path

import msgspec
import psutil

from pocketserver.errors import StartupError, UsageError


class RunningServer(msgspec.Struct, frozen=True, kw_only=True):
    """One running server, as its run file tells. The token opens the control listener, so the file is 0600."""

    pid: int
    port: int
    base_url: str
    profile: str
    engine: str
    control_url: str
    control_token: str
    started: float


def write(folder: Path, server: RunningServer) -> Path:
    """Write the file whole, readable by its owner only. Raises StartupError when the folder takes no files."""
    path = folder / f"{server.pid}.json"
    temporary = path.with_suffix(".tmp")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary.unlink(missing_ok=True)
        _write_new(temporary, msgspec.json.encode(server))
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise StartupError(
            f"The folder {folder} cannot be written: {error.strerror}. Choose another one with POCKETSERVER_HOME."
        ) from error
    return path


def running_servers(folder: Path) -> list[RunningServer]:
    """Servers whose process is alive. Files left behind by dead ones are removed."""
    found = []
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            if not path.is_file():
                continue  # reading a named pipe would wait for ever
            server = msgspec.json.decode(path.read_bytes(), type=RunningServer)
            if _alive(server):
                found.append(server)
            else:
                path.unlink(missing_ok=True)
    return found


def choose(folder: Path, *, pid: int | None, port: int | None) -> RunningServer:
    """The one server that a command means. Raises UsageError listing them when that is not clear."""
    servers = running_servers(folder)
    wanted = [s for s in servers if (pid is None or s.pid == pid) and (port is None or s.port == port)]
    if len(wanted) == 1:
        return wanted[0]
    if not servers:
        raise UsageError("No server is running here. Start one with `pocketserver serve`.")
    listed = "; ".join(f"--pid {s.pid} or --port {s.port} ({s.profile}, {s.base_url})" for s in servers)
    reason = "Several servers are running" if len(wanted) > 1 else "No running server matches"
    raise UsageError(f"{reason}. Choose one: {listed}.")


def _write_new(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _alive(server: RunningServer) -> bool:
    try:
        return psutil.Process(server.pid).create_time() <= server.started + 1
    except (psutil.Error, ValueError, OverflowError):  # the last two: a number that is no process id
        return False
