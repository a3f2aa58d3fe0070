"""Where measurements are remembered: one small file for each model on each machine, shared by servers."""

import contextlib
import hashlib
import os
import secrets
from pathlib import Path

import msgspec

from pocketserver.engines.llama.tuning import VERSION, TuningRecord
from pocketserver.models.whole_file import put_in_place

FOLDER = "tuning"
_MOST_RECORDS = 200


def record_key(model_hash: str, machine: str) -> str:
    """A key for a model on a machine: its processor, llama.cpp build, and whether in safe mode."""
    return hashlib.sha256(f"{model_hash}\n{machine}".encode()).hexdigest()[:32]


class TuningMemory:
    """Records by key, each file whole or not there; a damaged one counts as none. Blocks."""

    def __init__(self, state_folder: Path) -> None:
        self._folder = state_folder / FOLDER

    def get(self, key: str) -> TuningRecord | None:
        try:
            record = msgspec.json.decode(self._file(key).read_bytes(), type=TuningRecord)
        except (OSError, msgspec.MsgspecError):
            return None
        return record if record.version == VERSION else None

    def put(self, key: str, record: TuningRecord) -> None:
        """Raises OSError when the folder cannot be written."""
        self._folder.mkdir(parents=True, exist_ok=True)
        temporary = self._folder / f".{key}-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            temporary.write_bytes(msgspec.json.format(msgspec.json.encode(record)))
            put_in_place(temporary, self._file(key))
        finally:
            temporary.unlink(missing_ok=True)
        self._forget_the_oldest()

    def _file(self, key: str) -> Path:
        return self._folder / f"{key}.json"

    def _forget_the_oldest(self) -> None:
        with contextlib.suppress(OSError):  # another server may remove the same file
            files = sorted(self._folder.glob("*.json"), key=lambda file: file.stat().st_mtime)
            for file in files[:-_MOST_RECORDS]:
                file.unlink(missing_ok=True)
