"""What an upstream's errors mean to our clients: a code of ours and a sentence without its host, key or markup.

Engines answer errors in many shapes: OpenAI's object, a bare string, an HTML page of a proxy, nothing at all.
"""

import math
import re
from collections.abc import Mapping

import msgspec

from pocketserver.errors import Code, Refusal

MAX_ERROR_BYTES = 64 * 1024
DEFAULT_RETRY_SECONDS = 5.0
_MOST_CHARACTERS = 300
_LONGEST_RETRY_SECONDS = 3600.0
_ADDRESS = re.compile(r"(?i)\b(?:https?://\S+|\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?|[\w.-]+:\d{2,5}\b|sk-[\w-]+)")

UNREACHABLE = "The engine behind this server cannot be reached at the moment. Try again shortly."
KEY_REFUSED = (
    "The engine behind this server refused this server's own key. Its owner sets POCKETSERVER_UPSTREAM_KEY; "
    "your key is right."
)
BROKEN = "The engine behind this server broke off or answered in a way that cannot be read. Try again."


class UpstreamFault(Exception):  # noqa: N818 - it is an upstream's fault, not ours
    """An upstream's failure: what to tell the client, and whether another upstream may do better."""

    def __init__(self, refusal: Refusal, *, elsewhere: bool, unhealthy: bool = False) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal
        self.elsewhere = elsewhere
        """Whether the same request may be tried with another upstream."""
        self.unhealthy = unhealthy
        """Whether this upstream should be left alone for a while."""


def unreachable() -> UpstreamFault:
    refusal = Refusal(Code.UPSTREAM_UNREACHABLE, UNREACHABLE, retry_after=DEFAULT_RETRY_SECONDS)
    return UpstreamFault(refusal, elsewhere=True, unhealthy=True)


def broken(*, elsewhere: bool = True) -> UpstreamFault:
    """A stream that ended in the middle, or a body that is none."""
    return UpstreamFault(Refusal(Code.UPSTREAM_FAILED, BROKEN), elsewhere=elsewhere)


def silent(seconds: float) -> UpstreamFault:
    """A stream in which nothing came for so long."""
    sentence = f"The engine behind this server was silent for {seconds:g} seconds in its answer. Try again."
    return UpstreamFault(Refusal(Code.UPSTREAM_FAILED, sentence), elsewhere=True)


def unreadable(body: bytes) -> UpstreamFault:
    """A 200 that is no answer: perhaps it explains itself."""
    said = message_of(body)[0] if b'"error"' in body[:MAX_ERROR_BYTES] else None
    return failed(said)


def from_status(status: int, headers: Mapping[str, str], body: bytes) -> UpstreamFault:
    """What an answer other than 200 means."""
    said, code = message_of(body)
    if code == Code.UPSTREAM_FAILED and said:  # another server of ours, whose words are these
        return UpstreamFault(Refusal(Code.UPSTREAM_FAILED, said), elsewhere=True)
    if status in (502, 503, 504):
        refusal = Refusal(Code.UPSTREAM_UNREACHABLE, UNREACHABLE, retry_after=_retry_after(headers))
        return UpstreamFault(refusal, elsewhere=True, unhealthy=True)
    if not 400 <= status < 500:
        return failed(said)
    known: Mapping[int, Refusal] = {
        401: Refusal(Code.UPSTREAM_FAILED, KEY_REFUSED),
        403: Refusal(Code.UPSTREAM_FAILED, KEY_REFUSED),
        404: Refusal(Code.MODEL_NOT_FOUND, said or "The engine behind this server has no such model.", param="model"),
        407: Refusal(Code.UPSTREAM_FAILED, KEY_REFUSED),
        413: Refusal(Code.REQUEST_TOO_LARGE, said or "Send less text in one request."),
        429: Refusal(
            Code.MODEL_BUSY,
            "The engine behind this server is busy. Try again shortly.",
            retry_after=_retry_after(headers),
        ),
    }
    return UpstreamFault(known.get(status) or _refused(said, code), elsewhere=status in (401, 403, 404, 407, 429))


def failed(said: str | None) -> UpstreamFault:
    """A failure that the upstream explains or not, as a 5xx or inside a 200."""
    sentence = f"The engine behind this server failed: {said}" if said else BROKEN
    return UpstreamFault(Refusal(Code.UPSTREAM_FAILED, sentence), elsewhere=True)


def message_of(body: bytes) -> tuple[str | None, str | None]:
    """The message and the code of an error document of any known shape; None for what cannot be shown to people."""
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None, None
    error = document.get("error", document.get("detail", document)) if isinstance(document, dict) else document
    if isinstance(error, dict):
        words = [word for word in (error.get("code"), error.get("type")) if isinstance(word, str)]
        return _shown(error.get("message")), next(iter(words), None)
    return _shown(error), None


def _refused(said: str | None, code: str | None) -> Refusal:
    if code in ("context_length_exceeded", "exceed_context_size_error"):
        return Refusal(Code.CONTEXT_LENGTH_EXCEEDED, said or "The prompt is too long for the model.", param="messages")
    return Refusal(Code.INVALID_PARAMETER, said or "The engine behind this server refused the request.")


def _shown(text: object) -> str | None:
    if not isinstance(text, str) or "<html" in text[:1000].lower():
        return None
    line = _ADDRESS.sub("…", " ".join(text[:2000].split()))
    return line if len(line) <= _MOST_CHARACTERS else line[: _MOST_CHARACTERS - 1] + "…"


def _retry_after(headers: Mapping[str, str]) -> float:
    try:
        seconds = float(headers.get("Retry-After", ""))
    except ValueError:  # absent, or a date
        return DEFAULT_RETRY_SECONDS
    return DEFAULT_RETRY_SECONDS if math.isnan(seconds) else min(max(seconds, 0.0), _LONGEST_RETRY_SECONDS)
