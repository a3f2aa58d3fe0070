"""Remembers on which machine, with which model and llama.cpp build repacked weights crash (design, decision 2).

One small JSON file, written whole; several servers may share it. A damaged file counts as empty.
"""

import contextlib
import hashlib
import os
import platform
import tempfile
from pathlib import Path

import msgspec

FILE_NAME = "safe_mode.json"
_MOST_ENTRIES = 200


class _Record(msgspec.Struct, frozen=True):
    crashed: tuple[str, ...] = ()


class SafeModeMemory:
    """What crashed before. Blocks; call it in a thread."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME

    def holds(self, key: str) -> bool:
        return key in self._read().crashed

    def remember(self, key: str) -> None:
        """Add a combination; the oldest are forgotten. Raises OSError when the folder cannot be written."""
        kept = [other for other in self._read().crashed if other != key]
        record = _Record(crashed=(*kept[-_MOST_ENTRIES:], key))
        _write_whole(self._path, msgspec.json.encode(record))

    def _read(self) -> _Record:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_Record)
        except (OSError, msgspec.MsgspecError):
            return _Record()


def combination(model: Path, size_bytes: int, build: str) -> str:
    """A key for this machine's processor, a model file and a build of the library."""
    parts = "\n".join((_processor(), platform.machine(), model.name, str(size_bytes), build))
    return hashlib.sha256(parts.encode()).hexdigest()[:32]


def _processor() -> str:
    """The processor's name and features where the system tells them: a moved virtual machine is another machine."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
    return platform.processor()


def _write_whole(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
