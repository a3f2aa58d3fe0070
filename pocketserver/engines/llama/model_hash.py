"""The SHA-256 of a model's files, computed once and remembered for as long as they do not change."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

FILE_NAME = "model_hashes.json"
_MOST_ENTRIES = 500
_PIECE_BYTES = 1024 * 1024


def identity_of(parts: Sequence[Path]) -> str:
    """Path, size, number and time of change: whoever replaces a file changes one of them. Raises OSError."""
    facts = [(str(part.resolve()), part.stat()) for part in parts]
    lines = [f"{path} {status.st_size} {status.st_ino} {status.st_mtime_ns}" for path, status in facts]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


class HashMemory:
    """Hashes by path, size and time of change. One small file, shared by servers; a damaged one counts as empty."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME

    def known(self, parts: Sequence[Path]) -> str | None:
        """The hash, if it was computed before. Raises OSError when a part cannot be read."""
        return self._read().get(identity_of(parts))

    def compute(self, parts: Sequence[Path]) -> str:
        """The hash over all parts of a model. Reads them all: seconds for a large model. Raises OSError."""
        identity, whole = identity_of(parts), hashlib.sha256()
        for part in parts:
            with part.open("rb", buffering=0) as file:
                while piece := file.read(_PIECE_BYTES):
                    whole.update(piece)
        kept = list((self._read() | {identity: whole.hexdigest()}).items())[-_MOST_ENTRIES:]
        self._write(msgspec.json.encode(dict(kept)))
        return whole.hexdigest()

    def _write(self, data: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(f".{os.getpid()}")
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def _read(self) -> dict[str, str]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, str])
        except (OSError, msgspec.MsgspecError):
            return {}
