"""Exchanges on disk: an engine that writes down what another one answers, and what such a file holds.

A recording is the request as every wire API brings it, and the batches of events with their times. So it can be
answered again through any API. Written whole, one readable JSON file each; what is secret is taken out first.
"""

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from pocketserver.chat import (
    EmbeddingInput,
    Embeddings,
    EngineStatus,
    Event,
    Explanation,
    Finished,
    GenerationRequest,
    ModelInfo,
    TextDelta,
)
from pocketserver.engines.engine import Engine, EventStream, Forwarder, concurrency_of, explained
from pocketserver.errors import Code, Refusal

FORMAT: Literal["pocketserver-recording-1"] = "pocketserver-recording-1"
Redact = Callable[[str], str]
_Document = TypeVar("_Document")


class RecordedRefusal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a request was not answered, or not to its end."""

    code: Code
    message: str
    param: str | None = None
    retry_after: float | None = None

    def refusal(self) -> Refusal:
        return Refusal(self.code, self.message, param=self.param, retry_after=self.retry_after)


class RecordedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Events that came together, so many seconds after the engine had accepted the request."""

    at: float
    events: list[Event]


class Recording(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One exchange. `accepted_seconds` passed before the engine accepted or refused it.

    With a `refusal` the answer broke off `refused_at` seconds after that, or was never begun.
    """

    format: Literal["pocketserver-recording-1"]
    recorded: str
    engine: str
    context_size: int | None
    request: GenerationRequest
    accepted_seconds: float
    batches: list[RecordedBatch]
    refusal: RecordedRefusal | None = None
    refused_at: float = 0.0


class RecordingEngine:
    """Answers as `engine` does and writes each finished or refused generation into `folder`.

    An answer whose reader left in the middle is not written. `warn` is told when a file cannot be written; the answer
    does not suffer. Any number of servers may record into one folder.
    """

    def __init__(self, engine: Engine, folder: Path, *, redact: Redact, warn: Callable[[str], None]) -> None:
        self.inner = engine
        self.name = engine.name
        self._folder = folder
        self._redact = redact
        self._warn = warn
        self._writing: set[asyncio.Task[None]] = set()

    @property
    def status(self) -> EngineStatus:
        return self.inner.status

    def models(self) -> Sequence[ModelInfo]:
        return self.inner.models()

    async def start(self) -> None:
        await self.inner.start()

    async def close(self) -> None:
        await self.inner.close()
        if self._writing:
            await asyncio.wait(tuple(self._writing))

    async def count(self, request: GenerationRequest) -> int:
        return await self.inner.count(request)

    async def explain(self, request: GenerationRequest) -> Explanation:
        return await explained(self.inner, request)

    @property
    def concurrency(self) -> int:
        return concurrency_of(self.inner)

    async def embed(self, inputs: Sequence[EmbeddingInput], *, truncate: bool) -> Embeddings:
        """Not recorded."""
        return await self.inner.embed(inputs, truncate=truncate)

    async def forward_embed(
        self, inputs: Sequence[EmbeddingInput], *, model: str, truncate: bool, via: tuple[str, ...]
    ) -> Embeddings:
        """Not recorded."""
        if isinstance(self.inner, Forwarder):
            return await self.inner.forward_embed(inputs, model=model, truncate=truncate, via=via)
        return await self.inner.embed(inputs, truncate=truncate)

    @asynccontextmanager
    async def generate(self, request: GenerationRequest) -> AsyncIterator[EventStream]:
        asked = msgspec.structs.replace(request, whole=False)  # so that the chunks are there for whoever streams later
        tape = _Tape(asked)
        try:
            async with self.inner.generate(asked) as stream:
                tape.accepted()
                yield _Overheard(stream, tape)
        except Refusal as refusal:
            tape.refused(refusal)
            raise
        finally:
            if tape.ended:
                await self._keep(tape)

    async def _keep(self, tape: "_Tape") -> None:
        """Write, although a client that has all it wants may leave meanwhile, which cancels whoever waits here."""
        writing = asyncio.create_task(self._write(tape), name="recording")
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)
        await asyncio.shield(writing)

    async def _write(self, tape: "_Tape") -> None:
        recording = redacted(tape.recording(self.inner), self._redact)
        try:
            await asyncio.to_thread(write, recording, self._folder)
        except OSError as error:
            self._warn(f"A recording could not be written to {self._folder}: {error.strerror or error}.")


class _Tape:
    """What is known of one exchange so far."""

    def __init__(self, request: GenerationRequest) -> None:
        self._request = request
        self._recorded = datetime.now(UTC)
        self._began = time.monotonic()
        self._accepted: float | None = None
        self._batches: list[RecordedBatch] = []
        self._refusal: RecordedRefusal | None = None
        self._refused_at = 0.0
        self.ended = False

    def accepted(self) -> None:
        self._accepted = time.monotonic()

    def heard(self, batch: Sequence[Event]) -> None:
        self._batches.append(RecordedBatch(at=self._passed(), events=[*batch]))
        self.ended = self.ended or any(isinstance(event, Finished) for event in batch)

    def refused(self, refusal: Refusal) -> None:
        self._refused_at = self._passed()
        self._refusal = RecordedRefusal(
            code=refusal.code, message=refusal.message, param=refusal.param, retry_after=refusal.retry_after
        )
        self.ended = True

    def recording(self, engine: Engine) -> Recording:
        accepted = self._began + self._refused_at if self._accepted is None else self._accepted
        return Recording(
            format=FORMAT,
            recorded=self._recorded.isoformat(timespec="microseconds"),
            engine=engine.name,
            context_size=engine.status.context_size,
            request=self._request,
            accepted_seconds=round(accepted - self._began, 6),
            batches=self._batches,
            refusal=self._refusal,
            refused_at=0.0 if self._accepted is None else self._refused_at,
        )

    def _passed(self) -> float:
        return round(time.monotonic() - (self._began if self._accepted is None else self._accepted), 6)


class _Overheard(EventStream):
    """Another engine's stream, with a tape beside it."""

    def __init__(self, inner: EventStream, tape: _Tape) -> None:
        self._inner = inner
        self._tape = tape
        super().__init__()

    @property
    def last_activity(self) -> float:
        return self._inner.last_activity

    @last_activity.setter
    def last_activity(self, _moment: float) -> None:
        """The inner stream knows better."""

    @property
    def failure(self) -> Refusal | None:
        return self._inner.failure

    def fail(self, refusal: Refusal) -> None:
        self._inner.fail(refusal)

    async def __anext__(self) -> Sequence[Event]:
        batch = await anext(self._inner)
        self._tape.heard(batch)
        return batch


# Files


def write(recording: Recording, folder: Path) -> Path:
    """Put one recording into a folder: a name of its own, readable by its owner alone, there as a whole or not at all.

    Names begin with the time, so that a folder lists in order. Raises OSError.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    moment = recording.recorded.translate({ord(sign): None for sign in "-:"}).partition("+")[0]
    path = folder / f"{moment}-{secrets.token_hex(4)}.json"
    text = msgspec.json.format(msgspec.json.encode(recording), indent=1)
    beside = folder / f".{path.name}.{os.getpid()}"
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text + b"\n")
        beside.rename(path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
    return path


# Secrets


def redacted(recording: Recording, redact: Redact) -> Recording:
    """Without secrets. A secret that the model spells over several tokens is taken out of the whole text at once."""
    batches = [
        RecordedBatch(at=batch.at, events=[_clean(event, redact) for event in batch.events])
        for batch in recording.batches
    ]
    said = _said(batches)
    if redact(said) != said:
        batches = _replaced(batches, redact(said))
    return msgspec.structs.replace(recording, request=redacted_request(recording.request, redact), batches=batches)


def redacted_request(request: GenerationRequest, redact: Redact) -> GenerationRequest:
    return _clean(request, redact)


def _clean(document: _Document, redact: Redact) -> _Document:
    plain = msgspec.to_builtins(document)
    cleaned = _clean_value(plain, redact)
    return document if cleaned == plain else msgspec.convert(cleaned, type(document))


def _clean_value(value: Any, redact: Redact) -> Any:
    match value:
        case str():
            return redact(value)
        case dict():
            return {key: _clean_value(inner, redact) for key, inner in value.items()}
        case list() | tuple():
            return [_clean_value(inner, redact) for inner in value]
        case _:
            return value


def _said(batches: Sequence[RecordedBatch]) -> str:
    return "".join(event.text for batch in batches for event in batch.events if isinstance(event, TextDelta))


def _replaced(batches: Sequence[RecordedBatch], text: str) -> list[RecordedBatch]:
    """The same events with this text in the first one that has any."""
    pieces = iter((text,))

    def cleaned(event: Event) -> Event:
        if not isinstance(event, TextDelta):
            return event
        return msgspec.structs.replace(event, text=next(pieces, ""), scores=())

    return [RecordedBatch(at=batch.at, events=[cleaned(event) for event in batch.events]) for batch in batches]
