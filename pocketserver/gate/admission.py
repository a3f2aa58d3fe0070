"""The one door to the model: who may generate now, who waits, who is refused, and who is stopped."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from pocketserver.chat import EngineState, GenerationRequest
from pocketserver.engines.engine import Engine, EventStream, cancelled_by_owner, stalled
from pocketserver.errors import Code, Refusal


@dataclass(slots=True, kw_only=True)
class Running:
    """The generation that has the model now."""

    request_id: str
    owner: str | None
    started: float
    stream: EventStream | None = None
    scope: asyncio.Timeout | None = None
    refusal: Refusal | None = None

    def end(self, refusal: Refusal) -> None:
        """End it for a reason other than its client's leaving, whether the engine has accepted it yet or not."""
        self.refusal = refusal
        if self.stream is not None:
            self.stream.fail(refusal)
        elif self.scope is not None:
            self.scope.reschedule(asyncio.get_running_loop().time())


class Turn:
    """The model in one client's hands, for answers one after another until the block is left.

    Whoever ends an answer from outside ends the turn: no other is begun. A class, as `Generation` is, because short
    answers pay for every generator.
    """

    def __init__(self, door: "Door", owner: str | None) -> None:
        self._door = door
        self.owner = owner
        self.refusal: Refusal | None = None

    async def __aenter__(self) -> Self:
        await self._door.enter()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._door.leave()

    def open(self, request: GenerationRequest) -> "Generation":
        """Let the engine accept, hand out the events. One at a time."""
        return Generation(self._door, self, request)


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
        self._door.began(self._running)
        try:
            stream = self._running.stream = await self._accepted()
        except BaseException:
            self._ended()
            raise
        return stream

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        try:
            return await self._context.__aexit__(kind, error, traceback)
        finally:
            self._ended()

    async def _accepted(self) -> EventStream:
        running = self._running
        try:
            async with asyncio.timeout(None) as running.scope:
                return await self._context.__aenter__()
        except TimeoutError:
            raise running.refusal or cancelled_by_owner() from None
        finally:
            running.scope = None

    def _ended(self) -> None:
        self._turn.refusal = self._running.refusal
        self._door.ended()


class Door:
    """Admits one request at a time, in order of arrival; at most `limit` are running and waiting together.

    `limit` 1 is the mutex: a second caller is refused at once, never queued. `full` is the code of that refusal.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        limit: int,
        full: Code,
        stall_seconds: float,
        on_waited: Callable[[float], None] = lambda _seconds: None,
    ) -> None:
        self.engine = engine
        self._limit = limit
        self._full = full
        self._stall_seconds = stall_seconds
        self._on_waited = on_waited
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._taken = False
        self._emptied = asyncio.Event()
        self._stalled = False
        self._closing = False
        self._watch: asyncio.TimerHandle | None = None
        self.running: Running | None = None

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        return self._taken

    @property
    def seconds_since_progress(self) -> float | None:
        """Age of the running request's last token or piece of prompt; None while nothing is being generated."""
        if self.running is None:
            return None
        stream = self.running.stream
        since = self.running.started if stream is None else stream.last_activity
        return time.monotonic() - since

    @property
    def stuck(self) -> bool:
        """Whether the running request is about to be given up, or its engine has not come back yet."""
        age = self.seconds_since_progress
        return self._stalled or (age is not None and age > self._stall_seconds / 2)

    def check_ready(self) -> None:
        """Refuse while no model can answer. Asked before the model's name is looked at."""
        if self._closing:
            raise Refusal(Code.MODEL_NOT_LOADED, "The server is shutting down. Connect again later.", retry_after=5)
        status = self.engine.status
        if status.state is EngineState.LOADING:
            done = f" ({status.load_progress:.0%})" if status.load_progress is not None else ""
            raise Refusal(Code.MODEL_NOT_LOADED, f"The model is still loading{done}. Try again shortly.", retry_after=5)
        if status.state is EngineState.NO_MODEL:
            code = Code(status.problem_code) if status.problem_code else Code.MODEL_NOT_LOADED
            raise Refusal(code, status.problem or "No model is loaded. Start the server with a model, see `--model`.")

    @asynccontextmanager
    async def open(self, request: GenerationRequest, *, owner: str | None = None) -> AsyncIterator[EventStream]:
        """Wait for the turn, let the engine accept, hand out the events. Leaving the block frees the model.

        Raises MODEL_BUSY or QUEUE_FULL at once when there is no place, whatever the engine refuses, and
        REQUEST_CANCELLED when somebody pressed Stop.
        """
        async with self.turn(owner=owner) as turn, turn.open(request) as stream:
            yield stream

    def turn(self, *, owner: str | None = None) -> Turn:
        """Wait for the turn, and keep the model for answers one after another until the block is left."""
        return Turn(self, owner)

    def stop(self) -> bool:
        """End the running generation because somebody on the machine wants so. False when nothing runs."""
        if self.running is None:
            return False
        self.running.end(cancelled_by_owner())
        return True

    def end_owned_by(self, owner: str, refusal: Refusal) -> None:
        """End the running generation if it belongs to this key."""
        if self.running is not None and self.running.owner == owner:
            self.running.end(refusal)

    async def idle(self) -> None:
        """Wait until nobody has the model. Only after `close`, so that nobody new comes in."""
        while self._taken:
            self._emptied.clear()
            await self._emptied.wait()

    def close(self) -> None:
        """Admit nobody any more; those who wait are refused."""
        self._closing = True
        if self._watch is not None and self.running is None:
            self._watch.cancel()
            self._watch = None
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(
                    Refusal(Code.MODEL_NOT_LOADED, "The server is shutting down. Connect again later.", retry_after=5)
                )

    # What a turn and its answers tell

    async def enter(self) -> None:
        """Wait for the model. Raises MODEL_BUSY or QUEUE_FULL at once when there is no place."""
        if not self._taken:
            self._taken = True
            return
        if 1 + len(self._waiting) >= self._limit:
            raise self._full_refusal()
        await self._wait_for_turn()

    def leave(self) -> None:
        """Give the model to whoever waits longest."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)  # `_taken` stays true: the model goes from hand to hand
                return
        self._taken = False
        self._emptied.set()

    def began(self, running: Running) -> None:
        self.running = running
        if self._watch is None:
            self._watch_again(self._stall_seconds)

    def ended(self) -> None:
        self.running = None
        self._stalled = False

    async def _wait_for_turn(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        since = time.monotonic()
        try:
            await turn
        except BaseException:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif turn.done() and not turn.cancelled() and turn.exception() is None:
                self.leave()  # the turn came in the same moment as the cancellation: pass it on
            raise
        self._on_waited(time.monotonic() - since)

    def _full_refusal(self) -> Refusal:
        if self._full is Code.MODEL_BUSY:
            return Refusal(self._full, "The model is answering another request. Try again shortly.", retry_after=1)
        return Refusal(
            self._full, f"{self._limit} requests are running or waiting already. Try again later.", retry_after=5
        )

    def _watch_again(self, seconds: float) -> None:
        self._watch = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        """Give up a request whose engine shows no progress. Leaving the block then replaces a hanging worker.

        One timer goes from request to request: setting one for each would cost short answers more than the look.
        """
        self._watch = None
        age = self.seconds_since_progress
        if self.running is None or age is None:
            return
        if age < self._stall_seconds:
            self._watch_again(self._stall_seconds - age + 0.01)
            return
        self._stalled = True
        self.running.end(stalled(self._stall_seconds))
