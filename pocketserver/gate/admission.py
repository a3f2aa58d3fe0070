"""The one door to the model: who may generate now, who waits, who is refused, and who is stopped."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from pocketserver.chat import EmbeddingInput, Embeddings, EngineState, Explanation, GenerationRequest, LoadedModel
from pocketserver.engines.engine import (
    Concurrent,
    Engine,
    EventStream,
    Forwarder,
    ModelLoader,
    cancelled_by_owner,
    explained,
    stalled,
)
from pocketserver.errors import Code, Refusal
from pocketserver.gate.line import Line
from pocketserver.gate.turn import Place, Running, Turn

_WEIGHT_OF_LATEST = 0.3
_SHORTEST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 1, 120


class Door:
    """Admits as many requests at a time as the engine answers, mostly one, owners in turn (see `Line`).

    At most `limit` are running and waiting together. `limit` 1 is the mutex: whoever comes when the engine is full is
    refused at once, never queued. `full` is the code of that refusal. Who waits longer than `queue_seconds` is refused.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        limit: int,
        full: Code,
        stall_seconds: float,
        queue_seconds: float | None = None,
        on_waited: Callable[[float], None] = lambda _seconds: None,
    ) -> None:
        self.engine = engine
        self._concurrent = engine if isinstance(engine, Concurrent) else None
        self._limit = limit
        self._full = full
        self._stall_seconds = stall_seconds
        self._queue_seconds = queue_seconds
        self._on_waited = on_waited
        self._waiting: Line[Turn] = Line()
        self._holders: dict[Turn, float] = {}
        """Who has the model, and since when on the monotonic clock; the oldest first."""
        self._usual_seconds: float | None = None
        self._emptied = asyncio.Event()
        self._closing = False
        self._watch: asyncio.TimerHandle | None = None
        self._running: list[Running] = []

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def taken(self) -> int:
        """How many have the model now."""
        return len(self._holders)

    @property
    def busy(self) -> bool:
        return bool(self._holders)

    @property
    def running(self) -> Running | None:
        """The generation that has been running longest."""
        return self._running[0] if self._running else None

    @property
    def places(self) -> int:
        """How many may have the model at a time."""
        return 1 if self._concurrent is None else self._concurrent.concurrency

    @property
    def seconds_since_progress(self) -> float | None:
        """Age of the running request's last token or piece of prompt; None while nothing is being generated.

        Of several the one counts that has been silent longest.
        """
        return max(map(self._age, self._running)) if self._running else None

    def _age(self, running: Running) -> float:
        stream = running.stream
        if stream is None and self._waits_under_other_limits():
            return 0.0
        return time.monotonic() - (running.started if stream is None else stream.last_activity)

    def _waits_under_other_limits(self) -> bool:
        """A model that is loading for the request, and the line of another server, have limits of their own."""
        status = self.engine.status
        return status.state is EngineState.LOADING or status.waits_elsewhere

    @property
    def stuck(self) -> bool:
        """Whether a running request is about to be given up, or its engine has not come back yet."""
        return any(running.stalled or self._age(running) > self._stall_seconds / 2 for running in self._running)

    def check_ready(self) -> None:
        """Refuse while no model can answer. Asked before the model's name is looked at."""
        if self._closing:
            raise Refusal(Code.MODEL_NOT_LOADED, "The server is shutting down. Connect again later.", retry_after=5)
        status = self.engine.status
        if status.loads_on_request:
            return
        if status.state is EngineState.LOADING:
            done = f" ({status.load_progress:.0%})" if status.load_progress is not None else ""
            raise Refusal(Code.MODEL_NOT_LOADED, f"The model is still loading{done}. Try again shortly.", retry_after=5)
        if status.state is EngineState.NO_MODEL:
            code = Code(status.problem_code) if status.problem_code else Code.MODEL_NOT_LOADED
            passes = 5 if status.problem_passes or code is Code.UPSTREAM_UNREACHABLE else None
            sentence = status.problem or "No model is loaded. Start the server with a model, see `--model`."
            raise Refusal(code, sentence, retry_after=passes)

    @asynccontextmanager
    async def open(self, request: GenerationRequest, *, owner: str | None = None) -> AsyncIterator[EventStream]:
        """Wait for the turn, let the engine accept, hand out the events. Leaving the block frees the model.

        Raises MODEL_BUSY or QUEUE_FULL at once when there is no place, whatever the engine refuses, and
        REQUEST_CANCELLED when somebody pressed Stop.
        """
        async with self.turn(owner=owner) as turn, turn.open(request) as stream:
            yield stream

    def turn(self, *, owner: str | None = None, via: tuple[str, ...] = ()) -> Turn:
        """Wait for the turn, and keep the model for answers one after another until the block is left."""
        return Turn(self, owner, via)

    def stop(self) -> bool:
        """End what is running because somebody on the machine wants so. False when nothing runs."""
        return self.end_running(cancelled_by_owner())

    def end_running(self, refusal: Refusal) -> bool:
        """End every running generation with this. False when nothing runs."""
        for running in tuple(self._running):
            running.end(refusal)
        return bool(self._running)

    def end_owned_by(self, owner: str, refusal: Refusal) -> None:
        """End what belongs to this key, running or waiting."""
        for running in tuple(self._running):
            if running.owner == owner:
                running.end(refusal)
        for turn in self._waiting:
            if turn.owner == owner:
                turn.refuse(refusal)

    def place_of(self, turn: Turn) -> Place | None:
        """Where a waiting turn stands now; None for one that does not wait."""
        if turn not in self._waiting:
            return None
        before = self._waiting.ahead_of(turn)
        return Place(position=self.taken + before + 1, wait_seconds=self._expected_seconds(before + 1))

    def next_place(self) -> Place:
        """Where a request that came now would stand, at worst: an owner who had no turn lately may come earlier."""
        if self.taken < self.places and not self._waiting:
            return Place(position=1, wait_seconds=0.0)
        ahead = self.taken + len(self._waiting)
        return Place(position=ahead + 1, wait_seconds=self._expected_seconds(1 + len(self._waiting)))

    async def explain(self, request: GenerationRequest) -> Explanation:
        """What the engine would make of this request. Nobody waits for it."""
        return await explained(self.engine, request)

    async def count(self, request: GenerationRequest) -> int:
        """Prompt tokens of this request. Nobody waits for it."""
        return await self.engine.count(request)

    async def embed(
        self,
        inputs: Sequence[EmbeddingInput],
        *,
        model: str,
        truncate: bool,
        owner: str | None = None,
        via: tuple[str, ...] = (),
    ) -> Embeddings:
        """Vectors for these inputs, in turn as an answer is. `via` names the servers that the request has passed."""
        async with self.turn(owner=owner):
            if isinstance(self.engine, Forwarder):
                return await self.engine.forward_embed(inputs, model=model, truncate=truncate, via=via)
            if isinstance(self.engine, ModelLoader):
                await self.engine.load_model(model)
            return await self.engine.embed(inputs, truncate=truncate)

    async def load(self, model: str, keep_alive: float | None, *, owner: str | None = None) -> float:
        """Have this model in memory, in turn as an answer is; returns the seconds that it took."""
        async with self.turn(owner=owner):
            if isinstance(self.engine, ModelLoader):
                return await self.engine.load_model(model, keep_alive)
        return 0.0

    async def unload(self, model: str, *, owner: str | None = None) -> None:
        """Have this model out of memory, after the running answer."""
        async with self.turn(owner=owner):
            if isinstance(self.engine, ModelLoader):
                await self.engine.unload_model(model)

    def loaded(self) -> Sequence[LoadedModel]:
        """What is in memory now."""
        if isinstance(self.engine, ModelLoader):
            return self.engine.loaded_models()
        status = self.engine.status
        if status.model is None or status.state is not EngineState.READY:
            return ()
        return (LoadedModel(id=status.model, context_size=status.context_size or 0),)

    async def idle(self) -> None:
        """Wait until nobody has the model. Only after `close`, so that nobody new comes in."""
        while self._holders:
            self._emptied.clear()
            await self._emptied.wait()

    def close(self) -> None:
        """Admit nobody any more; those who wait are refused."""
        self._closing = True
        if self._watch is not None and not self._running:
            self._watch.cancel()
            self._watch = None
        for turn in self._waiting:
            turn.refuse(
                Refusal(Code.MODEL_NOT_LOADED, "The server is shutting down. Connect again later.", retry_after=5)
            )

    # What a turn and its answers tell

    async def enter(self, turn: Turn) -> None:
        """Wait for the model. Raises MODEL_BUSY or QUEUE_FULL at once when there is no place."""
        places, taken = self.places, len(self._holders)
        if taken < places and not self._waiting:
            self._hand_to(turn)
            return
        if taken + len(self._waiting) >= max(self._limit, places):
            raise self._full_refusal()
        await self._wait_for(turn)

    def leave(self, turn: Turn) -> None:
        """Give the model to whoever is next in the line."""
        took = time.monotonic() - self._holders[turn]
        usual = self._usual_seconds
        self._usual_seconds = took if usual is None else usual + _WEIGHT_OF_LATEST * (took - usual)
        self._pass_on(turn)

    def _hand_to(self, turn: Turn) -> None:
        self._holders[turn] = time.monotonic()
        self._waiting.served(turn.owner)

    def _pass_on(self, left: Turn) -> None:
        """Let those in who have a place now. It goes from hand to hand: nobody else can come in between."""
        del self._holders[left]
        while self._waiting and self.taken < self.places and (turn := self._waiting.next()) is not None:
            if turn.waiter is not None and not turn.waiter.done():
                self._hand_to(turn)
                turn.waiter.set_result(None)
        if not self._holders:
            self._emptied.set()

    def began(self, running: Running) -> None:
        self._running.append(running)
        if self._watch is None:
            self._watch_again(self._stall_seconds)

    def ended(self, running: Running) -> None:
        self._running.remove(running)

    async def _wait_for(self, turn: Turn) -> None:
        loop = asyncio.get_running_loop()
        waiter = turn.waiter = loop.create_future()
        self._waiting.add(turn)
        turn.joined = self.place_of(turn)
        since = time.monotonic()
        limit = None if self._queue_seconds is None else loop.call_later(self._queue_seconds, self._give_up, turn)
        try:
            await waiter
        except BaseException:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._pass_on(turn)  # the turn came in the same moment as the cancellation: pass it on
            raise
        finally:
            if limit is not None:
                limit.cancel()
        self._on_waited(time.monotonic() - since)

    def _give_up(self, turn: Turn) -> None:
        assert self._queue_seconds is not None
        minutes = self._queue_seconds / 60
        turn.refuse(
            Refusal(Code.GENERATION_STALLED, f"The model was not free within {minutes:g} minutes. Send it again.")
        )

    def _expected_seconds(self, ends: int) -> float | None:
        """How long it takes until so many turns, the oldest running one first, are over, if they last as usual."""
        if self._usual_seconds is None:
            return None
        since = next(iter(self._holders.values()), None)
        left = self._usual_seconds if since is None else self._usual_seconds - (time.monotonic() - since)
        return max(left, 0.0) + (ends - 1) * self._usual_seconds / max(self.places, 1)

    def _full_refusal(self) -> Refusal:
        if self._full is Code.MODEL_BUSY:
            return Refusal(self._full, "The model is answering another request. Try again shortly.", retry_after=1)
        expected = math.ceil(self._expected_seconds(1) or 5)
        return Refusal(
            self._full,
            f"{self._limit} requests are running or waiting already. Try again later.",
            retry_after=min(max(expected, _SHORTEST_RETRY_SECONDS), _LONGEST_RETRY_SECONDS),
        )

    def _watch_again(self, seconds: float) -> None:
        self._watch = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        """Give up a request whose engine shows no progress. Leaving the block then replaces a hanging worker.

        One timer goes from request to request: setting one for each would cost short answers more than the look.
        """
        self._watch = None
        for running in tuple(self._running):
            if not running.stalled and self._age(running) >= self._stall_seconds:
                running.stalled = True
                running.end(stalled(self._stall_seconds))
        ages = [self._age(running) for running in self._running if not running.stalled]
        if ages:
            self._watch_again(self._stall_seconds - max(ages) + 0.01)
