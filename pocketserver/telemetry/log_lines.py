"""What a log line looks like: as text or JSON, with foreign text escaped and secrets taken out."""

import re
import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import TypeAlias

import msgspec

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, what reorders or breaks a line, and bytes that were no UTF-8."""
_MOST_PATH_CHARACTERS = 200
_MOST_MESSAGE_CHARACTERS = 8000
_MOST_CLEAN_TEXTS = 1000
"""Texts without secrets that are remembered: methods, paths, models and names of keys come again and again."""
_KEY = r"(?<![A-Za-z0-9])sk-[A-Za-z0-9_-]{4,}"
_CREDENTIAL = r"(?i:(?:\bbearer|\bbasic)\s+)[^\s\"',;}]{4,}"
_QUOTE = r"(?:\\*[\"'])?"
_ASSIGNED = rf"(?i:\b(?:x-api-key|api[_-]?key|access_token|password){_QUOTE}\s*[=:]\s*{_QUOTE})[^\s\"'&,;}}]+"
_IN_URL = r"(?i:[?#&](?:key|owner|token)=)[^\s\"'&]+"
_HEADER = rf"(?i:\bauthorization{_QUOTE}\s*[=:,]\s*{_QUOTE})[^\r\n\"'}}]+"


class RequestLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One finished request. `path` has no query; `error` is an error code's word; `peer` is the TCP peer's address."""

    method: str
    path: str
    status: int
    seconds: float
    peer: str
    request_id: str
    route: str | None = None
    error: str | None = None
    key_name: str | None = None
    model: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    time_to_first_token: float | None = None
    tokens_per_second: float | None = None
    at: float = msgspec.field(default_factory=time.time)


class MessageLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a logger was told. `exception` is a traceback as text."""

    level: str
    logger: str
    message: str
    exception: str | None = None
    at: float = msgspec.field(default_factory=time.time)


Line: TypeAlias = RequestLine | MessageLine
Format: TypeAlias = Callable[[Line], str]


_FOREIGN_FIELDS: Mapping[type[Line], tuple[str, ...]] = {
    RequestLine: ("method", "path", "model", "key_name"),
    MessageLine: ("message", "exception"),
}
"""Fields whose text may come from elsewhere; the others hold our own words and numbers."""


class Redaction:
    """Takes keys out of texts: whatever looks like one, and the exact secrets it was told."""

    def __init__(self, secrets: Collection[str] = ()) -> None:
        self._secrets: frozenset[str] = frozenset()
        self._pattern = re.compile("|".join((_HEADER, _CREDENTIAL, _KEY, _ASSIGNED, _IN_URL)))
        self._exact: re.Pattern[str] | None = None
        self._clean: set[str] = set()
        for secret in secrets:
            self.add(secret)

    def add(self, secret: str) -> None:
        """Never show this text again, also as a part of JSON."""
        self._secrets |= {secret, msgspec.json.encode(secret).decode()[1:-1]} - {""}
        longest_first = sorted(self._secrets, key=len, reverse=True)
        self._exact = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self._clean = set()

    def of(self, line: Line) -> Line:
        """The line without secrets. Done before a line is put into its form, which changes quotes and letters."""
        changes = {}
        for field in _FOREIGN_FIELDS[type(line)]:
            text = getattr(line, field)
            if text is not None and (redacted := self(text)) != text:
                changes[field] = redacted
        return msgspec.structs.replace(line, **changes) if changes else line

    def __call__(self, text: str) -> str:
        clean = self._clean
        if text in clean:
            return text
        redacted = text if self._exact is None else self._exact.sub("[redacted]", text)
        redacted = self._pattern.sub("[redacted]", redacted)
        if redacted == text and len(text) <= _MOST_PATH_CHARACTERS:
            if len(clean) >= _MOST_CLEAN_TEXTS:
                clean.clear()
            clean.add(text)  # of the set as it was: a secret that is told meanwhile begins a new one
        return redacted


def escaped(foreign: str) -> str:
    """Foreign text on one line: control characters as `\\x1b`, so that nothing forges a line or moves a cursor."""
    if foreign.isascii() and foreign.isprintable():
        return foreign
    return _UNPRINTABLE.sub(lambda match: _escape(match[0]), foreign)


def as_text(line: Line) -> str:
    """For a person at a terminal; tracebacks are indented below their line."""
    clock = _clock(int(line.at))
    match line:
        case RequestLine():
            return f"{clock} {_request_text(line)}"
        case MessageLine():
            text = f"{clock} {line.level} {escaped(line.message[:_MOST_MESSAGE_CHARACTERS])}"
            return text if line.exception is None else f"{text}\n{_indented(line.exception)}"


def as_json(line: Line) -> str:
    """One JSON object a line, for programs; `time` is UTC."""
    document: dict[str, object] = {"time": _utc(line.at)}
    match line:
        case RequestLine():
            document |= {"level": "info", "event": "request", **_fields(line)}
            document["path"] = line.path[:_MOST_PATH_CHARACTERS]
        case MessageLine():
            document |= {"level": line.level, "event": "message", **_fields(line)}
            document["message"] = line.message[:_MOST_MESSAGE_CHARACTERS]
    return msgspec.json.encode({key: _json_safe(key, value) for key, value in document.items()}).decode()


FORMATS: Mapping[str, Format] = {"text": as_text, "json": as_json}


@lru_cache(maxsize=8)
def _clock(second: int) -> str:
    """The local time of day; a busy server's lines share it by the hundred."""
    return time.strftime("%H:%M:%S", time.localtime(second))


def _request_text(line: RequestLine) -> str:
    path = escaped(line.path[:_MOST_PATH_CHARACTERS])
    error = f" {line.error}" if line.error else ""
    tokens = "" if line.completion_tokens is None else f" {line.completion_tokens} tokens"
    rate = "" if line.tokens_per_second is None else f" {line.tokens_per_second:.1f} tokens/s"
    key = "" if line.key_name is None else f" with key {escaped(line.key_name)}"
    begin = f"{escaped(line.method[:20])} {path} {line.status}{error} {line.seconds:.3f} s{tokens}{rate}"
    return f"{begin} from {escaped(line.peer)}{key} {line.request_id}"


def _fields(line: Line) -> dict[str, object]:
    return {
        name: round(value, 4) if isinstance(value, float) else value
        for name, value in msgspec.structs.asdict(line).items()
        if name != "at" and value is not None
    }


def _json_safe(key: str, value: object) -> object:
    if not isinstance(value, str):
        return value
    return "\n".join(map(escaped, value.split("\n"))) if key == "exception" else escaped(value)


def _indented(traceback: str) -> str:
    return "\n".join(f"  {escaped(row)}" for row in traceback.splitlines())


def _escape(character: str) -> str:
    number = ord(character)
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character)
    return named or (f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}")


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
