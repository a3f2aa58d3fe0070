"""A client's turn at the model: its place in the line, the answers it opens, and how they are ended from outside."""

import asyncio
import time
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec

from pocketserver.chat import GenerationRequest
from pocketserver.engines.engine import EventStream
from pocketserver.errors import Refusal

if TYPE_CHECKING:
    from pocketserver.gate.admission import Door


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a request stands: 1 has the model. `wait_seconds` rests on the turns measured so far, None before any."""

    position: int
    wait_seconds: float | None = None

    @property
    def ahead(self) -> int:
        return self.position - 1

    def __str__(self) -> str:
        seconds = "" if self.wait_seconds is None else f" wait_seconds={self.wait_seconds:.0f}"
        return f"position={self.position} ahead={self.ahead}{seconds}"


@dataclass(slots=True, kw_only=True)
class Running:
    """A generation that has the model now."""

    request_id: str
    owner: str | None
    started: float
    stream: EventStream | None = None
    accepting: "asyncio.Task[object] | None" = None
    """Who waits for the engine to accept."""
    refusal: Refusal | None = None
    stalled: bool = False
    """Whether it was given up because its engine showed no progress; the engine has not come back yet."""

    def end(self, refusal: Refusal) -> None:
        """End it for a reason other than its client's leaving, whether the engine has accepted it yet or not."""
        self.refusal = refusal
        if self.stream is not None:
            self.stream.fail(refusal)
        elif self.accepting is not None:
            self.accepting.cancel()


class Turn:
    """The model in one client's hands, for answers one after another until the block is left.

    Whoever ends an answer from outside ends the turn: no other is begun. A class, as `Generation` is, because short
    answers pay for every generator.
    """

    def __init__(self, door: "Door", owner: str | None, via: tuple[str, ...] = ()) -> None:
        self._door = door
        self._via = via
        self.owner = owner
        self.refusal: Refusal | None = None
        self.joined: Place | None = None
        """The place at arrival, when it had to wait."""
        self.waiter: asyncio.Future[None] | None = None

    @property
    def place(self) -> Place | None:
        """The place now; None for one that is not in the line."""
        return self._door.place_of(self)

    async def __aenter__(self) -> Self:
        await self._door.enter(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._door.leave(self)

    def open(self, request: GenerationRequest) -> "Generation":
        """Let the engine accept, hand out the events. One at a time."""
        if self._via:
            request = msgspec.structs.replace(request, via=self._via)
        return Generation(self._door, self, request)

    def refuse(self, refusal: Refusal) -> None:
        """End the waiting with this; nothing happens to one that does not wait any more."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_exception(refusal)


class Generation:
    """One answer, from the engine's accepting to its end."""

    def __init__(self, door: "Door", turn: Turn, request: GenerationRequest) -> None:
        self._door = door
        self._turn = turn
        self._running = Running(request_id=request.id, owner=turn.owner, started=time.monotonic())
        self._context = door.engine.generate(request)

    async def __aenter__(self) -> EventStream:
        if self._turn.refusal is not None:
            raise self._turn.refusal
        running = self._running
        self._door.began(running)
        task = running.accepting = asyncio.current_task()
        try:
            stream = running.stream = await self._context.__aenter__()
        except asyncio.CancelledError:
            self._ended()
            # as `asyncio.timeout` does it, without its cost: who ends a generation cancels the task that waits for it
            if running.refusal is None or task is None or task.uncancel() > 0:
                raise  # somebody else cancelled it: the client has left
            raise running.refusal from None
        except BaseException:
            self._ended()
            raise
        finally:
            running.accepting = None
        return stream

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        try:
            return await self._context.__aexit__(kind, error, traceback)
        finally:
            self._ended()

    def _ended(self) -> None:
        self._turn.refusal = self._running.refusal
        self._door.ended(self._running)
