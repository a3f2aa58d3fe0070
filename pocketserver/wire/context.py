"""What a wire module is given to work with, and what it leaves behind for the log and the metrics."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from aiohttp import web

from pocketserver.chat import Event, Finished, GenerationRequest, ModelInfo, Timings, Usage
from pocketserver.errors import Code, Refusal


class Turn(Protocol):
    """The model in one client's hands, for answers one after another."""

    def open(self, request: GenerationRequest) -> AbstractAsyncContextManager[AsyncIterator[Sequence[Event]]]: ...


class Door(Protocol):
    """The one way to the model, see gate/admission.py."""

    def check_ready(self) -> None: ...

    def open(
        self, request: GenerationRequest, *, owner: str | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[Sequence[Event]]]: ...

    def turn(self, *, owner: str | None = None) -> AbstractAsyncContextManager[Turn]: ...


@dataclass(slots=True)
class Answer:
    """What became of one request: filled by a wire module, read by the access line and the metrics.

    `created` is the Unix time that the answer carries, `time_to_first_token` is in seconds from the request's arrival.
    """

    arrived: float
    created: int = field(default_factory=lambda: int(time.time()))
    model: str | None = None
    time_to_first_token: float | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    tokens: int = 0
    refusal: Refusal | None = None

    def note(self, batch: Sequence[Event]) -> None:
        """Look at events on their way out."""
        if self.time_to_first_token is None and batch:
            self.time_to_first_token = time.monotonic() - self.arrived
        for event in batch:
            if isinstance(event, Finished):
                self.usage = added(self.usage, event.usage)
                self.timings = event.timings
            else:
                self.tokens += getattr(event, "tokens", 0)


def added(before: Usage | None, more: Usage) -> Usage:
    """The counts of several answers to one prompt: the prompt counts once, what was written adds up."""
    if before is None:
        return more
    return Usage(
        prompt_tokens=before.prompt_tokens,
        completion_tokens=before.completion_tokens + more.completion_tokens,
        cached_tokens=before.cached_tokens,
        reasoning_tokens=before.reasoning_tokens + more.reasoning_tokens,
    )


ANSWER = web.RequestKey("answer", Answer)
REQUEST_ID = web.RequestKey("request_id", str)
KEY_NAME = web.RequestKey("key_name", str)


async def body_of(request: web.Request, seconds: float) -> bytes:
    """The whole body, read before any place at the model is taken. Raises MALFORMED_REQUEST when it is too slow."""
    if request.content.is_eof():  # it came with the headers, as small bodies do: no timer for nothing
        return await request.read()
    try:
        async with asyncio.timeout(seconds):
            return await request.read()
    except TimeoutError:
        raise Refusal(
            Code.MALFORMED_REQUEST, f"The body did not arrive within {seconds:g} seconds. Send the request again."
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNames:
    """From the name that a client wrote to the id of a model.

    `generic` names mean the loaded model, whatever it is.
    """

    installed: Callable[[], Awaitable[Sequence[ModelInfo]]]
    loaded: Callable[[], str | None]
    generic: frozenset[str]

    async def resolve(self, name: str | None) -> str:
        """The loaded model's id. Raises MODEL_NOT_FOUND for any other model, installed or not."""
        loaded = self.loaded()
        if loaded is not None and (name is None or name == loaded or name in self.generic):
            return loaded
        known = any(model.id == name for model in await self.installed())
        reason = "is not loaded" if known else "does not exist here"
        raise Refusal(
            Code.MODEL_NOT_FOUND,
            f'The model {_shown(name)} {reason}. Use {loaded!r}, or a generic name such as "default"; '
            "GET /v1/models lists what there is.",
            param="model",
        )


def _shown(name: str | None) -> str:
    text = ascii(name or "")
    return text if len(text) <= 80 else text[:77] + "…'"
