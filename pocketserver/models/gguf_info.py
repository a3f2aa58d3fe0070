"""A GGUF file's metadata as JSON values, for people and clients who want to see all of it."""

import math
from collections.abc import Mapping
from pathlib import Path

from pocketserver.chat import JsonValue
from pocketserver.models.gguf import opened_header
from pocketserver.models.gguf_header import MAX_TEXT_BYTES, Cursor, Entry, Header
from pocketserver.models.gguf_tables import ValueType

MAX_SHOWN_BYTES = 32 << 20  # of texts in arrays; the largest vocabularies have about 4 MB


def read_model_info(path: Path, parameter_count: int, *, arrays: bool = False) -> Mapping[str, JsonValue]:
    """Every metadata key with its value; arrays are None unless asked for. Blocks. Raises `BadModelFile`.

    `general.parameter_count` is added, which files seldom have and clients read.
    """
    with opened_header(path) as header:
        left = _Allowance(MAX_SHOWN_BYTES)
        info = {key: _value(header, entry, key, left, arrays=arrays) for key, entry in header.entries.items()}
    return {"general.parameter_count": parameter_count, **info}


class _Allowance:
    """How many bytes of arrays may still be read."""

    def __init__(self, total_bytes: int) -> None:
        self._left = total_bytes

    def take(self, count: int) -> bool:
        self._left -= count
        return self._left >= 0


def _value(header: Header, entry: Entry, key: str, left: _Allowance, *, arrays: bool) -> JsonValue:
    cursor = header.at(entry)
    if not entry.is_array:
        return _scalar(cursor, entry.type, key)
    if not arrays or not left.take(entry.count * 8):
        return None
    values = []
    for _ in range(entry.count):
        before = cursor.position
        values.append(_scalar(cursor, entry.type, key))
        if not left.take(cursor.position - before):
            return None
    return values


def _scalar(cursor: Cursor, kind: ValueType, key: str) -> JsonValue:
    if kind is ValueType.STRING:
        return cursor.string(MAX_TEXT_BYTES, key).decode(errors="replace")
    number = cursor.number(kind)
    if kind is ValueType.BOOL:
        return bool(number)
    return number if math.isfinite(number) else None  # JSON has no infinity
