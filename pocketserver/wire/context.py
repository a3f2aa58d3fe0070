"""What a wire module is given to work with, and what it leaves behind for the log and the metrics."""

import asyncio
import fnmatch
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, Self

import msgspec
from aiohttp import hdrs, web

from pocketserver.chat import (
    EmbeddingInput,
    Embeddings,
    Event,
    Explanation,
    Finished,
    GenerationRequest,
    LoadedModel,
    ModelInfo,
    Timings,
    Usage,
)
from pocketserver.errors import Code, Refusal
from pocketserver.models.stored import StoredModel

MOST_WARNINGS = 64
VIA_HEADER = "x-pocketserver-via"
_MOST_VIA_CHARACTERS = 1000


class Place(Protocol):
    """Where a waiting request stands; as text `position=2 ahead=1 wait_seconds=40`."""

    @property
    def position(self) -> int: ...

    @property
    def ahead(self) -> int: ...

    @property
    def wait_seconds(self) -> float | None: ...


class Turn(Protocol):
    """The model in one client's hands, for answers one after another."""

    @property
    def joined(self) -> Place | None: ...

    @property
    def place(self) -> Place | None: ...

    def open(self, request: GenerationRequest) -> AbstractAsyncContextManager[AsyncIterator[Sequence[Event]]]: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...


class Door(Protocol):
    """The one way to the model, see gate/admission.py."""

    def check_ready(self) -> None: ...

    def turn(self, *, owner: str | None = None, via: tuple[str, ...] = ()) -> Turn: ...

    async def count(self, request: GenerationRequest) -> int: ...

    async def explain(self, request: GenerationRequest) -> Explanation: ...

    def next_place(self) -> Place: ...

    async def embed(
        self,
        inputs: Sequence[EmbeddingInput],
        *,
        model: str,
        truncate: bool,
        owner: str | None = None,
        via: tuple[str, ...] = (),
    ) -> Embeddings: ...

    async def load(self, model: str, keep_alive: float | None, *, owner: str | None = None) -> float: ...

    async def unload(self, model: str, *, owner: str | None = None) -> None: ...

    def loaded(self) -> Sequence[LoadedModel]: ...


class Answer(msgspec.Struct, eq=False, kw_only=True):
    """What became of one request: filled by a wire module, read by the access line and the metrics.

    `created` is the Unix time that the answer carries, `time_to_first_token` is in seconds from the request's arrival.
    `warnings` say what was not done as asked (`field:what`); with `strict` it is refused instead. `awaited` counts the
    answers that are still to come; the last one is `delivered` once its end was written, whatever the client does then:
    some hang up at once, without the mark that ends a stream.
    """

    arrived: float
    request_id: str = ""
    created: int = msgspec.field(default_factory=lambda: int(time.time()))
    strict: bool = False
    shows_warnings: bool = False
    model: str | None = None
    time_to_first_token: float | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    tokens: int = 0
    refusal: Refusal | None = None
    turn: Turn | None = None
    awaited: int = 1
    delivered: bool = False
    warnings: list[str] = msgspec.field(default_factory=list)

    @property
    def tells(self) -> bool:
        """Whether a warning reaches anybody."""
        return self.strict or self.shows_warnings

    def warn(self, param: str, what: str) -> None:
        """Tell the client that a field was ignored, clamped, mapped or dropped. Raises INVALID_PARAMETER if strict."""
        if self.strict:
            raise Refusal(
                Code.INVALID_PARAMETER,
                f"`{param}`: {what}. This server is strict: leave the field out, or set `strict` to off.",
                param=param,
            )
        warning = f"{param}:{what}"
        if warning not in self.warnings and len(self.warnings) < MOST_WARNINGS:
            self.warnings.append(warning)

    def tell_room(self, param: str, asked: int, context_size: Callable[[], int | None]) -> None:
        """Tell the client of a whole answer that the context left less room than it asked for. Never a refusal."""
        if not self.shows_warnings or self.usage is None:
            return
        size = context_size()
        left = asked if size is None else size - self.usage.prompt_tokens
        if left < asked:
            self.warnings.append(f"{param}:cut to {left} by the context")

    @property
    def shown_warnings(self) -> dict[str, list[str]]:
        """For a JSON document that is not streamed: `{"warnings": […]}`, or nothing."""
        return {"warnings": self.warnings} if self.warnings and self.shows_warnings else {}

    def written(self) -> None:
        """Everything that was noted went out."""
        self.delivered = self.awaited <= 0

    def note(self, batch: Sequence[Event]) -> None:
        """Look at events on their way out."""
        for event in batch:
            tokens = getattr(event, "tokens", None)  # an echoed prompt has 0, an end and a call's name have none
            if self.time_to_first_token is None and tokens != 0:
                self.time_to_first_token = time.monotonic() - self.arrived
            if tokens is not None:
                self.tokens += tokens
            elif isinstance(event, Finished):
                self.usage = added(self.usage, event.usage)
                self.timings = _together(self.timings, event.timings)
                self.awaited -= 1


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


def _together(before: Timings | None, more: Timings) -> Timings:
    """The times of answers one after another."""
    if before is None:
        return more
    return Timings(
        prompt_seconds=before.prompt_seconds + more.prompt_seconds,
        generation_seconds=before.generation_seconds + more.generation_seconds,
        load_seconds=max(before.load_seconds, more.load_seconds),
    )


ANSWER = web.RequestKey("answer", Answer)
KEY_NAME = web.RequestKey("key_name", str)


async def body_of(request: web.Request, seconds: float) -> bytes:
    """The whole body, read before any place at the model is taken.

    Raises MALFORMED_REQUEST when it is too slow, or not packed as its headers say.
    """
    try:
        if request.content.is_eof():  # it came with the headers, as small bodies do: no timer for nothing
            return _read_at_once(request)
        async with asyncio.timeout(seconds):
            return await request.read()
    except TimeoutError:
        raise Refusal(
            Code.MALFORMED_REQUEST, f"The body did not arrive within {seconds:g} seconds. Send the request again."
        ) from None
    except web.RequestPayloadError as error:
        coding = request.headers.get(hdrs.CONTENT_ENCODING, "chunked")[:20]
        raise Refusal(
            Code.MALFORMED_REQUEST, f"The body is not valid {coding}, as its headers say it is. Send it uncompressed."
        ) from error


def _read_at_once(request: web.Request) -> bytes:
    """What `request.read()` gives for a body that is there to its end, without that loop's second look."""
    if request._read_bytes is None:  # noqa: SLF001 - where aiohttp keeps a body, for whoever asks again
        body = request.content.read_nowait()
        if 0 < request.client_max_size < len(body):
            raise web.HTTPRequestEntityTooLarge(request.client_max_size)
        request._read_bytes = body  # noqa: SLF001
    return request._read_bytes  # noqa: SLF001


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNames:
    """From the name that a client wrote to the id of a model.

    `generic` names (`gpt-*` fits all that begin so) mean the loaded model, whatever it is. With `required` a request
    must name its model. With `switching` every installed model can be had, and a name without a tag means `:latest`.
    `prefix` stands before every id that clients see (`pooled/`). `stored` finds a model by any way to say its name, a
    broken one too.
    """

    installed: Callable[[], Awaitable[Sequence[ModelInfo]]]
    loaded: Callable[[], str | None]
    generic: frozenset[str] = frozenset()
    required: bool = False
    switching: bool = False
    prefix: str = ""
    stored: Callable[[str], Awaitable[StoredModel | None]] | None = None

    async def resolve(self, name: str | None, answer: Answer | None = None) -> str:
        """The id of the model to ask. Raises MODEL_NOT_FOUND, or INVALID_PARAMETER where a name is required.

        A generic name is told to the client as a warning of `answer`.
        """
        if name is None and self.required:
            raise Refusal(Code.INVALID_PARAMETER, "Name a model in `model`; GET /v1/models lists them.", param="model")
        loaded = self.loaded()
        if loaded is not None and (name is None or name == self.prefix + loaded):
            return loaded
        if self.switching and name is not None and (found := await self._installed_as(name)) is not None:
            return found
        if loaded is not None and name is not None and self._is_generic(name):
            if answer is not None:
                answer.warn("model", f"{name[:80]} was answered by {loaded}")
            return loaded
        raise await self._not_found(name, loaded)

    def shown(self, model: str) -> str:
        """The id as clients see it."""
        return self.prefix + model

    def _is_generic(self, name: str) -> bool:
        return name in self.generic or any("*" in own and fnmatch.fnmatchcase(name, own) for own in self.generic)

    async def _installed_as(self, name: str) -> str | None:
        ids = {model.id for model in await self.installed()}
        wanted = name.removeprefix(self.prefix)
        found = next((word for word in _spellings(wanted) if word in ids), None)
        if found is None and self.stored is not None and (stored := await self.stored(wanted)) is not None:
            return stored.id if stored.problem is None else None
        return found

    async def _not_found(self, name: str | None, loaded: str | None) -> Refusal:
        stored = None if self.stored is None or name is None else await self.stored(name.removeprefix(self.prefix))
        if stored is not None and stored.problem is not None:
            message = f"The model {_shown(name)} cannot be loaded: {stored.problem}"
            return Refusal(Code.MODEL_NOT_FOUND, message, param="model")
        known = not self.switching and any(self.shown(model.id) == name for model in await self.installed())
        reason = "is not loaded" if known else "does not exist here"
        use = "Install one first" if loaded is None else f"Use {self.shown(loaded)!r}"
        example = ', or a generic name such as "default"' if "default" in self.generic else ""
        return Refusal(
            Code.MODEL_NOT_FOUND,
            f"The model {_shown(name)} {reason}. {use}{example}; GET /v1/models lists what there is.",
            param="model",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How a streaming client is kept waiting. Seconds; None never does it.

    After `early_headers_after` its headers go out although nothing is decided yet; from then on, and in every pause of
    a stream, something is written every `keep_alive_every`.
    """

    early_headers_after: float | None = None
    keep_alive_every: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAccess:
    """What every wire module that generates is given. `client_seconds` is how long a body may take to arrive."""

    door: Door
    models: ModelNames
    client_seconds: float
    waiting: Patience = Patience()
    max_packed_bytes: int | None = None
    context_size: Callable[[], int | None] = lambda: None
    """Tokens that the loaded model's context holds, None when that is not known."""
    counts_tokens: Callable[[], bool] = lambda: True
    """Whether prompts can be counted before they are answered."""
    began: Callable[[web.Request, Answer, str | None], None] | None = None
    """Told of each request that asks for the model, before it waits, with the name of its key."""

    def turn(self, request: web.Request, wanted: GenerationRequest | None = None) -> Turn:
        """The place of this request in the line, which its answer's headers tell.

        Raises REQUEST_TOO_LARGE for a request that is too large for a room.
        """
        limit = self.max_packed_bytes
        if limit is not None and wanted is not None and len(msgspec.msgpack.encode(wanted)) > limit:
            raise Refusal(
                Code.REQUEST_TOO_LARGE, f"The request is larger than {limit:,} bytes once packed. Send less text."
            )
        answer, owner = request[ANSWER], request.get(KEY_NAME)
        turn = answer.turn = self.door.turn(owner=owner, via=via_of(request))
        if self.began is not None:
            self.began(request, answer, owner)
        return turn


def via_of(request: web.Request) -> tuple[str, ...]:
    """The servers that a request has passed."""
    header = request.headers.get(VIA_HEADER, "")
    return tuple(name.strip() for name in header[:_MOST_VIA_CHARACTERS].split(",")) if header else ()


def _spellings(name: str) -> tuple[str, ...]:
    """A model's name as Ollama's clients write it: `:latest` may stand there or not."""
    return (name, name.removesuffix(":latest"), f"{name}:latest")


def _shown(name: str | None) -> str:
    text = ascii(name or "")
    return text if len(text) <= 80 else text[:77] + "…'"
