"""Remembers how a model's replies look from one start to the next: some hundred renders of its template are saved.

A file that is damaged, foreign or of another version is passed over. What is remembered depends on nothing but the
template and the vocabulary's special tokens, so these two are the key.
"""

import hashlib
import json
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path

from pocketserver import __version__
from pocketserver.chat import JsonValue
from pocketserver.engines.llama.tool_syntax import (
    JsonForm,
    NamedForm,
    ReasoningMarks,
    ReplyFormat,
    Slot,
    TaggedForm,
    ToolSyntax,
    ValueStyle,
)
from pocketserver.engines.llama.traits import CallIds, Traits

FOLDER = "reply-formats"
MOST_FILES = 64
_DERIVATION = 1
"""Raised when the same template would be understood differently than before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What an examination of a template found."""

    traits: Traits
    reply_format: ReplyFormat


_KINDS: Mapping[str, type] = {
    kind.__name__: kind
    for kind in (Examined, Traits, ReplyFormat, ReasoningMarks, ToolSyntax, JsonForm, NamedForm, TaggedForm)
}
_WORDS: Mapping[str, type[Enum]] = {kind.__name__: kind for kind in (CallIds, Slot, ValueStyle)}


def examination_key(
    source: str, fixed_texts: Collection[str], special_tokens: Collection[str], end_tokens: Collection[str]
) -> str:
    """One key for a template's source, the texts of its begin and end tokens, and the vocabulary's special tokens."""
    parts = [__version__, _DERIVATION, source, list(fixed_texts), sorted(special_tokens), sorted(end_tokens)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def remembered(folder: Path | None, key: str, examine: Callable[[], Examined]) -> Examined:
    """What the folder holds under this key, else what `examine` finds, kept for the next time. Never raises itself."""
    if folder is None:
        return examine()
    path = folder / FOLDER / f"{key}.json"
    found = _read(path)
    if found is None:
        found = examine()
        with suppress(OSError):
            _write(path, json.dumps(_plain(found)))
    return found


def _read(path: Path) -> Examined | None:
    try:
        found = _valued(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return found if isinstance(found, Examined) else None


def _write(path: Path, text: str) -> None:
    """Whole or not at all; the oldest files make room."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = sorted(path.parent.glob("*.json"), key=lambda file: file.stat().st_mtime)
    for old in kept[: max(0, len(kept) - MOST_FILES + 1)]:
        old.unlink(missing_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _plain(value: object) -> JsonValue:
    """A value as JSON: dataclasses and words with the name of their kind, tuples as lists."""
    if isinstance(value, Enum):
        return {"kind": type(value).__name__, "word": value.value}
    if is_dataclass(value):
        named = {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
        return {"kind": type(value).__name__, "fields": named}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _valued(data: JsonValue) -> object:
    if isinstance(data, list):
        return tuple(map(_valued, data))
    if not isinstance(data, dict):
        return data
    if "word" in data:
        return _WORDS[data["kind"]](data["word"])
    return _KINDS[data["kind"]](**{name: _valued(value) for name, value in data["fields"].items()})
