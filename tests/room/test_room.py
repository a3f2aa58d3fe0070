"""A host and its guests on loopback, over the simulator: what each of them does to the other."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from openai import APIError, APIStatusError

from pocketserver.chat import GenerationRequest, Message, Role
from pocketserver.engines.room import RoomLimits
from pocketserver.engines.sim.engine import SimEngine, SimOptions
from pocketserver.errors import Code
from pocketserver.room import protocol
from pocketserver.room.finding import Find, at
from pocketserver.room.pace import Pace
from pocketserver.room.protocol import Accepted, Ask, Cancel, Events, Goodbye, Queued, Reason, Refused, Welcome
from tests.room.rooming import LIMITS, QUICK, Guest, Host, hosting, joining, linked, stranger
from tests.room.scripted_host import KEY, READY, scripted_host
from tests.waiting import until

STEADY = SimOptions(tokens_per_second=200.0)
ENDLESS = SimOptions(tokens_per_second=20.0, reply_tokens=100_000, context_size=200_000)
MODEL = "pooled/sim-1b"


async def ask(guest: Guest | Host, **options: Any) -> Any:
    """One whole answer, by the official SDK without retries."""
    model = MODEL if isinstance(guest, Guest) else "sim-1b"
    asked = {"model": model, "messages": [{"role": "user", "content": "hi"}], **options}
    async with guest.running.openai() as client:
        return await client.chat.completions.create(**asked)


@asynccontextmanager
async def streaming(guest: Guest | Host, **options: Any) -> AsyncIterator[Any]:
    """A stream of a very long answer; leaving the block hangs up."""
    model = MODEL if isinstance(guest, Guest) else "sim-1b"
    asked = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 50_000, **options}
    async with guest.running.openai() as client:
        async with await client.chat.completions.create(stream=True, **asked) as stream:
            yield stream


async def broken_off(guest: Guest, after: Callable[[], Any]) -> str:
    """Read a stream, call `after` at the first word, and return the code of the error chunk that follows."""

    async def read() -> None:
        told = False
        async with streaming(guest) as stream:
            async for chunk in stream:
                if not told and chunk.choices and chunk.choices[0].delta.content:
                    told = True
                    after()

    with pytest.raises(APIError) as caught:
        await read()
    return str(caught.value.code)


def asking(number: int, model: str = "sim-1b", **changes: Any) -> Ask:
    messages = (Message(role=Role.USER, content="hi"),)
    return Ask(id=number, request=GenerationRequest(id="x", model=model, messages=messages, **changes))


async def test_a_guest_answers_with_the_hosts_model(tmp_path: Path) -> None:
    async with hosting(tmp_path / "host") as host, joining(tmp_path / "guest", at(host.url), host.key) as guest:
        answer = await ask(guest)

        assert answer.model == MODEL
        assert answer.usage.completion_tokens == 40
        assert host.room.guests()[0].served == 1
        assert [(one.method, one.status, one.key_name) for one in host.running.exchanges] == [("ASK", 200, "main")]
        async with host.running.session() as client, client.get("/health") as response:
            [listed] = (await response.json())["x_pocketserver"]["room"]["guests"]
        assert (listed["name"], listed["served"]) == ("laptop", 1)


async def test_who_has_no_key_does_not_see_who_is_in_the_room(tmp_path: Path) -> None:
    async with hosting(tmp_path / "host") as host, joining(tmp_path / "guest", at(host.url), host.key):
        async with aiohttp.ClientSession() as client, client.get(f"{host.url}/health") as response:
            assert "laptop" not in await response.text()


async def test_counts_come_from_the_host(tmp_path: Path) -> None:
    async with hosting(tmp_path / "host") as host, joining(tmp_path / "guest", at(host.url), host.key) as guest:
        request = asking(1).request
        assert await guest.engine.count(request) == await host.sim.count(request)


async def test_what_the_host_refuses_is_refused_here_before_the_headers(tmp_path: Path) -> None:
    async with hosting(tmp_path / "host") as host, joining(tmp_path / "guest", at(host.url), host.key) as guest:
        with pytest.raises(APIStatusError) as caught:
            await ask(guest, messages=[{"role": "user", "content": "word " * 20_000}])
        assert (caught.value.status_code, caught.value.code) == (400, "context_length_exceeded")
        assert caught.value.body["param"] == "messages"  # type: ignore[index]


async def test_hanging_up_at_the_guest_frees_the_hosts_model(tmp_path: Path) -> None:
    async with (
        hosting(tmp_path / "host", SimEngine(ENDLESS)) as host,
        joining(tmp_path / "guest", at(host.url), host.key) as guest,
    ):
        async with streaming(guest):
            await until(lambda: host.running.server.door.busy)
        await until(lambda: not host.running.server.door.busy)
        assert host.room.guests()[0].requests == 0


async def test_a_guest_that_leaves_takes_its_running_and_queued_work_with_it(tmp_path: Path) -> None:
    async with hosting(tmp_path, SimEngine(ENDLESS)) as host:
        door = host.running.server.door
        async with stranger(host.url) as link:
            await link.prove(host.key)
            await link.next(Welcome)
            for number in range(3):
                await link.send(asking(number, max_tokens=50_000))
            await until(lambda: door.waiting == 2)
        await until(lambda: not door.busy and door.waiting == 0 and not host.room.guests())
        assert len(host.running.exchanges) >= 3


async def test_a_request_that_waits_is_told_its_place_and_each_change_of_it(tmp_path: Path) -> None:
    async with hosting(tmp_path, SimEngine(ENDLESS)) as host, stranger(host.url) as link:
        await link.prove(host.key)
        await link.next(Welcome)
        for number in (1, 2, 3):
            await link.send(asking(number, max_tokens=50_000))
        told = [await link.next(Queued), await link.next(Queued)]
        await link.send(Cancel(id=1))
        told += [await link.next(Queued)]

        assert [(place.id, place.position) for place in told] == [(2, 2), (3, 3), (3, 2)]


async def test_guests_and_local_clients_take_turns(tmp_path: Path) -> None:
    async with hosting(tmp_path, SimEngine(STEADY)) as host, AsyncExitStack() as stack:
        one = await stack.enter_async_context(stranger(host.url))
        two = await stack.enter_async_context(stranger(host.url))
        for link in (one, two):
            await link.prove(host.key)
            await link.next(Welcome)
        for number in range(4):
            await one.send(asking(number))
        await until(lambda: host.running.server.door.waiting == 3)
        await two.send(asking(0))
        await until(lambda: host.running.server.door.waiting == 4)
        local = asyncio.create_task(ask(host))
        await two.next(Accepted)
        await local

        served = {guest.name: guest.served for guest in host.room.guests()}
        assert served["stranger"] <= 2  # the one that ran, and at most one more of the four


async def test_too_many_requests_of_one_guest_are_refused(tmp_path: Path) -> None:
    async with hosting(tmp_path, SimEngine(ENDLESS)) as host, stranger(host.url) as link:
        await link.prove(host.key)
        await link.next(Welcome)
        for number in range(17):
            await link.send(asking(number, max_tokens=50_000))
        refused = await link.next(Refused)
        assert (refused.id, refused.code) == (16, Code.QUEUE_FULL)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (asking(1, model="another"), Code.MODEL_NOT_FOUND),
        (asking(1, max_tokens=-1), Code.INVALID_PARAMETER),
    ],
)
async def test_a_request_that_cannot_be_is_refused_and_the_link_stays(tmp_path: Path, message: Ask, code: Code) -> None:
    async with hosting(tmp_path) as host, stranger(host.url) as link:
        await link.prove(host.key)
        await link.next(Welcome)
        await link.send(message)
        assert (await link.next(Refused)).code == code
        await link.send(asking(2))
        assert (await link.next(Accepted)).id == 2


async def test_a_request_that_has_passed_this_server_is_not_passed_on(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host, stranger(host.url) as link:
        host.room.house = type(host.room.house)(
            **{name: getattr(host.room.house, name) for name in host.room.house.__slots__} | {"instance": "me"}
        )
        await link.prove(host.key)
        await link.next(Welcome)
        await link.send(asking(1, via=("somebody", "me")))
        assert (await link.next(Refused)).code == Code.GENERATION_FAILED


async def test_a_revoked_key_ends_the_links_that_came_with_it(tmp_path: Path) -> None:
    async with hosting(tmp_path / "host") as host:
        keys = host.running.server.keys
        assert keys is not None
        phone = await asyncio.to_thread(keys.new, "phone")
        async with joining(tmp_path / "guest", at(host.url), phone) as guest, stranger(host.url) as other:
            await other.prove(host.key)
            await other.next(Welcome)
            await asyncio.to_thread(keys.revoke, "phone")
            await until(lambda: guest.status.closed is not None)
            assert "revoked" in guest.status.closed
            assert [one.name for one in host.room.guests()] == ["stranger"]


async def test_stop_ends_what_guests_ask_for_and_the_link_stays(tmp_path: Path) -> None:
    async with (
        hosting(tmp_path / "host", SimEngine(ENDLESS)) as host,
        joining(tmp_path / "guest", at(host.url), host.key) as guest,
    ):
        assert await broken_off(guest, host.room.stop) == Code.REQUEST_CANCELLED
        assert guest.status.connected
        assert guest.status.closed is None


async def test_a_full_queue_in_the_room_is_told_as_such(tmp_path: Path) -> None:
    async with (
        hosting(tmp_path / "host", SimEngine(ENDLESS), admission="queue", max_queue=1) as host,
        joining(tmp_path / "guest", at(host.url), host.key) as guest,
    ):
        async with streaming(host):
            with pytest.raises(APIStatusError) as caught:
                await ask(guest)
        assert (caught.value.status_code, caught.value.code) == (429, "queue_full")
        assert caught.value.response.headers["Retry-After"] == "5"


class Moving:
    """A host's address, which may change."""

    def __init__(self) -> None:
        self.url: str | None = None
        self.asked = 0

    def find(self) -> Find:
        async def find() -> list[str]:
            self.asked += 1
            return [] if self.url is None else [self.url]

        return find


async def test_a_guest_waits_for_its_host_and_finds_it_under_a_new_address(tmp_path: Path) -> None:
    where = Moving()
    limits = RoomLimits(wait=0.05)
    async with AsyncExitStack() as stack:
        home = tmp_path / "host"
        async with hosting(home) as host:
            key = host.key
        guest = await stack.enter_async_context(joining(tmp_path / "guest", where.find(), key, limits=limits))
        assert (await guest.health())["connected"] is False
        async with hosting(home) as host:
            where.url = host.url
            await linked(guest)
            first = host.url
        await until(lambda: not guest.status.connected)
        assert guest.status.closed is None
        async with hosting(home) as host:
            assert host.url != first
            where.url = host.url
            await linked(guest)
            assert (await ask(guest)).usage.completion_tokens == 40


async def test_a_host_that_shuts_down_fails_what_runs_and_is_looked_for_again(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        host = await stack.enter_async_context(hosting(tmp_path / "host", SimEngine(ENDLESS)))
        guest = await stack.enter_async_context(joining(tmp_path / "guest", at(host.url), host.key))
        loop = asyncio.get_running_loop()
        ending: list[asyncio.Task[None]] = []
        code = await broken_off(guest, lambda: ending.append(loop.create_task(cut(host))))
        await asyncio.gather(*ending)
        assert code == Code.HOST_GONE
        await linked(guest)  # the listener was open all the time


async def cut(host: Host) -> None:
    """Break every link without a word, as a network does."""
    for seat in host.room._seats.values():
        transport = seat._socket._req.transport  # type: ignore[union-attr]
        assert transport is not None
        transport.abort()


async def test_a_slow_guest_loses_its_answer_and_delays_nobody(tmp_path: Path) -> None:
    """It reads nothing at all, and its answer is larger than all buffers; the others wait for seconds, not minutes."""
    pace = Pace(heartbeat=0.1, deadline=60.0, look=0.02, slow_reader=0.2)
    engine = SimEngine(SimOptions(tokens_per_second=None, reply_tokens=500_000, context_size=2_000_000))
    async with hosting(tmp_path / "host", engine, pace, stall_seconds=60.0) as host:
        async with stranger(host.url) as slow, joining(tmp_path / "guest", at(host.url), host.key) as guest:
            await slow.prove(host.key)
            await slow.next(Welcome)
            await slow.send(asking(1, max_tokens=1_000_000))
            await until(lambda: host.running.server.door.busy)
            started = asyncio.get_running_loop().time()
            await asyncio.wait_for(ask(guest, max_tokens=5), 20)
            assert asyncio.get_running_loop().time() - started < 20
            [theirs] = [one for one in host.running.exchanges if one.error is not None]
            assert theirs.error is Code.GENERATION_FAILED


async def test_a_guest_that_reads_slowly_but_little_gets_its_answer_and_the_model_is_free_at_once(
    tmp_path: Path,
) -> None:
    async with hosting(tmp_path, SimEngine(SimOptions(tokens_per_second=None, reply_tokens=2000))) as host:
        async with stranger(host.url) as slow:
            await slow.prove(host.key)
            await slow.next(Welcome)
            await slow.send(asking(1, max_tokens=4000))
            await until(lambda: host.room.guests()[0].served == 1)  # nothing was read yet
            assert not host.running.server.door.busy
            finished = False
            while not finished:
                finished = protocol.encode((await slow.next(Events)).events[-1]).find(b"finished") >= 0


# Hosts that misbehave


def says(*messages: object) -> Callable[[web.WebSocketResponse], Any]:
    """Announce a model; after the first request say this of it, and wait."""

    async def script(socket: web.WebSocketResponse) -> None:
        await socket.send_bytes(protocol.encode(READY))
        async for received in socket:
            message = protocol.from_guest(received.data)
            if isinstance(message, Ask):
                for said in messages:
                    await socket.send_bytes(said if isinstance(said, bytes) else protocol.encode(said))

    return script


@pytest.mark.parametrize(
    ("said", "limits", "status", "code"),
    [
        ((), RoomLimits(stall=0.2, queue=60), 504, "generation_stalled"),
        ((Queued(id=1, position=2),), RoomLimits(stall=60, queue=0.2), 504, "generation_stalled"),
        ((Refused(id=1, code="worker_lost", message="It died."),), LIMITS, 500, "worker_lost"),
        ((Refused(id=1, code="model_busy", message="Busy."),), LIMITS, 429, "queue_full"),
        ((Refused(id=1, code="upstream_failed", message="Oh."),), LIMITS, 500, "generation_failed"),
        ((Refused(id=1, code="request_cancelled", message="Stop."),), LIMITS, 503, "request_cancelled"),
        ((b"no message",), LIMITS, 500, "generation_failed"),
        ((Events(id=1, events=[protocol.msgspec.convert({"type": "text", "text": "x"}, protocol.Event)]),), LIMITS, 500, "generation_failed"),
        ((Goodbye(reason=Reason.KICKED, message="Out."),), LIMITS, 503, "disconnected_by_host"),
        ((Goodbye(reason="a later one", message="Hm."),), LIMITS, 503, "host_gone"),
    ],
)  # fmt: skip
async def test_what_a_host_does_is_a_status_here(
    tmp_path: Path, said: tuple[object, ...], limits: RoomLimits, status: int, code: str
) -> None:
    async with scripted_host(says(*said)) as url, joining(tmp_path, at(url), KEY, limits=limits) as guest:
        await linked(guest)
        with pytest.raises(APIStatusError) as caught:
            await ask(guest, model="pooled/far-away")
        assert (caught.value.status_code, caught.value.code) == (status, code)


async def test_a_host_that_falls_silent_is_given_up(tmp_path: Path) -> None:
    async def script(socket: web.WebSocketResponse) -> None:
        await socket.send_bytes(protocol.encode(READY))
        await asyncio.sleep(60)

    pace = Pace(heartbeat=0.05, deadline=0.2, look=0.02)
    async with scripted_host(script) as url, joining(tmp_path, at(url), KEY, pace=pace) as guest:
        await linked(guest)
        await until(lambda: not guest.status.connected)
        assert guest.status.closed is None


async def test_a_guest_that_falls_silent_is_given_up(tmp_path: Path) -> None:
    pace = Pace(heartbeat=0.05, deadline=0.2, look=0.02)
    async with hosting(tmp_path, pace=pace) as host, stranger(host.url) as link:
        await link.prove(host.key)
        await link.next(Welcome)
        await until(lambda: not host.room.guests())


async def test_closing_a_guest_in_the_middle_of_everything_leaves_nothing_behind(tmp_path: Path) -> None:
    async with hosting(tmp_path / "host", SimEngine(ENDLESS)) as host:
        async with joining(tmp_path / "guest", at(host.url), host.key) as guest:
            task = asyncio.create_task(ask(guest, max_tokens=50_000))
            await until(lambda: host.running.server.door.busy)
        with pytest.raises(APIError):
            await task
        await until(lambda: not host.room.guests() and not host.running.server.door.busy)


def test_the_usual_pace_is_the_documented_one() -> None:
    assert (Pace().heartbeat, Pace().deadline) == (protocol.HEARTBEAT_SECONDS, protocol.DEADLINE_SECONDS)
    assert QUICK.deadline < protocol.DEADLINE_SECONDS
