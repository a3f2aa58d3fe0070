"""The key file on disk: its form, its permissions, its lock, and how it is written whole or not at all."""

import os
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import msgspec

from pocketserver.errors import StartupError

KEY_FILE = "keys.json"
_LOCK_FILE = "keys.lock"
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_HAS_MODES = os.name == "posix"
"""Windows keeps a user's profile private by access lists; there mode bits say nothing."""


class MainKey(msgspec.Struct, frozen=True, kw_only=True):
    """The owner's key, in full: it must be possible to show it (and its QR code) again. `created` is Unix time."""

    key: str
    created: int


class NamedKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key that was shown once. Only its SHA-256 (hexadecimal) is kept, and the last 4 characters to tell it by."""

    name: str
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    scopes: tuple[str, ...]
    created: int
    last4: str


class Keys(msgspec.Struct, frozen=True, kw_only=True):
    """Everything in the key file."""

    version: int = 1
    main: MainKey | None = None
    named: tuple[NamedKey, ...] = ()


Stamp = tuple[int, int, int]
"""Inode, time of change and size: another stamp means another file."""


def stamp(folder: Path) -> Stamp | None:
    """What tells whether the file was replaced; None while there is none. One `stat`, a few microseconds."""
    try:
        found = (folder / KEY_FILE).stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(folder / KEY_FILE, error) from error
    return found.st_ino, found.st_mtime_ns, found.st_size


def read(folder: Path) -> Keys:
    """The keys; none when there is no file. Raises StartupError for a file that is broken or that others may read."""
    path = folder / KEY_FILE
    try:
        with path.open("rb") as file:
            _check_private(path, os.fstat(file.fileno()).st_mode)
            return msgspec.json.decode(file.read(), type=Keys)
    except FileNotFoundError:
        return Keys()
    except OSError as error:
        raise _unreadable(path, error) from error
    except msgspec.MsgspecError as error:
        raise StartupError(
            f"{path} is not a key file ({error}). Move it away; new keys are made at the next start."
        ) from error


def write(folder: Path, keys: Keys) -> None:
    """Replace the file by a whole new one, readable by the owner alone. Call it under `locked`."""
    write_private(folder / KEY_FILE, msgspec.json.format(msgspec.json.encode(keys), indent=2))


def write_private(path: Path, content: bytes) -> None:
    """Write a file of mode 0600 whole or not at all. Raises StartupError when that cannot be done."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        _write_new(temporary, content)
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise StartupError(f"{path} cannot be written: {error.strerror}.") from error


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, so that two processes changing keys lose none. Makes the folder (0700) when needed."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StartupError(f"The folder {folder} cannot be used for keys: {error.strerror}.") from error
    try:
        _lock(lock)
        yield
    finally:
        os.close(lock)  # releases the lock on every system


def exposure(folder: Path) -> str | None:
    """A sentence for the log when others may replace files in the folder; None when all is well."""
    if not _HAS_MODES or not folder.is_dir():
        return None
    if folder.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"Other users of this machine may change files in {folder}. Run: chmod go-w '{folder}'"
    return None


def _write_new(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    if not _HAS_MODES:
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_LOCK, 1)

else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _check_private(path: Path, mode: int) -> None:
    if _HAS_MODES and mode & _OTHERS:
        raise StartupError(f"{path} can be read by other users of this machine. Run: chmod 600 '{path}'")


def _unreadable(path: Path, error: OSError) -> StartupError:
    return StartupError(f"{path} cannot be read: {error.strerror}.")
