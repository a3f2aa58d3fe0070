"""The engine of a guest: another machine answers, at the other end of a room's link."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import msgspec

from pocketserver.chat import (
    EmbeddingInput,
    Embeddings,
    EngineState,
    EngineStatus,
    Finished,
    GenerationRequest,
    ModelInfo,
)
from pocketserver.engines.engine import EventStream
from pocketserver.errors import Code, Refusal
from pocketserver.room.protocol import (
    Accepted,
    Announcement,
    ApiClients,
    Ask,
    Cancel,
    Count,
    Counted,
    Events,
    FromGuest,
    FromHost,
    MalformedError,
    Queued,
    Refused,
    Working,
)

COUNT_SECONDS = 30.0
MOST_ANSWER_BYTES = 64 * 1024 * 1024
"""Of all frames of one answer: who sends more than any answer takes breaks the protocol."""
_LOOK_SECONDS = 1.0
_FULL = "The queue of the room is full. Try again shortly."
_HERE: Mapping[Code, tuple[Code, float | None, str | None]] = {
    Code.MODEL_BUSY: (Code.QUEUE_FULL, 5, _FULL),
    Code.QUEUE_FULL: (Code.QUEUE_FULL, 5, _FULL),
    Code.MODEL_NOT_LOADED: (Code.MODEL_NOT_LOADED, 5, None),
    Code.UPSTREAM_UNREACHABLE: (Code.MODEL_NOT_LOADED, 5, None),
    Code.UPSTREAM_FAILED: (Code.GENERATION_FAILED, None, None),
}
"""What a host's refusal is called here, its seconds to wait, and other words for it; the rest stays as it is."""


class RoomView(Protocol):
    """What is known of a link at this moment. `reason` is why there is none, `sent_away` that there will be none."""

    @property
    def linked(self) -> bool: ...

    @property
    def sent_away(self) -> bool: ...

    @property
    def reason(self) -> str: ...


class Link(RoomView, Protocol):
    """The link itself; see room/guest.py."""

    def start(self, receiver: "RoomEngine") -> None: ...

    async def wait_linked(self, seconds: float) -> bool: ...

    def send(self, message: FromGuest) -> None: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomLimits:
    """Seconds. The room may say nothing of a request for `stall`, for `queue` while it has it queued."""

    wait: float = 10.0
    stall: float = 300.0
    queue: float = 1800.0


class RoomEngine:
    """Implements `engines.engine.Engine` over a link."""

    name = "room"

    def __init__(self, link: Link, limits: RoomLimits = RoomLimits(), instance: str = "") -> None:
        self.instance = instance
        """Our name in the chain of servers that a request passes."""
        self.tell: Callable[[str], None] = lambda _sentence: None
        """Told of each link that comes and goes, for the log."""
        self._link = link
        self._limits = limits
        self._room = Announcement()
        self._clients = ApiClients(allowed=True)
        self._answers: dict[int, _Answer] = {}
        self._counts: dict[int, asyncio.Future[int]] = {}
        self._numbers = itertools.count(1)
        self._announced = asyncio.Event()

    @property
    def status(self) -> EngineStatus:
        problem, code = self._problem()
        if problem is not None:
            state = EngineState.NO_MODEL
        else:
            state = EngineState.READY if self._room.ready else EngineState.LOADING
        return EngineStatus(
            state=state,
            model=self._room.model if state is EngineState.READY else None,
            context_size=self._room.context_size if state is EngineState.READY else None,
            load_progress=self._room.load_progress,
            supports_tools=self._room.supports_tools,
            counts_tokens=self._room.counts_tokens,
            problem=problem,
            problem_code=code,
            problem_passes=True,
            connected=self._link.linked,
            closed=self._closed(),
            waits_elsewhere=any(not answer.accepted.done() for answer in self._answers.values()),
        )

    def models(self) -> Sequence[ModelInfo]:
        """The room's model, while it can answer."""
        status = self.status
        if status.state is not EngineState.READY or status.model is None:
            return ()
        return (ModelInfo(id=status.model, loaded=True, context_size=status.context_size),)

    async def start(self) -> None:
        """Look for the host, and go on looking; returns when the link stands, or after a while without it."""
        self._link.start(self)
        if await self._link.wait_linked(self._limits.wait):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(COUNT_SECONDS):
                    await self._announced.wait()

    async def close(self) -> None:
        await self._link.close()

    @asynccontextmanager
    async def generate(self, request: GenerationRequest) -> AsyncIterator[EventStream]:
        """Open the answer's event stream; see `Engine.generate`. Entered when the host's engine has accepted."""
        self._check_linked()
        number = next(self._numbers)
        answer = self._answers[number] = _Answer()
        self._link.send(Ask(id=number, request=self._sent(request)))
        try:
            await self._accepted(answer)
            yield answer.stream
        finally:
            del self._answers[number]
            await answer.leave()
            if not answer.over:
                self._link.send(Cancel(id=number))

    async def count(self, request: GenerationRequest) -> int:
        self._check_linked()
        number = next(self._numbers)
        counted: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._counts[number] = counted
        self._link.send(Count(id=number, request=self._sent(request)))
        try:
            async with asyncio.timeout(COUNT_SECONDS):
                return await counted
        except TimeoutError:
            raise _silent(COUNT_SECONDS) from None
        finally:
            del self._counts[number]

    async def embed(self, inputs: Sequence[EmbeddingInput], *, truncate: bool) -> Embeddings:  # noqa: ARG002 - see below
        raise Refusal(Code.INVALID_PARAMETER, "A room makes no embeddings. Ask its host itself.", param="model")

    # What the link tells

    def linked(self, host: str, url: str, you: str) -> None:
        self.tell(f"room: linked with {host!a} at {url}, as {you!a}")
        self._room, self._clients = Announcement(loading=True), ApiClients(allowed=True)

    def lost(self, refusal: Refusal) -> None:
        """Everything that was asked fails at once."""
        self.tell(f"room: the link is gone: {refusal.message}")
        for answer in self._answers.values():
            answer.fail(refusal)
        for counted in self._counts.values():
            if not counted.done():
                counted.set_exception(refusal)

    def receive(self, message: FromHost, size: int) -> None:
        """Raises MalformedError for what a host cannot say now."""
        match message:
            case Announcement():
                self._room = message
                self._announced.set()
            case ApiClients():
                self._clients = message
            case Queued() | Working() | Accepted() | Events() | Refused() | Counted():
                self._deliver(message, size)
            case _:
                raise MalformedError("a word of the handshake on an open link")

    def _deliver(self, message: "Queued | Working | Accepted | Events | Refused | Counted", size: int) -> None:
        """To whoever asked; what nobody waits for any more is passed over."""
        answer = self._answers.get(message.id)
        if answer is not None:
            answer.take(message, size)
            return
        counted = self._counts.get(message.id)
        if counted is None or counted.done():
            return
        if isinstance(message, Counted):
            counted.set_result(message.tokens)
        elif isinstance(message, Refused):
            counted.set_exception(_here(message.refusal()))

    # Helpers

    def _sent(self, request: GenerationRequest) -> GenerationRequest:
        return msgspec.structs.replace(request, via=(*request.via, self.instance)) if self.instance else request

    def _problem(self) -> tuple[str | None, Code | None]:
        """Why nothing can be asked, if so."""
        if self._link.sent_away:
            return self._link.reason, Code.DISCONNECTED_BY_HOST
        if not self._link.linked:
            return self._link.reason, Code.HOST_GONE
        if not self._clients.allowed:
            return self._clients.reason, Code.DISCONNECTED_BY_HOST
        if self._room.ready or self._room.loading:
            return None, None
        return self._room.problem or "The room's host has no model loaded.", Code.MODEL_NOT_LOADED

    def _closed(self) -> str | None:
        if self._link.sent_away:
            return self._link.reason
        return None if self._clients.allowed or not self._link.linked else self._clients.reason

    def _check_linked(self) -> None:
        problem, code = self._problem()
        if problem is not None and code is not None:
            raise Refusal(code, problem, retry_after=5)

    async def _accepted(self, answer: "_Answer") -> None:
        """Wait until the host's engine accepts. Raises its refusal, or GENERATION_STALLED after too long a silence."""
        while not answer.accepted.done():
            limit = self._limits.queue if answer.queued else self._limits.stall
            left = answer.stream.last_activity + limit - time.monotonic()
            if left <= 0:
                raise _silent(limit)
            await asyncio.wait([answer.accepted], timeout=min(left, _LOOK_SECONDS))
        answer.accepted.result()


class _Answer:
    """One request at the host, as seen from here."""

    def __init__(self) -> None:
        self.stream = EventStream()
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.queued = False
        self.over = False
        """Whether the host has said its last word on it."""
        self._bytes = 0
        self._ending: asyncio.Task[None] | None = None

    def take(self, message: Queued | Working | Accepted | Events | Refused | Counted, size: int) -> None:
        self.stream.touch()
        match message:
            case Queued():
                self.queued = True
            case Working():
                self.queued = False
            case Accepted():
                self._accept()
            case Events():
                self._put(message, size)
            case Refused():
                self._refuse(_here(message.refusal()))
            case Counted():
                raise MalformedError("a count of what was to be answered")

    def fail(self, refusal: Refusal) -> None:
        """At once, ahead of events that are not read yet."""
        self.over = True
        if self.accepted.done():
            self.stream.fail(refusal)
        else:
            self.accepted.set_exception(refusal)

    async def leave(self) -> None:
        if not self.accepted.cancel() and not self.accepted.cancelled():
            self.accepted.exception()  # looked at, whoever left before it was raised
        if self._ending is not None:
            self._ending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ending

    def _accept(self) -> None:
        if not self.accepted.done():
            self.accepted.set_result(None)

    def _put(self, message: Events, size: int) -> None:
        if not message.events:
            return
        self._bytes += size
        if self.over or not self.accepted.done() or self._bytes > MOST_ANSWER_BYTES:
            raise MalformedError("events where none can be")
        self.stream.put(message.events)
        if isinstance(message.events[-1], Finished):
            self.over = True
            self.stream.close()

    def _refuse(self, refusal: Refusal) -> None:
        """After everything that came before it."""
        if not self.accepted.done():
            self.fail(refusal)
        elif not self.over:
            self.over = True
            self._ending = asyncio.create_task(self.stream.fail_after_unread(refusal))


def _here(refusal: Refusal) -> Refusal:
    code, seconds, words = _HERE.get(refusal.code, (refusal.code, refusal.retry_after, None))
    return Refusal(code, words or refusal.message, param=refusal.param, retry_after=seconds, details=refusal.details)


def _silent(seconds: float) -> Refusal:
    return Refusal(
        Code.GENERATION_STALLED, f"The room sent nothing for this request for {seconds:g} seconds. Send it again."
    )
