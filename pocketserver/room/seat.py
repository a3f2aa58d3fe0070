"""One guest's link, as the host sees it: its requests go through the door, and what becomes of them goes back."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec
from aiohttp import WSMsgType, web

from pocketserver.chat import EngineState, Event, Finished, GenerationRequest
from pocketserver.engines.engine import EventStream
from pocketserver.errors import Code, Refusal
from pocketserver.gate.admission import Door
from pocketserver.gate.keys import Identity
from pocketserver.gate.turn import Turn
from pocketserver.room import protocol
from pocketserver.room.outbox import Outbox
from pocketserver.room.pace import USUAL, Pace
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
    Goodbye,
    Heartbeat,
    MalformedError,
    Queued,
    Reason,
    Refused,
    Working,
    encode,
)
from pocketserver.room.request_check import check
from pocketserver.wire.context import Answer

MOST_REQUESTS = 16
"""Of one guest, waiting and running: a guest of ours sends one at a time."""
LAST_WORDS_SECONDS = 1.0


@dataclass(slots=True, kw_only=True)
class GuestRequest:
    """One guest's request, for the log and the metrics. `answer.model` names its model."""

    guest: str
    peer: str
    key_name: str
    request_id: str
    answer: Answer
    refusal: Code | None = None
    cancelled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """What every seat is given of the server."""

    door: Door
    announce: Callable[[], Announcement]
    new_id: Callable[[], str]
    log: logging.Logger
    began: Callable[[GuestRequest], None]
    ended: Callable[[GuestRequest], None]
    instance: str = ""
    """Our name in the chain of servers that a request passes; one that passed us already is refused."""
    pace: Pace = USUAL


@dataclass(slots=True)
class _Work:
    """A request of the guest, from its arrival to its end."""

    task: "asyncio.Task[None] | None" = None
    turn: Turn | None = None
    stream: EventStream | None = None
    told_position: int | None = None
    told_activity: float = 0.0


class Seat:
    """A guest that has proved its key. `run` lasts as long as its link does."""

    def __init__(
        self,
        socket: web.WebSocketResponse,
        house: House,
        *,
        name: str,
        identity: Identity,
        peer: str,
        clients: ApiClients,
    ) -> None:
        self.name = name
        self.identity = identity
        self.peer = peer
        self.since = time.monotonic()
        self.served = 0
        self.owner = f"guest {name}"
        """Whose turns at the door its requests are."""
        self._socket = socket
        self._house = house
        self._clients = clients
        self._outbox = Outbox(socket.send_bytes)
        self._works: dict[int, _Work] = {}
        self._ended: asyncio.Future[Goodbye | None] = asyncio.get_running_loop().create_future()
        self._told: Announcement | None = None
        self._heard = self._beaten = time.monotonic()

    @property
    def requests(self) -> int:
        """Waiting and running."""
        return len(self._works)

    async def run(self) -> Goodbye | None:
        """Serve the guest until either side ends the link; then nothing of it runs or waits any more.

        Returns the last words, when it was the host who ended it.
        """
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            helpers = [tasks.create_task(self._until_it_fails(part)) for part in (self._read, self._look, self._write)]
            self._announce()
            if not self._clients.allowed:
                self._outbox.put(encode(self._clients))
            goodbye = await self._ended
            for task in [*helpers, *(work.task for work in self._works.values() if work.task is not None)]:
                task.cancel()
        if goodbye is not None:
            await self._say(goodbye)
        return goodbye

    def end(self, goodbye: Goodbye | None) -> None:
        """End the link, with these last words if there are any. Safe to call twice."""
        if not self._ended.done():
            self._ended.set_result(goodbye)

    def allow_clients(self, clients: ApiClients) -> None:
        """Whether the guest's API clients are answered; those that wait or run are refused."""
        self._clients = clients
        self._outbox.put(encode(clients))
        if not clients.allowed:
            self.refuse_all(_clients_off(clients))

    def refuse_all(self, refusal: Refusal) -> int:
        """End all that this guest has here, running and waiting; how many that were."""
        self._house.door.end_owned_by(self.owner, refusal)
        return len(self._works)

    # The parts of a link

    async def _until_it_fails(self, part: Callable[[], Awaitable[None]]) -> None:
        """A part of the link that ends, for whatever reason, ends the link."""
        try:
            await part()
        except MalformedError as error:
            self._house.log.info("room: %s sent a frame that is no message (%s)", self.name, error)
            self.end(Goodbye(reason=Reason.MALFORMED, message=f"That was no message: {error}"[:500]))
        except ConnectionError:
            self.end(None)
        else:
            self.end(None)

    async def _read(self) -> None:
        while True:
            received = await self._socket.receive()
            match received.type:
                case WSMsgType.BINARY:
                    self._heard = time.monotonic()
                    message = protocol.from_guest(received.data)
                    if message is not None:
                        self._take(message)
                case WSMsgType.TEXT:
                    raise MalformedError("messages are binary frames")
                case _:
                    return
            if self._outbox.overfull:
                return  # it asks and asks, and reads none of the answers

    def _take(self, message: FromGuest) -> None:
        match message:
            case Ask():
                self._begin(message.id, lambda work: self._answer(message, work))
            case Count():
                self._begin(message.id, lambda _work: self._count(message))
            case Cancel(id=number):
                work = self._works.get(number)
                if work is not None and work.task is not None:
                    work.task.cancel()
            case _:  # a heartbeat; hellos and proofs come too late to mean anything
                pass

    async def _write(self) -> None:
        await self._outbox.run()

    async def _look(self) -> None:
        """Tell what has changed, show that we live, and see that the guest does."""
        pace = self._house.pace
        while True:
            await asyncio.sleep(min(pace.look, pace.heartbeat))
            now = time.monotonic()
            if now - self._heard > pace.deadline:
                self._house.log.info("room: nothing came from %s for %g seconds", self.name, pace.deadline)
                return
            self._announce()
            for number, work in self._works.items():
                self._tell_of(number, work)
            if now - self._beaten >= pace.heartbeat:
                self._beaten = now
                self._outbox.put(encode(Heartbeat()))

    def _announce(self) -> None:
        announcement = self._house.announce()
        if announcement != self._told:
            self._told = announcement
            self._outbox.put(encode(announcement))

    def _tell_of(self, number: int, work: _Work) -> None:
        """A waiting request's place, when it is another; a sign of life of a running one without events."""
        place = None if work.turn is None else work.turn.place
        if place is not None and place.position != work.told_position:
            work.told_position = place.position
            self._outbox.put(encode(Queued(id=number, position=place.position)))
        elif work.stream is not None and work.stream.last_activity > work.told_activity:
            work.told_activity = work.stream.last_activity
            self._outbox.put(encode(Working(id=number)))

    async def _say(self, goodbye: Goodbye) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                await self._socket.send_bytes(encode(goodbye))

    # Requests

    def _begin(self, number: int, carry_out: Callable[[_Work], Awaitable[None]]) -> None:
        if number in self._works:
            raise MalformedError(f"the number {number} is in use")
        if len(self._works) >= MOST_REQUESTS:
            full = Refusal(
                Code.QUEUE_FULL, f"{MOST_REQUESTS} requests of this guest are waiting already.", retry_after=5
            )
            self._outbox.put(encode(Refused.of(number, full)))
            return
        work = self._works[number] = _Work()
        work.task = self._tasks.create_task(self._carried_out(number, lambda: carry_out(work)))
        work.task.add_done_callback(lambda _task: self._works.pop(number))

    async def _carried_out(self, number: int, carry_out: Callable[[], Awaitable[None]]) -> None:
        try:
            await carry_out()
        except Refusal as refusal:
            self._outbox.put(encode(Refused.of(number, refusal)))
        except Exception as error:
            self._house.log.error("room: a request of %s failed inside the server", self.name, exc_info=error)
            fault = Refusal(
                Code.INTERNAL_ERROR, "Something went wrong inside the room's host; its log has the details."
            )
            self._outbox.put(encode(Refused.of(number, fault)))

    async def _answer(self, ask: Ask, work: _Work) -> None:
        request = msgspec.structs.replace(ask.request, id=self._house.new_id())
        asked = GuestRequest(
            guest=self.name,
            peer=self.peer,
            key_name=self.identity.name,
            request_id=request.id,
            answer=Answer(arrived=time.monotonic(), model=request.model),
        )
        self._house.began(asked)
        try:
            await self._generate(ask.id, request, work, asked.answer)
            self.served += 1
        except Refusal as refusal:
            asked.refusal = refusal.code
            raise
        except asyncio.CancelledError:
            asked.cancelled = True
            raise
        finally:
            self._house.ended(asked)

    async def _generate(self, number: int, request: GenerationRequest, work: _Work, answer: Answer) -> None:
        self._check(request)
        turn = work.turn = answer.turn = self._house.door.turn(owner=self.owner)
        asyncio.get_running_loop().call_soon(self._tell_of, number, work)  # when it stands in the line, if it must
        async with turn:
            self._outbox.put(encode(Working(id=number)))
            async with turn.open(request) as stream:
                work.stream, work.told_activity = stream, stream.last_activity
                self._outbox.put(encode(Accepted(id=number)))
                finished = await self._pass_on(number, stream, work, answer)
        if not finished:
            raise Refusal(Code.GENERATION_FAILED, "The room's model ended its answer in the middle. Send it again.")

    async def _pass_on(self, number: int, stream: EventStream, work: _Work, answer: Answer) -> bool:
        """Every event of the stream; whether the last one was an end."""
        finished = False
        async for batch in stream:
            answer.note(batch)
            for frame in event_frames(number, batch):
                await self._in_turn(frame)
            work.told_activity = stream.last_activity
            finished = isinstance(batch[-1], Finished)
        return finished

    async def _in_turn(self, frame: bytes) -> None:
        try:
            await self._outbox.put_in_turn(frame, self._house.pace.slow_reader)
        except TimeoutError:
            raise Refusal(
                Code.GENERATION_FAILED, "This guest reads more slowly than the model writes, and others wait."
            ) from None

    async def _count(self, count: Count) -> None:
        self._check(count.request)
        tokens = await self._house.door.count(count.request)
        self._outbox.put(encode(Counted(id=count.id, tokens=tokens)))

    def _check(self, request: GenerationRequest) -> None:
        """Refuse what no client of this server could ask for."""
        if not self._clients.allowed:
            raise _clients_off(self._clients)
        check(request)
        if self._house.instance and self._house.instance in request.via:
            raise Refusal(
                Code.GENERATION_FAILED, "The room's host would ask itself. Its owner sets another --upstream."
            )
        self._house.door.check_ready()
        if request.model != self._house.announce().model:
            raise Refusal(
                Code.MODEL_NOT_FOUND, "The room has another model now. GET /v1/models tells which.", param="model"
            )


def event_frames(number: int, batch: Sequence[Event]) -> list[bytes]:
    """A batch as one frame, or as several where one would be too large. Raises GENERATION_FAILED for an event that is
    too large by itself."""
    frame = encode(Events(id=number, events=list(batch)))
    if len(frame) < protocol.MAX_HOST_FRAME_BYTES:
        return [frame]
    if len(batch) == 1:
        raise Refusal(Code.GENERATION_FAILED, "The answer does not fit into a frame of the room. Ask for fewer scores.")
    middle = len(batch) // 2
    return [*event_frames(number, batch[:middle]), *event_frames(number, batch[middle:])]


def announcement_of(door: Door, model_id: str | None) -> Announcement:
    """What guests are told of the model that this door leads to; `model_id` is the one that would be loaded."""
    status = door.engine.status
    ready = status.state is EngineState.READY or (status.loads_on_request and model_id is not None)
    return Announcement(
        model=status.model or model_id,
        context_size=status.context_size,
        ready=ready,
        loading=status.state is EngineState.LOADING,
        load_progress=None if status.load_progress is None else round(status.load_progress, 2),
        supports_tools=status.supports_tools,
        counts_tokens=status.counts_tokens,
        problem=status.problem,
    )


def _clients_off(clients: ApiClients) -> Refusal:
    return Refusal(Code.DISCONNECTED_BY_HOST, clients.reason, retry_after=5)
