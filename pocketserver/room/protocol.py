"""Every message between a room's host and its guests, and how one becomes a frame. docs/room-protocol.md explains them.

One message is one binary WebSocket frame of MessagePack: a map whose `type` names the message. Nothing here opens a
connection, and nothing knows HTTP.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, TypeAlias, get_args

import msgspec
from msgspec import Meta

from pocketserver.chat import Event, GenerationRequest
from pocketserver.errors import Code, Refusal

SUBPROTOCOL = "pocketserver.room.v1"
PATH = "/room"
VERSION = 1
NONCE_BYTES = 32
MAC_BYTES = 32
MAX_HANDSHAKE_BYTES = 1024
"""Of one frame before the guest has proved its key."""
MAX_REQUEST_BYTES = 3_500_000
MAX_GUEST_FRAME_BYTES = MAX_REQUEST_BYTES + 16 * 1024
"""What a host reads in one frame: a request of the largest size, and its envelope."""
MAX_HOST_FRAME_BYTES = 8 * 1024 * 1024
"""What a guest reads in one frame: events with many scores are large."""
HEARTBEAT_SECONDS = 5.0
DEADLINE_SECONDS = 15.0
"""A link on which nothing came for so long is dead."""
HANDSHAKE_SECONDS = 5.0
MOST_REASON_BYTES = 120
"""Of the text in a closing WebSocket frame (RFC 6455, 5.5.1, allows 123)."""

_CODES = frozenset(code.value for code in Code)

Name = Annotated[str, Meta(min_length=1, max_length=64)]
Sentence = Annotated[str, Meta(max_length=4000)]
Number = Annotated[int, Meta(ge=0, le=2**53)]
Nonce = Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
Mac = Annotated[bytes, Meta(min_length=MAC_BYTES, max_length=MAC_BYTES)]


class _Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Fields that a receiver does not know are ignored, so that they can be added."""


class Hello(_Message, frozen=True, kw_only=True, tag="hello"):
    """The guest's first frame: the version it speaks, the room it means, and what it calls itself."""

    version: int
    room: Annotated[str, Meta(max_length=16)]
    name: Name
    nonce: Nonce


class Challenge(_Message, frozen=True, kw_only=True, tag="challenge"):
    """The host's answer. It says nothing but that here is a room."""

    version: int
    nonce: Nonce


class Proof(_Message, frozen=True, kw_only=True, tag="proof"):
    """The guest knows a key."""

    mac: Mac


class Welcome(_Message, frozen=True, kw_only=True, tag="welcome"):
    """The host knows the same key. `you` is the name under which it lists the guest."""

    mac: Mac
    name: Name
    you: Name


class Announcement(_Message, frozen=True, kw_only=True, tag="room"):
    """The room's model: sent after the welcome, and whenever something of it changes.

    `ready` says that it can answer; `problem` is why not, as a sentence, while nothing is loading.
    """

    model: str | None = None
    context_size: int | None = None
    ready: bool = False
    loading: bool = False
    load_progress: float | None = None
    supports_tools: bool = False
    counts_tokens: bool = True
    problem: Sentence | None = None


class ApiClients(_Message, frozen=True, kw_only=True, tag="api_clients"):
    """Whether the guest's own API clients may use the room. Without, the link stays, and nothing is answered."""

    allowed: bool
    reason: Sentence = ""


class Ask(_Message, frozen=True, kw_only=True, tag="ask"):
    """A request, under a number that its guest has not used on this link."""

    id: Number
    request: GenerationRequest


class Count(_Message, frozen=True, kw_only=True, tag="count"):
    """How many tokens would this prompt be?"""

    id: Number
    request: GenerationRequest


class Cancel(_Message, frozen=True, kw_only=True, tag="cancel"):
    """Nobody waits for this answer any more. Nothing comes back."""

    id: Number


class Queued(_Message, frozen=True, kw_only=True, tag="queued"):
    """The request waits at the host: position 2 is next after the running one. Told whenever it changes."""

    id: Number
    position: Number


class Working(_Message, frozen=True, kw_only=True, tag="working"):
    """The request has the model, or its prompt is a piece further: there is nothing to tell, but it lives."""

    id: Number


class Accepted(_Message, frozen=True, kw_only=True, tag="accepted"):
    """Nothing can be refused any more; the events follow."""

    id: Number


class Events(_Message, frozen=True, kw_only=True, tag="events"):
    """The next part of an answer. The last event of a whole answer is `finished`; nothing follows it."""

    id: Number
    events: list[Event]


class Counted(_Message, frozen=True, kw_only=True, tag="counted"):
    id: Number
    tokens: Number


class Refused(_Message, frozen=True, kw_only=True, tag="refused"):
    """The request is not answered, or not to its end; nothing follows. `code` is a word of errors.py.

    `request_cancelled` says that somebody at the host pressed Stop.
    """

    id: Number
    code: Annotated[str, Meta(max_length=64)]
    message: Sentence
    param: Annotated[str, Meta(max_length=1000)] | None = None
    retry_after: float | None = None
    details: Mapping[str, int] = {}

    @classmethod
    def of(cls, number: int, refusal: Refusal) -> "Refused":
        return cls(
            id=number,
            code=refusal.code.value,
            message=refusal.message[:4000],
            param=None if refusal.param is None else refusal.param[:1000],
            retry_after=refusal.retry_after,
            details=refusal.details,
        )

    def refusal(self) -> Refusal:
        """A code of a later version is a failure like any other."""
        code = Code(self.code) if self.code in _CODES else Code.GENERATION_FAILED
        return Refusal(code, self.message, param=self.param, retry_after=self.retry_after, details=dict(self.details))


class Goodbye(_Message, frozen=True, kw_only=True, tag="goodbye"):
    """The host ends the link; the frame after it closes it. `reason` is one of `Reason`, or of a later version."""

    reason: Annotated[str, Meta(max_length=64)]
    message: Sentence


class Heartbeat(_Message, frozen=True, kw_only=True, tag="heartbeat"):
    """I am here. Both sides send it every `HEARTBEAT_SECONDS`."""


class Reason(StrEnum):
    """Why a host ends a link."""

    KICKED = "kicked"
    CLOSED = "closed"
    KEY_REVOKED = "key_revoked"
    WRONG_KEY = "wrong_key"
    WRONG_ROOM = "wrong_room"
    TOO_MANY_ATTEMPTS = "too_many_attempts"
    UNKNOWN_VERSION = "unknown_version"
    FULL = "full"
    MALFORMED = "malformed"
    SHUTTING_DOWN = "shutting_down"


FINAL = frozenset({Reason.KICKED, Reason.CLOSED, Reason.KEY_REVOKED})
"""The host's owner does not want this guest: it stays away until it is started again."""

FromGuest: TypeAlias = Hello | Proof | Ask | Count | Cancel | Heartbeat
FromHost: TypeAlias = (
    Challenge
    | Welcome
    | Announcement
    | ApiClients
    | Queued
    | Working
    | Accepted
    | Events
    | Counted
    | Refused
    | Goodbye
    | Heartbeat
)


class MalformedError(Exception):
    """A frame that is no message. The link that it came on is closed."""


class _Typed(msgspec.Struct):
    type: str


_from_guest = msgspec.msgpack.Decoder(FromGuest)
_from_host = msgspec.msgpack.Decoder(FromHost)
_type_alone = msgspec.msgpack.Decoder(_Typed)


def from_guest(frame: bytes) -> FromGuest | None:
    """What a host reads; None for a type that it does not know, which may be of a later version.

    Raises MalformedError.
    """
    try:
        return _from_guest.decode(frame)
    except (ValueError, RecursionError) as error:  # msgspec's own are ValueErrors, and so is text that is no UTF-8
        _pass_over(frame, FromGuest, error)
        return None


def from_host(frame: bytes) -> FromHost | None:
    """What a guest reads; see `from_guest`."""
    try:
        return _from_host.decode(frame)
    except (ValueError, RecursionError) as error:
        _pass_over(frame, FromHost, error)
        return None


def _pass_over(frame: bytes, known: object, error: Exception) -> None:
    """Nothing for a message of an unknown type; whatever else could not be read raises MalformedError."""
    try:
        kind = _type_alone.decode(frame).type
    except (ValueError, RecursionError):
        kind = None
    if kind is None or kind in {member.__struct_config__.tag for member in get_args(known)}:
        raise MalformedError(_what(error)) from None


_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode
"""A message as a frame."""


def closing_text(text: str) -> bytes:
    """As much of a sentence as a closing frame holds, never half a character."""
    return text.encode()[:MOST_REASON_BYTES].decode(errors="ignore").encode()


def _what(error: Exception) -> str:
    """The fault in words that quote nothing of the frame."""
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]
