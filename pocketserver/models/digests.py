"""SHA-256 digests of weights: computed once for each file, remembered by what tells that it is still the same."""

import contextlib
import hashlib
import threading
import time
from collections.abc import Callable, Iterable
from os import stat_result
from pathlib import Path

import msgspec

from pocketserver.errors import StartupError
from pocketserver.models.installed import InstalledModel
from pocketserver.models.journal import STORE_LOCK
from pocketserver.models.whole_file import held, put_in_place

READ_BYTES = 4 << 20
END_BYTES = 64 << 10
MAX_REMEMBERED = 10_000
_MAX_FILE_BYTES = 4 << 20


class DigestCache:
    """What is known of the files' digests, by device, inode, size and time of change; so names share by hard links.

    Every method but `of` may block for as long as a file takes to read.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / ".digests.json"
        self._known: dict[str, str] | None = None
        self._stand_ins: dict[str, str] = {}

    def of(self, model: InstalledModel) -> tuple[str, bool]:
        """A model's digest and whether it is the real one; else a stand-in that stays the same until it is known.

        That of a split model is the digest of its parts' digests in hexadecimal, one after another.
        """
        if model.digest is not None:
            return model.digest, True
        parts = [self.known(path) for path in model.weights]
        if None not in parts:
            return (parts[0] or "") if len(parts) == 1 else _sha256("".join(filter(None, parts)).encode()), True
        return self._stand_in(model.weights[0]), False

    def known(self, path: Path) -> str | None:
        """A file's digest, when it has been computed since the file last changed."""
        try:
            return self._all().get(_key(path.stat()))
        except OSError:
            return None

    def remember(self, path: Path, digest: str) -> None:
        """Keep a digest for later and for other processes; a folder that cannot be written is no fault."""
        known = self._all()
        known[_key(path.stat())] = digest
        with contextlib.suppress(OSError, StartupError), held(self._file.with_name(STORE_LOCK)):
            known |= self._read() | known
            while len(known) > MAX_REMEMBERED:
                known.pop(next(iter(known)))
            temporary = self._file.with_name(f"{self._file.name}.new")
            temporary.write_bytes(msgspec.json.encode(known))
            put_in_place(temporary, self._file)

    def unknown(self, models: Iterable[InstalledModel]) -> list[Path]:
        """The files of sound models whose digest has to be computed, smallest first."""
        files = {
            path
            for model in models
            if model.metadata is not None and model.digest is None
            for path in model.weights
            if self.known(path) is None
        }
        return sorted(files, key=_size)

    def compute(self, path: Path, stop: threading.Event, *, rest: float = 0.0) -> str | None:
        """Read a file for its digest and remember it; None when told to stop.

        `rest` is the time to pause for each second of work, so that hashing does not slow the model down.
        """
        before = path.stat()
        digest = file_digest(path, stop, lambda seconds: stop.wait(seconds * rest) if rest else None)
        if digest is not None and _key(path.stat()) == _key(before):
            self.remember(path, digest)
        return digest

    def _stand_in(self, path: Path) -> str:
        try:
            key = _key(path.stat())
            if key not in self._stand_ins:
                if len(self._stand_ins) >= MAX_REMEMBERED:
                    self._stand_ins.clear()
                self._stand_ins[key] = _ends_digest(path)
            return self._stand_ins[key]
        except OSError:
            return _sha256(path.name.encode(errors="replace"))

    def _all(self) -> dict[str, str]:
        if self._known is None:
            self._known = self._read()
        return self._known

    def _read(self) -> dict[str, str]:
        """What the file holds; a damaged one holds nothing, for all of it can be computed again."""
        try:
            if self._file.stat().st_size > _MAX_FILE_BYTES:
                return {}
            return msgspec.json.decode(self._file.read_bytes(), type=dict[str, str])
        except (OSError, msgspec.DecodeError):
            return {}


def file_digest(
    path: Path, stop: threading.Event, after_block: Callable[[float], object] = lambda _seconds: None
) -> str | None:
    """The SHA-256 of a whole file; None when told to stop. `after_block` is told how long each block took."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while not stop.is_set():
            began = time.monotonic()
            block = file.read(READ_BYTES)
            if not block:
                return digest.hexdigest()
            digest.update(block)
            after_block(time.monotonic() - began)
    return None


def _ends_digest(path: Path) -> str:
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(END_BYTES)
        file.seek(max(0, size - END_BYTES))
        return _sha256(str(size).encode() + head + file.read(END_BYTES))


def _key(stat: stat_result) -> str:
    return f"{stat.st_dev}-{stat.st_ino}-{stat.st_size}-{stat.st_mtime_ns}"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
