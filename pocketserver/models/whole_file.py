"""Files that are there whole or not at all, and a lock that dies with its owner."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import IO

from pocketserver.errors import StartupError

LOCK_POLL_SECONDS = 0.1
HELD_POLL_SECONDS = 0.005
LOCK_LIMIT_SECONDS = 30.0

if sys.platform == "win32":
    import msvcrt

    def _try_lock(file: IO[bytes]) -> None:
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _try_lock(file: IO[bytes]) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def put_in_place(temporary: Path, final: Path) -> None:
    """Give a finished file its name, replacing what was there. Both lie on one file system; survives a power cut."""
    sync_file(temporary)
    temporary.replace(final)
    sync_folder(final.parent)


def sync_file(path: Path) -> None:
    """Make a file's content last. Windows wants to write for it, others do it for files that are only read too."""
    with path.open("rb+" if sys.platform == "win32" else "rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make a rename or removal in a folder last. Windows cannot open folders, and does not need it."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@asynccontextmanager
async def locked(path: Path, on_wait: Callable[[], None]) -> AsyncIterator[None]:
    """Hold a lock among all tasks and processes that use this lock file; the system frees it when its owner dies.

    Calls `on_wait` once when somebody else holds it. The empty file stays: removing it would race with the next owner.
    """
    with _lock_file(path) as file:
        waiting = False
        while not _acquired(file):
            if not waiting:
                on_wait()
            waiting = True
            await asyncio.sleep(LOCK_POLL_SECONDS)
        yield


@contextmanager
def held(path: Path, limit_seconds: float = LOCK_LIMIT_SECONDS) -> Iterator[None]:
    """The same lock for threads, for work of milliseconds. Raises StartupError when it stays taken."""
    deadline = time.monotonic() + limit_seconds
    with _lock_file(path) as file:
        while not try_held(file):
            if time.monotonic() > deadline:
                raise StartupError(
                    f"Another process has been changing {path.parent} for {limit_seconds:g} s. Try again."
                )
            time.sleep(HELD_POLL_SECONDS)
        yield


def try_held(file: IO[bytes]) -> bool:
    """Lock an open file until it is closed, unless somebody else has it."""
    return _acquired(file)


def _lock_file(path: Path) -> IO[bytes]:
    return path.open("ab")


def _acquired(file: IO[bytes]) -> bool:
    try:
        _try_lock(file)
    except (BlockingIOError, PermissionError):  # the latter on Windows
        return False
    return True
