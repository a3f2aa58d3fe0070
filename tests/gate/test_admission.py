"""The door to the model: one runs, the rest are refused or wait, whoever leaves frees the place at once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pocketserver.chat import EngineState, GenerationRequest, Message, Role
from pocketserver.engines.engine import EventStream
from pocketserver.engines.sim.engine import SimEngine, SimOptions
from pocketserver.errors import Code, Refusal
from pocketserver.gate.admission import Door
from tests.waiting import until

SLOW = SimOptions(tokens_per_second=0.001)


def door(engine: SimEngine, *, limit: int = 1, stall_seconds: float = 60.0) -> Door:
    return Door(
        engine, limit=limit, full=Code.MODEL_BUSY if limit == 1 else Code.QUEUE_FULL, stall_seconds=stall_seconds
    )


def question(name: str = "r") -> GenerationRequest:
    return GenerationRequest(id=name, model="sim-1b", messages=(Message(role=Role.USER, content="hi"),))


async def hold(entrance: Door, name: str, order: list[str], release: asyncio.Event) -> None:
    async with entrance.open(question(name)):
        order.append(name)
        await release.wait()


async def test_a_second_caller_of_the_mutex_is_refused_at_once_with_a_hint() -> None:
    entrance = door(SimEngine(SLOW))

    async with entrance.open(question()):
        with pytest.raises(Refusal) as caught:
            async with entrance.open(question()):
                pytest.fail("two generations at once")

    assert (caught.value.code, caught.value.retry_after) == (Code.MODEL_BUSY, 1)
    assert not entrance.busy


async def test_of_fifty_pairs_exactly_one_comes_in_each_time() -> None:
    engine = SimEngine(SimOptions(tokens_per_second=4000))
    entrance = door(engine)

    async def one() -> str:
        try:
            async with entrance.open(question()) as stream:
                return str(len([batch async for batch in stream]) > 0)
        except Refusal as refusal:
            return refusal.code

    for _ in range(50):
        assert sorted(await asyncio.gather(one(), one())) == ["True", "model_busy"]


async def test_the_queue_serves_in_order_and_counts_running_and_waiting_together() -> None:
    entrance, order, release = door(SimEngine(SLOW), limit=3), [], asyncio.Event()
    tasks = []
    for name in ("one", "two", "three"):
        tasks.append(asyncio.create_task(hold(entrance, name, order, release)))
        await asyncio.sleep(0)
    await until(lambda: entrance.waiting == 2)

    with pytest.raises(Refusal) as caught:
        await hold(entrance, "four", order, release)
    release.set()
    await asyncio.gather(*tasks)

    assert caught.value.code is Code.QUEUE_FULL
    assert order == ["one", "two", "three"]


async def test_who_leaves_the_queue_frees_the_place_and_is_never_run() -> None:
    entrance, order, release = door(SimEngine(SLOW), limit=3), [], asyncio.Event()
    tasks = [asyncio.create_task(hold(entrance, name, order, release)) for name in ("one", "two", "three")]
    await until(lambda: entrance.waiting == 2)

    tasks[1].cancel()
    await until(lambda: entrance.waiting == 1)
    tasks.append(asyncio.create_task(hold(entrance, "four", order, release)))
    await until(lambda: entrance.waiting == 2)
    release.set()
    await asyncio.gather(*tasks, return_exceptions=True)

    assert order == ["one", "three", "four"]


async def test_a_turn_that_comes_in_the_moment_of_leaving_is_passed_on() -> None:
    entrance, order, release = door(SimEngine(SLOW), limit=3), [], asyncio.Event()
    first_release = asyncio.Event()
    first = asyncio.create_task(hold(entrance, "one", order, first_release))
    await until(lambda: entrance.busy)
    leaving = asyncio.create_task(hold(entrance, "two", order, release))
    last = asyncio.create_task(hold(entrance, "three", order, release))
    await until(lambda: entrance.waiting == 2)

    first_release.set()
    await until(lambda: entrance.waiting == 1)
    leaving.cancel()
    release.set()
    await asyncio.gather(first, leaving, last, return_exceptions=True)

    assert order[-1] == "three"
    assert not entrance.busy


async def test_stop_ends_the_running_generation_with_its_own_code() -> None:
    entrance = door(SimEngine(SLOW))

    async with entrance.open(question()) as stream:
        assert entrance.stop()
        with pytest.raises(Refusal) as caught:
            await anext(stream)

    assert caught.value.code is Code.REQUEST_CANCELLED
    assert not entrance.stop()


class _NeverAccepts(SimEngine):
    """An engine that hangs before it accepts, as one whose worker is still starting."""

    @asynccontextmanager
    async def generate(self, request: GenerationRequest) -> AsyncIterator[EventStream]:
        await asyncio.Event().wait()
        yield EventStream()


async def test_stop_reaches_a_request_that_the_engine_has_not_accepted_yet() -> None:
    entrance = door(_NeverAccepts())
    asking = asyncio.create_task(hold(entrance, "one", [], asyncio.Event()))
    await until(lambda: entrance.running is not None and entrance.running.accepting is not None)

    entrance.stop()

    with pytest.raises(Refusal) as caught:
        await asking
    assert caught.value.code is Code.REQUEST_CANCELLED
    assert not entrance.busy


async def test_a_generation_without_progress_is_given_up_and_frees_the_place() -> None:
    entrance = door(SimEngine(SLOW), stall_seconds=0.05)

    with pytest.raises(Refusal) as caught:
        async with entrance.open(question()) as stream:
            await anext(stream)

    assert caught.value.code is Code.GENERATION_STALLED
    assert not entrance.busy
    assert not entrance.stuck


async def test_progress_of_a_long_prompt_keeps_the_watchdog_quiet() -> None:
    entrance = door(SimEngine(SLOW), stall_seconds=0.2)

    async with entrance.open(question()) as stream:
        for _ in range(15):
            await asyncio.sleep(0.03)
            stream.touch()
        assert stream.failure is None


async def test_nobody_comes_in_while_the_model_is_away() -> None:
    engine = SimEngine(SLOW)
    entrance = door(engine)
    codes = []
    for state in (EngineState.LOADING, EngineState.NO_MODEL):
        engine.state = state
        with pytest.raises(Refusal) as caught:
            entrance.check_ready()
        codes.append(caught.value.code)

    assert codes == [Code.MODEL_NOT_LOADED, Code.MODEL_NOT_LOADED]


async def test_closing_refuses_those_who_wait() -> None:
    entrance, order, release = door(SimEngine(SLOW), limit=3), [], asyncio.Event()
    first = asyncio.create_task(hold(entrance, "one", order, release))
    second = asyncio.create_task(hold(entrance, "two", order, release))
    await until(lambda: entrance.waiting == 1)

    entrance.close()
    with pytest.raises(Refusal) as caught:
        await second
    release.set()
    await first

    assert caught.value.code is Code.MODEL_NOT_LOADED


async def served_in(entrance: Door, arrivals: list[tuple[str, str | None]]) -> list[str]:
    """Let these requests arrive while the first holds the model; the order in which they had it."""
    order: list[str] = []
    release = asyncio.Event()

    async def ask(name: str, owner: str | None) -> None:
        async with entrance.turn(owner=owner) as turn, turn.open(question(name)):
            order.append(name)
            await release.wait()

    tasks = []
    for name, owner in arrivals:
        tasks.append(asyncio.create_task(ask(name, owner)))
        await asyncio.sleep(0)
    await until(lambda: entrance.waiting == len(arrivals) - 1)
    release.set()
    await asyncio.gather(*tasks)
    return order


async def test_owners_take_turns_and_one_owners_requests_keep_their_order() -> None:
    arrivals = [("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("b2", "b"), ("c1", "c")]

    assert await served_in(door(SimEngine(SLOW), limit=9), arrivals) == ["a1", "b1", "c1", "a2", "b2", "a3"]


async def test_requests_without_an_owner_are_one_owners() -> None:
    arrivals = [("1", None), ("2", None), ("guest", "guest"), ("3", None)]

    assert await served_in(door(SimEngine(SLOW), limit=9), arrivals) == ["1", "guest", "2", "3"]


async def test_the_place_that_is_told_is_the_place_in_which_it_is_served() -> None:
    entrance = door(SimEngine(SLOW), limit=9)
    owners = ["a", "a", "a", "b", "b", "c"]
    turns = [entrance.turn(owner=owner) for owner in owners]
    served: list[int] = []
    release = asyncio.Event()

    async def take(number: int) -> None:
        async with turns[number]:
            served.append(number)
            await release.wait()

    async with entrance.turn(owner="a"):
        tasks = []
        for number in range(len(turns)):
            tasks.append(asyncio.create_task(take(number)))
            await asyncio.sleep(0)
        await until(lambda: entrance.waiting == len(turns))
        told = {number: place.position for number, turn in enumerate(turns) if (place := turn.place)}
        release.set()
    await asyncio.gather(*tasks)

    assert sorted(told.values()) == [2, 3, 4, 5, 6, 7]
    assert sorted(told, key=lambda number: told[number]) == served


class Crew(SimEngine):
    """An engine that answers several at once, each as slowly as `SLOW`; the number may change."""

    def __init__(self, concurrency: int, options: SimOptions = SLOW) -> None:
        super().__init__(options)
        self.concurrency = concurrency

    @asynccontextmanager
    async def generate(self, request: GenerationRequest) -> AsyncIterator[EventStream]:  # type: ignore[override]
        async with SimEngine(self.options).generate(request) as stream:
            yield stream


async def test_an_engine_that_answers_several_at_once_is_given_several_and_no_more() -> None:
    entrance = door(Crew(3), limit=5)
    order: list[str] = []
    release = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for name in "abcde":
            group.create_task(hold(entrance, name, order, release))
        await until(lambda: entrance.taken == 3 and entrance.waiting == 2)
        assert sorted(order) == ["a", "b", "c"]
        with pytest.raises(Refusal) as caught:
            await entrance.turn().__aenter__()
        assert caught.value.code is Code.QUEUE_FULL
        release.set()
    assert order == ["a", "b", "c", "d", "e"]
    assert (entrance.taken, entrance.busy, entrance.running) == (0, False, None)


async def test_the_mutex_of_such_an_engine_refuses_when_all_places_are_taken() -> None:
    entrance = door(Crew(2), limit=1)
    async with entrance.open(question("a")), entrance.open(question("b")):
        with pytest.raises(Refusal) as caught:
            async with entrance.open(question("c")):
                pytest.fail("three generations at once")
    assert caught.value.code is Code.MODEL_BUSY


async def test_a_place_more_lets_in_more_and_a_place_less_fewer() -> None:
    crew = Crew(1)
    entrance = door(crew, limit=8)
    order: list[str] = []
    first, rest = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(hold(entrance, "a", order, first))
        for name in "bcd":
            group.create_task(hold(entrance, name, order, rest))
        await until(lambda: entrance.waiting == 3)
        crew.concurrency = 2
        first.set()
        await until(lambda: order == ["a", "b", "c"])
        assert (entrance.taken, entrance.waiting) == (2, 1)
        crew.concurrency = 1
        rest.set()


async def test_stop_and_a_stall_end_each_of_several_answers() -> None:
    entrance = door(Crew(2), limit=4)
    async with entrance.open(question("a")) as one, entrance.open(question("b")) as other:
        assert entrance.stop()
        for stream in (one, other):
            with pytest.raises(Refusal) as caught:
                await anext(stream)
            assert caught.value.code is Code.REQUEST_CANCELLED

    entrance = door(Crew(2), limit=4, stall_seconds=0.05)
    async with entrance.open(question("a")) as one, entrance.open(question("b")) as other:
        for stream in (one, other):
            with pytest.raises(Refusal) as caught:
                await asyncio.wait_for(anext(stream), 20)
            assert caught.value.code is Code.GENERATION_STALLED
        assert entrance.stuck
    assert not entrance.stuck


async def test_fifty_clients_that_come_and_go_at_four_places_leave_nothing_taken() -> None:
    entrance = door(Crew(4, SimOptions(tokens_per_second=4000)), limit=60)
    most = 0

    async def one(number: int) -> None:
        nonlocal most
        async with entrance.open(question(str(number)), owner=str(number % 3)) as stream:
            most = max(most, entrance.taken)
            async for _ in stream:
                pass

    tasks = [asyncio.create_task(one(number)) for number in range(50)]
    await until(lambda: entrance.taken == 4)
    for task in tasks[::3]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert most == 4
    assert (entrance.taken, entrance.waiting, entrance.running) == (0, 0, None)
