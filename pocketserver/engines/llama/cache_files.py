"""Conversations on disk: one file for each state, in one folder for each version, written whole, shared by servers.

A version is everything that a state depends on (model, number format, context, llama.cpp build). Files of other
versions belong to other models and are only ever removed as the least recently used ones. Needs no native library, so
that `pocketserver cache` works anywhere. Everything here blocks.
"""

import contextlib
import hashlib
import os
import secrets
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil

FOLDER = "prefix-cache"
"""The cache's folder, beside the other files of the engine."""

_MAGIC = b"PSKV\x00\x01\r\n"
_SUFFIX, _UNFINISHED = ".state", ".tmp"
_MAX_HEADER_BYTES = 64 * 1024
_TOKEN_BYTES = 4
_PIECE_BYTES = 4 * 1024 * 1024
_LONGEST_WRITE_SECONDS = 3600.0
_VERSION_LENGTH = 32


class CacheFileFault(Exception):  # noqa: N818 - it says what the file is
    """A file that is no state of this version: foreign, damaged, or gone."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What a file says of itself. Sizes are in bytes; the sums are CRC-32."""

    version: str
    model: str
    token_count: int
    state_bytes: int
    tokens_sum: int
    state_sum: int


@dataclass(frozen=True, slots=True)
class StateFile:
    """One readable file: its tokens as little-endian 32-bit numbers, and where its state begins."""

    path: Path
    header: Header
    tokens: bytes
    state_offset: int

    @property
    def size_bytes(self) -> int:
        return self.state_offset + self.header.state_bytes


@dataclass(frozen=True, slots=True)
class Found:
    """A file as a list of the folder shows it."""

    path: Path
    size_bytes: int
    used: float
    """When it was last of use, in seconds since the epoch."""


def version_of(parts: Mapping[str, object]) -> str:
    """The name of the version that these facts make: two servers share states only when all of them agree."""
    text = "\n".join(f"{name}={parts[name]}" for name in sorted(parts))
    return hashlib.sha256(text.encode()).hexdigest()[:_VERSION_LENGTH]


def path_of(folder: Path, tokens: bytes) -> Path:
    """Where the state of these tokens lies, in the folder of its version."""
    return folder / f"{hashlib.sha256(tokens).hexdigest()[:24]}{_SUFFIX}"


def write_state(
    folder: Path, header: Header, tokens: bytes, state: memoryview, *, before_piece: Callable[[], None] = lambda: None
) -> Path:
    """Write a state whole or not at all, for its owner's eyes only: it tells what was said. Raises OSError.

    `before_piece` is called before each 4 MiB and may wait, so that a long write gives way to other work.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    final = path_of(folder, tokens)
    unfinished = folder / f"{final.stem}-{os.getpid()}-{secrets.token_hex(4)}{_UNFINISHED}"
    try:
        unfinished.touch(mode=0o600, exist_ok=False)
        with unfinished.open("wb") as file:
            file.write(_head(header) + tokens)
            for start in range(0, len(state), _PIECE_BYTES):
                before_piece()
                file.write(state[start : start + _PIECE_BYTES])
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(final)
    except BaseException:
        remove(unfinished)
        raise
    return final


def read_header(path: Path, version: str) -> StateFile:
    """Everything but the state. Raises CacheFileFault."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            header, length = _read_head(file.read(len(_MAGIC) + _TOKEN_BYTES + _MAX_HEADER_BYTES))
            offset = length + header.token_count * _TOKEN_BYTES
            if header.version != version or size != offset + header.state_bytes:
                raise CacheFileFault("it is of another version, or cut short")
            file.seek(length)
            tokens = file.read(header.token_count * _TOKEN_BYTES)
    except (OSError, ValueError) as error:
        raise CacheFileFault(str(error)) from error
    if zlib.crc32(tokens) != header.tokens_sum:
        raise CacheFileFault("its tokens are damaged")
    return StateFile(path, header, tokens, offset)


def read_state(found: StateFile, into: memoryview) -> None:
    """Fill `into`, of `state_bytes` bytes, with the state of a file just read. Raises CacheFileFault."""
    try:
        with found.path.open("rb", buffering=0) as file:
            file.seek(found.state_offset)
            filled = 0
            while filled < len(into) and (count := file.readinto(into[filled:])):
                filled += count
    except OSError as error:
        raise CacheFileFault(str(error)) from error
    if filled != len(into) or zlib.crc32(into) != found.header.state_sum:
        raise CacheFileFault("its state is damaged")


def touch(path: Path) -> None:
    """Mark a file as used just now."""
    with contextlib.suppress(OSError):
        os.utime(path)


def remove(path: Path) -> None:
    """Take a file away; one that is gone or in use by another program (Windows) is no error."""
    with contextlib.suppress(OSError):
        path.unlink()


def states(folder: Path) -> list[Found]:
    """Finished files of one version's folder, least recently used first."""
    found = []
    for path in _files(folder):
        if path.suffix == _SUFFIX:
            with contextlib.suppress(OSError):
                status = path.stat()
                found.append(Found(path, status.st_size, status.st_mtime))
    return sorted(found, key=lambda file: file.used)


def versions(root: Path) -> list[Path]:
    """The folders of all versions."""
    with contextlib.suppress(OSError):
        return sorted(path for path in root.iterdir() if len(path.name) == _VERSION_LENGTH and path.is_dir())
    return []


def evict(root: Path, budget_bytes: int) -> None:
    """Remove the least recently used states of all versions until they fit, and what dead writers left behind."""
    found = sorted((file for folder in versions(root) for file in states(folder)), key=lambda file: file.used)
    excess = sum(file.size_bytes for file in found) - budget_bytes
    for file in found:
        if excess <= 0:
            break
        remove(file.path)
        excess -= file.size_bytes
    for folder in versions(root):
        _sweep(folder)


def clear(root: Path) -> tuple[int, int]:
    """Remove every state; how many files and bytes that were. A server that is running notices by itself."""
    found = [file for folder in versions(root) for file in states(folder)]
    for file in found:
        remove(file.path)
    for folder in versions(root):
        _sweep(folder)
    return len(found), sum(file.size_bytes for file in found)


def model_of(folder: Path) -> str:
    """The model whose states a folder holds, as the first readable file tells it; empty when none does."""
    for file in states(folder):
        with contextlib.suppress(CacheFileFault):
            return read_header(file.path, folder.name).header.model
    return ""


def _sweep(folder: Path) -> None:
    """Remove unfinished files whose writer is gone, foreign files, and a folder long empty (no writer is about)."""
    with contextlib.suppress(OSError):
        if time.time() - folder.stat().st_mtime > _LONGEST_WRITE_SECONDS:
            folder.rmdir()
    for path in _files(folder):
        if path.suffix == _UNFINISHED:
            if not _being_written(path):
                remove(path)
        elif path.suffix != _SUFFIX:
            remove(path)


def _being_written(path: Path) -> bool:
    """A process id may live on another machine or be taken anew: an old file has no writer whatever it says."""
    try:
        writer, age = int(path.stem.split("-")[1]), time.time() - path.stat().st_mtime
    except (OSError, ValueError, IndexError):
        return False
    return age < _LONGEST_WRITE_SECONDS and psutil.pid_exists(writer)


def _files(folder: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from [path for path in folder.iterdir() if path.is_file()]


def _head(header: Header) -> bytes:
    body = msgspec.msgpack.encode(header)
    return _MAGIC + len(body).to_bytes(_TOKEN_BYTES, "little") + body


def _read_head(data: bytes) -> tuple[Header, int]:
    """The header and its length. Raises ValueError."""
    if not data.startswith(_MAGIC):
        raise ValueError("it is no state of this program")
    start = len(_MAGIC) + _TOKEN_BYTES
    length = int.from_bytes(data[len(_MAGIC) : start], "little")
    header = msgspec.msgpack.decode(data[start : start + length], type=Header)
    if header.token_count < 0 or header.state_bytes < 0:
        raise ValueError("its sizes are negative")
    return header, start + length
