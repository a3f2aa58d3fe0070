"""What passes between the server and a replica: small packed messages, since every one is an object of Ray's."""

import hashlib
from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec

from pocketserver.chat import EmbeddingInput, Event, GenerationRequest, ModelInfo, Role
from pocketserver.errors import Code, Refusal

_MOST_PROMPT_CHARACTERS = 512
Answered = TypeVar("Answered")


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A refusal on its way; exceptions of ours would arrive wrapped in Ray's."""

    code: Code
    message: str
    param: str | None = None
    retry_after: float | None = None
    details: dict[str, int] = {}

    @classmethod
    def of(cls, refusal: Refusal) -> "Problem":
        return cls(
            code=refusal.code,
            message=refusal.message,
            param=refusal.param,
            retry_after=refusal.retry_after,
            details=refusal.details,
        )

    def refusal(self) -> Refusal:
        return Refusal(
            self.code, self.message, param=self.param, retry_after=self.retry_after, details=dict(self.details)
        )


class Piece(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of an answer. The first one names the replica, whose engine has accepted. A problem is the last one."""

    replica: str = ""
    events: list[Event] = []
    problem: Problem | None = None


class ToEmbed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Inputs to embed."""

    inputs: list[EmbeddingInput]
    truncate: bool


class Reply(msgspec.Struct, Generic[Answered], frozen=True, kw_only=True, omit_defaults=True):
    """What a replica says to anything but `generate`: an answer or a problem."""

    answer: Answered | None = None
    problem: Problem | None = None


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica serves; all of one application are alike."""

    engine: str
    model: str
    context_size: int | None
    supports_tools: bool
    models: list[ModelInfo]
    most_replicas: int


def conversation_of(request: GenerationRequest) -> str:
    """A word that the turns of one conversation share: what stands up to its first question."""
    beginning = request.prompt[:_MOST_PROMPT_CHARACTERS] if request.prompt else _first_messages(request)
    return hashlib.sha256(f"{request.model}\0{beginning}".encode("utf-8", "replace")).hexdigest()[:32]


def rank(conversation: str, replicas: Sequence[str]) -> list[str]:
    """Replicas in the order in which this conversation is to try them (rendezvous hashing).

    Every server ranks alike without talking to the others; one replica more or less moves only the conversations that
    it takes or had.
    """

    def weight(replica: str) -> bytes:
        return hashlib.blake2b(f"{conversation}\0{replica}".encode(), digest_size=8).digest()

    return sorted(replicas, key=weight, reverse=True)


def _first_messages(request: GenerationRequest) -> str:
    said: list[str] = []
    for message in request.messages:
        said.append(f"{message.role}\0{message.content}")
        if message.role is Role.USER:
            break
    return "\0".join(said)
