"""Connections to upstreams: used again when they are whole, closed when they are not, bounded in time and memory."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from aiohttp import web

from pocketserver.engines.upstream.engine import UpstreamEngine, UpstreamOptions
from tests.engines.upstream.fake import MODELS, STREAM_HEAD, Asked, plain, saying
from tests.engines.upstream.gateway import BODIES, HI, answered_by, in_front_of
from tests.serving import Running, running
from tests.waiting import until

DATA = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
END = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
CHAT = "/v1/chat/completions"


@dataclass
class Lasting:
    """An upstream that keeps its connections, as real ones do, and notes on which one each request came."""

    seen: list[object] = field(default_factory=list)
    port: int = 0
    drop_when_used_again: bool = False
    chunks_before_end: int = 1
    hold: asyncio.Event = field(default_factory=asyncio.Event)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        again = request.transport in self.seen
        self.seen.append(request.transport)
        if again and self.drop_when_used_again:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        for _ in range(self.chunks_before_end):
            await answer.write(DATA)
            await asyncio.sleep(0)
        await self.hold.wait()
        await answer.write(END)
        return answer

    async def models(self, _request: web.Request) -> web.Response:
        return web.Response(body=MODELS, content_type="application/json", headers={"Connection": "close"})


@asynccontextmanager
async def lasting() -> AsyncIterator[Lasting]:
    upstream = Lasting()
    upstream.hold.set()
    app = web.Application()
    app.add_routes([web.post("/v1/chat/completions", upstream.chat), web.get("/v1/models", upstream.models)])
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    upstream.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    try:
        yield upstream
    finally:
        await runner.cleanup()


async def settled(server: Running) -> None:
    """Wait until the last bytes of all answers have come; nobody else does."""
    engine = server.server.engine
    assert isinstance(engine, UpstreamEngine)
    await until(lambda: not any(endpoint._settling for endpoint in engine._endpoints))


async def test_a_client_that_leaves_after_the_last_event_was_answered(tmp_path: Path) -> None:
    """Its upstream says all, and then does not end its body."""

    async def lingering(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + DATA + END)
        await writer.drain()
        await asyncio.wait_for(asked.left.wait(), 60)

    async with answered_by(tmp_path, lingering) as (upstream, session, server):
        for number in range(1, 4):
            async with session.post(CHAT, json={"messages": HI, "stream": True}) as answer:
                async for line in answer.content:
                    if line.startswith(b"data: [DONE]"):
                        break
                answer.close()
            exchange = await server.exchange(number)
            assert (exchange.status, exchange.error) == (200, None)
        await asyncio.wait_for(upstream.asked[0].left.wait(), 20)


@pytest.mark.parametrize("path", BODIES)
async def test_a_stream_read_to_its_end_leaves_its_connection_to_the_next(tmp_path: Path, path: str) -> None:
    async with lasting() as upstream, in_front_of(tmp_path, f"http://127.0.0.1:{upstream.port}/v1") as server:
        async with server.session() as session:
            for stream in (True, False, True, True):
                async with session.post(path, json={**BODIES[path], "stream": stream}) as answer:
                    assert answer.status == 200
                    await answer.read()
                await settled(server)
        assert len(upstream.seen) == 4
        assert len(set(upstream.seen)) == 1


async def test_an_answer_that_was_left_costs_its_connection_and_the_next_gets_its_own(tmp_path: Path) -> None:
    async with lasting() as upstream, in_front_of(tmp_path, f"http://127.0.0.1:{upstream.port}/v1") as server:
        async with server.session() as session:
            upstream.hold.clear()
            async with session.post(CHAT, json={"messages": HI, "stream": True}) as answer:
                await answer.content.readany()
                answer.close()
            await until(lambda: not server.server.door.busy)
            upstream.hold.set()
            upstream.chunks_before_end = 3
            async with session.post(CHAT, json={"messages": HI}) as answer:
                assert (await answer.json())["choices"][0]["message"]["content"] == "aaa"
        assert len(set(upstream.seen)) == 2


async def test_an_idle_connection_that_the_upstream_ends_costs_nobody_anything(tmp_path: Path) -> None:
    async with lasting() as upstream, in_front_of(tmp_path, f"http://127.0.0.1:{upstream.port}/v1") as server:
        async with server.session() as session:
            upstream.drop_when_used_again = True
            for _ in range(3):
                async with session.post(CHAT, json={"messages": HI}) as answer:
                    assert answer.status == 200
                await settled(server)
        assert len(upstream.seen) == 5, "twice an old connection, and then a new one"


async def test_connections_do_not_pile_up(tmp_path: Path) -> None:
    process = psutil.Process()
    async with lasting() as upstream, in_front_of(tmp_path, f"http://127.0.0.1:{upstream.port}/v1") as server:
        async with server.session() as session:
            for number in range(120):
                async with session.post(CHAT, json={"messages": HI, "stream": True}) as answer:
                    if number % 3:
                        await answer.read()
                    else:
                        answer.close()
                if number == 20:
                    before = len(process.net_connections("tcp"))
            await until(lambda: not server.server.door.busy)
            await until(lambda: len(process.net_connections("tcp")) <= before + 3)


async def refused() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}/v1"


async def test_a_name_that_does_not_exist_and_a_port_that_nobody_has_are_unreachable(tmp_path: Path) -> None:
    for number, url in enumerate(("http://no-such-host.invalid:8000/v1", await refused())):
        async with in_front_of(tmp_path / str(number), url) as server, server.session() as session:
            for path, body in BODIES.items():
                async with asyncio.timeout(20), session.post(path, json=body) as answer:
                    assert answer.status in (503, 529)
                    assert answer.headers["Retry-After"]
                    assert "invalid" not in await answer.text()


@pytest.mark.parametrize("after", [b"", STREAM_HEAD, STREAM_HEAD + DATA])
async def test_a_reset_is_an_error_at_every_moment(tmp_path: Path, after: bytes) -> None:
    async def reset(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(after)
        await writer.drain()
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async with answered_by(tmp_path, reset) as (_upstream, session, server):
        for path, body in BODIES.items():
            async with session.post(path, json=body) as answer:
                assert answer.status in (502, 503, 529)
                json.loads(await answer.text())
        assert not server.server.door.busy


@pytest.mark.parametrize("path", [*BODIES, "/v1/embeddings"])
async def test_a_body_of_300_megabytes_costs_little_memory(tmp_path: Path, path: str) -> None:
    async def endless(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 314572800\r\n\r\n")
        for _ in range(300):
            writer.write(b" " * 1048576)
            await writer.drain()

    process = psutil.Process()
    before = process.memory_info().rss
    async with answered_by(tmp_path, endless) as (_upstream, session, _server):
        async with session.post(path, json=BODIES.get(path, {"input": "hi"})) as answer:
            assert answer.status == 502
    assert process.memory_info().rss - before < 150_000_000


async def test_an_answer_that_pauses_too_long_is_broken_off_and_one_that_has_not_begun_is_not(tmp_path: Path) -> None:
    async def pausing(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        await writer.drain()
        await asyncio.sleep(0.3)  # longer than a pause may be: it reads the prompt
        writer.write(DATA)
        await writer.drain()
        await asyncio.wait_for(asked.left.wait(), 60)

    async with answered_by(tmp_path, pausing, idle_seconds=0.1) as (upstream, session, _server):
        async with session.post(CHAT, json={"messages": HI, "stream": True}) as answer:
            text = await answer.text()
        assert '"content":"a"' in text
        assert "silent for 0.1 seconds" in text
        assert "[DONE]" not in text
        await asyncio.wait_for(upstream.asked[0].left.wait(), 20)


async def test_a_client_that_reads_slowly_is_not_the_upstreams_pause(tmp_path: Path) -> None:
    many = STREAM_HEAD + DATA * 200_000 + END
    async with answered_by(tmp_path, saying(many), idle_seconds=0.2) as (_upstream, session, _server):
        async with session.post(CHAT, json={"messages": HI, "stream": True}) as answer:
            await answer.content.readany()
            await asyncio.sleep(0.5)
            assert (await answer.text()).endswith("data: [DONE]\n\n")


async def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    head = plain(307, b"", Location="http://127.0.0.1:9/v1/chat/completions")
    async with answered_by(tmp_path, saying(head)) as (_upstream, session, _server):
        async with session.post(CHAT, json={"messages": HI}) as answer:
            assert answer.status == 502


async def test_metrics_count_each_upstream_and_clients_that_leave_are_no_failures_of_it(tmp_path: Path) -> None:
    async with answered_by(tmp_path, saying(plain(500, b""))) as (upstream, session, _server):
        async with session.post(CHAT, json={"messages": HI}):
            pass
        async with session.get("/metrics") as answer:
            text = await answer.text()
        name = f'upstream="127.0.0.1:{upstream.port}"'
        assert f'pocketserver_upstream_requests_total{{outcome="failed",{name}}} 1.0' in text
        assert f"pocketserver_upstream_healthy{{{name}}} 1.0" in text

        leaving = asyncio.Event()

        async def slow(asked: Asked, writer: asyncio.StreamWriter) -> None:
            writer.write(STREAM_HEAD + DATA)
            await writer.drain()
            leaving.set()
            await asyncio.wait_for(asked.left.wait(), 60)

        upstream.answer = slow
        async with session.post(CHAT, json={"messages": HI, "stream": True}) as answer:
            await asyncio.wait_for(leaving.wait(), 20)
            answer.close()
        await asyncio.wait_for(upstream.asked[-1].left.wait(), 20)
        async with session.get("/metrics") as answer:
            text = await answer.text()
        assert f'pocketserver_upstream_requests_total{{outcome="failed",{name}}} 1.0' in text
        assert f'pocketserver_upstream_requests_total{{outcome="broken",{name}}} 0.0' in text
        assert f'pocketserver_upstream_requests_total{{outcome="accepted",{name}}} 1.0' in text


async def test_neither_prompts_nor_answers_nor_keys_are_logged(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said = STREAM_HEAD + DATA.replace(b'"a"', b'"violet answer"')
    for data in (said + END, said, plain(400, b'{"error":{"message":"violet prompt is wrong"}}')):
        async with answered_by(tmp_path, saying(data), log_level="debug") as (_upstream, session, _server):
            for path, body in BODIES.items():
                async with session.post(path, json={**body, "messages": [{"role": "user", "content": "violet"}]}) as a:
                    await a.read()
    out, err = capfd.readouterr()
    assert "/v1/messages" in err, "there is a log"
    assert "violet" not in out + err
    assert "sk-" not in out + err


async def test_a_refused_key_is_said_before_anybody_asks(tmp_path: Path) -> None:
    async with running(tmp_path / "up", profile="hub", mdns=False) as upstream:
        async with in_front_of(tmp_path / "door", f"{upstream.origin}/v1") as server, server.session() as session:
            async with session.post(CHAT, json={"messages": HI}) as answer:
                assert answer.status == 502
                assert "POCKETSERVER_UPSTREAM_KEY" in (await answer.json())["error"]["message"]


async def test_an_upstream_without_a_list_of_models_serves_the_one_that_the_settings_name(tmp_path: Path) -> None:
    async def chat(request: web.Request) -> web.Response:
        model = (await request.json())["model"]
        choice = {"message": {"content": f"I am {model}"}, "finish_reason": "stop"}
        return web.json_response({"choices": [choice], "usage": None})

    app = web.Application()
    app.add_routes([web.post("/v1/chat/completions", chat)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    try:
        engine = UpstreamEngine(UpstreamOptions(base_urls=(f"http://127.0.0.1:{port}/v1",), model="only"))
        async with running(tmp_path, engine, profile="hub", mdns=False) as server, server.session() as session:
            async with session.post(CHAT, json={"messages": HI}) as answer:
                document = await answer.json()
                assert document["choices"][0]["message"]["content"] == "I am only"
                assert document["model"] == "only"
    finally:
        await runner.cleanup()


async def test_an_upstream_may_be_given_several_at_once(tmp_path: Path) -> None:
    both = asyncio.Event()

    async def waiting(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        if len(asked) == 2:
            both.set()
        await asyncio.wait_for(both.wait(), 20)
        writer.write(STREAM_HEAD + DATA + END)

    async with answered_by(tmp_path, waiting, concurrency=2) as (upstream, session, _server):
        asked = upstream.asked

        async def ask() -> int:
            async with session.post(CHAT, json={"messages": HI}) as answer:
                return answer.status

        assert await asyncio.gather(ask(), ask()) == [200, 200]
