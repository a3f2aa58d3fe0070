"""What every engine can do, and the stream in which its events reach a reader."""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable

import msgspec

from pocketserver.chat import (
    EmbeddingInput,
    Embeddings,
    EngineStatus,
    Event,
    Explanation,
    Finished,
    GenerationRequest,
    LoadedModel,
    ModelInfo,
)
from pocketserver.errors import Code, Refusal

_MOST_UNREAD_BATCHES = 4


class EventStream:
    """Events of one answer in batches, written by an engine and read by one reader.

    A batch is whatever was made since the last one, so that a fast engine costs one write a batch, not one a token.
    `fail` may be called from anywhere (Stop, the watchdog, a lost worker): it wakes the reader with that Refusal
    at once, ahead of batches not read yet. Iteration ends after `close`.
    """

    def __init__(self) -> None:
        self._batches: deque[Sequence[Event]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._failure: Refusal | None = None
        self._closed = False
        self.last_activity = time.monotonic()
        """When the engine last showed progress (a batch, or prompt tokens read), on the monotonic clock."""
        self.load_seconds = 0.0
        """How long the model was loaded for this answer; goes into the timings of its end."""

    @property
    def failure(self) -> Refusal | None:
        return self._failure

    def touch(self) -> None:
        """Progress without an event, such as a piece of the prompt being read."""
        self.last_activity = time.monotonic()

    def put(self, batch: Sequence[Event]) -> None:
        self.last_activity = time.monotonic()
        self._batches.append(self.stamped(batch))
        self._wake()

    def stamped(self, batch: Sequence[Event]) -> Sequence[Event]:
        """The batch, with the time of loading in the answer's end."""
        if self.load_seconds and batch and isinstance(batch[-1], Finished):
            return [*batch[:-1], _with_load(batch[-1], self.load_seconds)]
        return batch

    def fail(self, refusal: Refusal) -> None:
        """End the stream with an error. The first failure stands; after `close` it has no effect."""
        if self._failure is None and not (self._closed and not self._batches):
            self._failure = refusal
            self._wake()

    async def fail_after_unread(self, refusal: Refusal) -> None:
        """End the stream with an error that came behind everything put so far."""
        while self._batches and self._failure is None:
            self._writer = asyncio.get_running_loop().create_future()
            try:
                await self._writer
            finally:
                self._writer = None
        self.fail(refusal)

    def close(self) -> None:
        self._closed = True
        self._wake()

    @property
    def unread_batches(self) -> int:
        return len(self._batches)

    async def room(self) -> None:
        """Wait until the reader has caught up: for an engine that makes events faster than they are read."""
        while len(self._batches) > _MOST_UNREAD_BATCHES and self._failure is None:
            self._writer = asyncio.get_running_loop().create_future()
            try:
                await self._writer
            finally:
                self._writer = None

    def __aiter__(self) -> "EventStream":
        return self

    async def __anext__(self) -> Sequence[Event]:
        while True:
            if self._failure is not None:
                raise self._failure
            if self._batches:
                return self._next_batch()
            if self._closed:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def _next_batch(self) -> Sequence[Event]:
        batch = self._batches.popleft()
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)
        return batch

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Engine(Protocol):
    """A thing that answers. It knows nothing of HTTP, profiles or API families, and serves one `generate` at a time.

    The admission in front of it sees to that. `start` returns when loading is under way, not when it has ended: the
    state says how far it is. Every method may raise `Refusal`.
    """

    name: str

    @property
    def status(self) -> EngineStatus:
        """The present state; never waits for the model."""
        ...

    def models(self) -> Sequence[ModelInfo]:
        """Installed models, the loaded one marked."""
        ...

    async def start(self) -> None: ...

    async def close(self) -> None:
        """Release the model and every process and task; safe to call twice."""
        ...

    def generate(self, request: GenerationRequest) -> AbstractAsyncContextManager[EventStream]:
        """Open the answer's event stream.

        Entering returns when nothing can be refused any more: the prompt is rendered, counted and fits, the constraint
        compiles. Leaving the block cancels, at once and by itself. A complete stream ends with `Finished`.
        """
        ...

    async def count(self, request: GenerationRequest) -> int:
        """Prompt tokens that this request would take, by the same rendering as `generate`. Does not take the lane."""
        ...

    async def embed(self, inputs: Sequence[EmbeddingInput], *, truncate: bool) -> Embeddings:
        """Vectors of length 1 for these inputs. Takes the lane as `generate` does; cancelling the call cancels.

        An input longer than the context is cut with `truncate`; without it, or when one is empty, the whole call is
        refused in words that name the input.
        """
        ...


@runtime_checkable
class Explaining(Protocol):
    """An engine that can tell what it would make of a request."""

    async def explain(self, request: GenerationRequest) -> Explanation:
        """Render, count and check as `generate` would, beside whatever is running. Does not take the lane.

        What would be refused is told in the explanation. Raises Refusal for what keeps it from looking at all.
        """
        ...


@runtime_checkable
class ModelLoader(Protocol):
    """An engine that can change its model. Both calls take the lane: no answer may be running."""

    async def load_model(self, model: str, keep_alive: float | None = None) -> float:
        """Have this model in memory; returns the seconds that it took, 0 when it was there.

        Raises MODEL_NOT_FOUND, INSUFFICIENT_MEMORY and whatever else keeps a model from loading.
        """
        ...

    async def unload_model(self, model: str) -> None:
        """Have this model out of memory. Nothing happens when it is not loaded."""
        ...

    def loaded_models(self) -> Sequence[LoadedModel]: ...


@runtime_checkable
class Concurrent(Protocol):
    """An engine that answers several requests at once."""

    @property
    def concurrency(self) -> int:
        """How many now; it may change."""
        ...


@runtime_checkable
class Forwarder(Protocol):
    """An engine that passes requests on to other servers, which must be told the way that they came."""

    async def forward_embed(
        self, inputs: Sequence[EmbeddingInput], *, model: str, truncate: bool, via: tuple[str, ...]
    ) -> Embeddings:
        """As `embed`; `via` names the servers that the request has passed."""
        ...


def concurrency_of(engine: Engine) -> int:
    """How many requests an engine answers at once: one, unless it says otherwise."""
    return engine.concurrency if isinstance(engine, Concurrent) else 1


def _with_load(end: Finished, seconds: float) -> Finished:
    return msgspec.structs.replace(end, timings=msgspec.structs.replace(end.timings, load_seconds=seconds))


async def explained(engine: Engine, request: GenerationRequest) -> Explanation:
    """What an engine would make of a request. Raises INVALID_PARAMETER for one that cannot tell."""
    if not isinstance(engine, Explaining):
        raise cannot_explain()
    return await engine.explain(request)


def cannot_explain() -> Refusal:
    return Refusal(
        Code.INVALID_PARAMETER,
        "The model is on another machine, where prompts are made and counted. Ask the server there to explain.",
        param="model",
    )


def stalled(seconds: float) -> Refusal:
    """The refusal of a request whose engine showed no progress for so long."""
    return Refusal(
        Code.GENERATION_STALLED,
        f"The model made no progress for {seconds:g} seconds; it is being restarted. Send the request again.",
        retry_after=5,
    )


def cancelled_by_owner() -> Refusal:
    """The refusal of a request that somebody stopped on the machine itself."""
    return Refusal(Code.REQUEST_CANCELLED, "The generation was cancelled on the server. Send it again to retry.")
