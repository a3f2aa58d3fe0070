"""Text that goes into, or came out of, mDNS records: instance names, TXT records, and foreign names made printable."""

import unicodedata
from dataclasses import dataclass
from enum import StrEnum

SERVICE_TYPES = ("_pocketllm._tcp.local.", "_openai._tcp.local.", "_http._tcp.local.")
LABEL_BYTES = 63  # RFC 6763 section 4.1.1
TXT_BYTES = 400  # RFC 6763 section 6.2: the record still fits a 512-byte message
TXT_STRING_BYTES = 255  # RFC 6763 section 6.1
_FALLBACK_LABEL = "pocketserver"


class Auth(StrEnum):
    """What a client must send: a bearer key, or nothing."""

    BEARER = "bearer"
    NONE = "none"


class Readiness(StrEnum):
    """What the TXT record says about the model."""

    READY = "ready"
    BUSY = "busy"
    LOADING = "loading"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What the TXT record tells everyone on the link; nothing in it may be a secret."""

    version: str
    auth: Auth = Auth.BEARER
    model: str | None = None
    context_tokens: int | None = None
    state: Readiness = Readiness.READY
    room: str | None = None
    """The code of the room that this server hosts. It is a name, not a secret."""


def instance_label(wanted: str, number: int = 1) -> str:
    """A legal instance name: NFC, no control characters, at most 63 bytes with its " (2)" when the name was taken."""
    text = unicodedata.normalize("NFC", wanted)
    text = "".join(character for character in text if not _is_control(character)).strip()
    if not text.strip("."):
        text = _FALLBACK_LABEL
    suffix = "" if number == 1 else f" ({number})"
    return cut(text, LABEL_BYTES - len(suffix)).rstrip() + suffix


def text_record(description: Description, identity: str) -> dict[str, str]:
    """The TXT pairs in order; the model's name is what gives way when the record would grow over its limits."""
    pairs = {
        "txtvers": "1",
        "path": "/",
        "api": "openai",
        "base": "/v1",
        "auth": description.auth.value,
        "ver": cut(description.version, 32),
        "id": identity,
        "state": description.state.value,
    }
    if description.room is not None:
        pairs["room"] = description.room
    if description.context_tokens is not None:
        pairs["ctx"] = str(description.context_tokens)
    if description.model:
        room = min(TXT_STRING_BYTES, TXT_BYTES - txt_bytes(pairs) - 1) - len("model=")
        pairs["model"] = cut(_without_controls(description.model), room)
    return pairs


def txt_bytes(pairs: dict[str, str]) -> int:
    """Size of these pairs as a TXT record: one length byte a string."""
    return sum(2 + len(key.encode()) + len(value.encode()) for key, value in pairs.items())


def cut(text: str, limit_bytes: int) -> str:
    """The longest beginning of `text` whose UTF-8 has at most `limit_bytes` bytes, never half a character."""
    return text.encode("utf-8", "replace")[:limit_bytes].decode("utf-8", "ignore")


def printable(text: str) -> str:
    """Foreign text with everything that a terminal could act upon written as an escape."""
    return "".join(character if character.isprintable() else _escape(character) for character in text)


def _without_controls(text: str) -> str:
    return "".join(character for character in text if not _is_control(character))


def _is_control(character: str) -> bool:
    return unicodedata.category(character) in {"Cc", "Cs"}


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
