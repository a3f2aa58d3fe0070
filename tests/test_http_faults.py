"""HTTP as strangers and bad networks send it: smuggling, half bodies, vanishing clients. One answer, no traceback."""

import asyncio
import contextlib
import gc
import gzip
import json
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
import pytest_asyncio

from pocketserver.engines.sim.engine import SimEngine, SimOptions
from pocketserver.errors import Code
from pocketserver.http_server import MOST_CONNECTIONS_OF_A_PEER
from tests.serving import Running, running
from tests.waiting import until

HI: dict[str, Any] = {"model": "default", "messages": [{"role": "user", "content": "hi"}]}


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path) as started:
        yield started


@pytest_asyncio.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path, profile="hub") as started:
        yield started


class Wire:
    """A raw connection: bytes out, answers in."""

    def __init__(self, server: Running, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.server, self.reader, self.writer = server, reader, writer

    def head(self, line: str, *headers: str, key: str | None = None, host: str | None = "127.0.0.1") -> bytes:
        given = [f"Host: {host}"] if host else []
        given += [f"Authorization: Bearer {key or self.server.key}", *headers]
        return ("\r\n".join([line, *given]) + "\r\n\r\n").encode("latin-1", "surrogateescape")

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> tuple[int, bytes]:
        """One response with a length."""
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 30)
        lines = head.decode("latin-1").split("\r\n")
        length = next(int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length"))
        return int(lines[0].split()[1]), await self.reader.readexactly(length)

    async def rest(self) -> bytes:
        """Everything until the server closes."""
        with contextlib.suppress(ConnectionResetError):
            return await asyncio.wait_for(self.reader.read(), 30)
        return b""


@contextlib.asynccontextmanager
async def connected(server: Running) -> AsyncIterator[Wire]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.server.port)
    try:
        yield Wire(server, reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


SMUGGLED = b"0\r\n\r\nGET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
CHAT = "POST /v1/chat/completions HTTP/1.1"


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (["Content-Length: 6", "Transfer-Encoding: chunked"], SMUGGLED),
        (["Content-Length: 5", "Content-Length: 50"], b"hello" * 10),
        (["Content-Length: +5"], b"hello"),
        (["Content-Length: 0x5"], b"hello"),
        (["Content-Length: -1"], b"hello"),
        (["Transfer-Encoding: xchunked"], SMUGGLED),
        (["Transfer-Encoding: chunked"], b"FFFFFFFFFFFFFFFFF\r\nhello"),
        (["Content-Length : 5"], b"hello"),
        (["X-Folded: a\r\n b", "Content-Length: 5"], b"hello"),
    ],
)
async def test_an_ambiguous_request_gets_one_answer_and_the_connection_ends(
    server: Running, headers: list[str], body: bytes
) -> None:
    async with connected(server) as wire:
        wire.send(wire.head(CHAT, *headers) + body)
        received = await wire.rest()

    assert received.count(b"HTTP/1.1 ") == 1
    assert received.split()[1] in {b"400", b"501"}
    assert b"pocketserver_requests" not in received
    assert b"Traceback" not in received
    document = json.loads(received.split(b"\r\n\r\n", 1)[1])
    assert document["error"]["code"] in {"malformed_request", "invalid_json"}


@pytest.mark.parametrize("lines", [["GET /health HTTP/1.0"], ["GET /health HTTP/1.1", "Host: 127.0.0.1", "Host: evil"]])
async def test_no_host_or_two_is_refused(server: Running, lines: list[str]) -> None:
    async with connected(server) as wire:
        wire.send(("\r\n".join(lines) + "\r\n\r\n").encode())
        received = await wire.rest() if "1.0" in lines[0] else (await wire.answer())[1]

    assert b"host_not_allowed" in received or b"malformed_request" in received


async def test_a_request_line_with_a_foreign_authority_is_refused(server: Running) -> None:
    async with connected(server) as wire:
        wire.send(wire.head("GET http://evil.example/v1/models HTTP/1.1"))
        status, body = await wire.answer()

    assert status == 403
    assert json.loads(body)["error"]["code"] == "host_not_allowed"


@pytest.mark.parametrize(
    ("line", "key", "status"),
    [(CHAT, "sk-wrong", 401), ("POST /nothing HTTP/1.1", None, 404), (CHAT, None, 400)],
)
async def test_an_early_error_leaves_the_connection_usable(
    server: Running, line: str, key: str | None, status: int
) -> None:
    async with connected(server) as wire:
        body = b"x" * 70_000
        wire.send(wire.head(line, f"Content-Length: {len(body)}", key=key) + body)
        first, _ = await wire.answer()
        wire.send(wire.head("GET /health HTTP/1.1"))
        second, _ = await wire.answer()

    assert (first, second) == (status, 200)


async def test_a_busy_answer_to_a_megabyte_is_readable_and_the_connection_goes_on(tmp_path: Path) -> None:
    async with running(tmp_path, SimEngine(SimOptions(tokens_per_second=0.001))) as slow:
        async with slow.session() as http, http.post("/v1/chat/completions", json={**HI, "stream": True}):
            async with connected(slow) as wire:
                body = json.dumps({**HI, "user": "x" * 1_000_000}).encode()
                for _ in range(2):
                    wire.send(wire.head(CHAT, f"Content-Length: {len(body)}") + body)
                    status, answer = await wire.answer()
                    assert status == 429
                    assert json.loads(answer)["error"]["code"] == "model_busy"


async def test_a_body_that_never_ends_behind_a_wrong_key_ends_with_the_connection(server: Running) -> None:
    async with connected(server) as wire:
        wire.send(wire.head(CHAT, "Transfer-Encoding: chunked", key="sk-wrong") + b"5\r\nhello\r\n")
        received = await wire.rest()

    assert b" 401 " in received
    assert not server.server.door.busy


async def test_a_gzip_bomb_is_stopped_at_the_size_limit(server: Running) -> None:
    bomb = gzip.compress(b" " * 50_000_000)
    async with server.session() as http:
        headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
        async with http.post("/v1/chat/completions", data=bomb, headers=headers) as response:
            assert response.status == 413
        packed = gzip.compress(json.dumps(HI).encode())
        async with http.post("/v1/chat/completions", data=packed, headers=headers) as response:
            assert response.status == 200


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("gzip", json.dumps(HI).encode()),
        ("gzip", gzip.compress(json.dumps(HI).encode()) + b"more"),
        ("gzip", gzip.compress(json.dumps(HI).encode())[:-20]),
        ("deflate", b"\xff\xff\xff"),
    ],
)
@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/api/chat", "/nothing"]
)
async def test_a_body_that_is_not_packed_as_it_says_is_the_clients_fault(
    hub: Running, capfd: pytest.CaptureFixture[str], path: str, coding: str, body: bytes
) -> None:
    async with hub.session() as http:
        async with http.post(path, data=body, headers={"Content-Encoding": coding}) as response:
            assert response.status == (404 if path == "/nothing" else 400)
            assert "error" in await response.json()
        async with http.post("/v1/chat/completions", json=HI) as response:
            assert response.status == 200

    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("moment", ["before headers", "after headers", "after a chunk"])
async def test_a_vanished_client_is_one_quiet_499_and_frees_everything(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], moment: str, reset: bool
) -> None:
    engine = SimEngine(SimOptions(tokens_per_second=20, reply_tokens=1000))
    async with running(tmp_path, engine) as server:
        tasks, files = len(asyncio.all_tasks()), psutil.Process().num_fds()
        body = json.dumps({**HI, "stream": moment != "before headers"}).encode()
        async with connected(server) as wire:
            wire.send(wire.head(CHAT, f"Content-Length: {len(body)}") + body)
            await until(lambda: engine.running == 1)
            if moment == "after headers":
                await wire.reader.readuntil(b"\r\n\r\n")
            if moment == "after a chunk":
                await wire.reader.readuntil(b'"content":"')
            if reset:
                raw = wire.writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        exchange = await server.exchange()
        await until(lambda: engine.running == 0 and not server.server.door.busy)
        gc.collect()
        await until(lambda: len(asyncio.all_tasks()) <= tasks and psutil.Process().num_fds() <= files)

    assert exchange.error is Code.REQUEST_CANCELLED
    assert exchange.status == 499
    written = capfd.readouterr().err
    assert "Traceback" not in written
    assert " error " not in written


async def test_twenty_aborted_streams_leave_every_gauge_at_zero(tmp_path: Path) -> None:
    engine = SimEngine(SimOptions(tokens_per_second=500, reply_tokens=1000))
    async with running(tmp_path, engine, admission="queue", max_queue=64) as server:

        async def abort(number: int) -> None:
            async with server.session() as http:
                with contextlib.suppress(asyncio.TimeoutError):
                    async with asyncio.timeout(0.02 + number * 0.01):
                        async with http.post("/v1/chat/completions", json={**HI, "stream": True}) as response:
                            await response.read()

        await asyncio.gather(*(abort(number) for number in range(20)))
        await until(lambda: not server.server.door.busy and server.server.door.waiting == 0)
        async with server.session() as http, http.get("/metrics") as response:
            text = await response.text()

    assert "pocketserver_requests_running 0.0" in text
    assert "pocketserver_requests_waiting 0.0" in text


async def test_scanners_do_not_grow_the_series(server: Running) -> None:
    async def series() -> int:
        async with server.session() as http, http.get("/metrics") as response:
            return (await response.text()).count("\npocketserver_request")

    await series()
    before = await series()
    async with aiohttp.ClientSession(base_url=server.origin) as stranger, server.session() as http:
        for number in range(100):
            async with stranger.get(f"/scan/{number}.php?x={number}"):
                pass
            async with http.request("PROPFIND", f"/v1/models/{number}"):
                pass

    assert await series() <= before + 8


async def test_one_address_cannot_take_every_connection_and_gives_its_places_back(server: Running) -> None:
    async with contextlib.AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(connected(server)) for _ in range(MOST_CONNECTIONS_OF_A_PEER)]
        wires[0].send(wires[0].head("GET /health HTTP/1.1"))
        assert (await wires[0].answer())[0] == 200
        async with connected(server) as refused:
            assert await refused.rest() == b""

    async def accepted() -> bool:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            async with connected(server) as again:
                again.send(again.head("GET /health HTTP/1.1"))
                return (await again.answer())[0] == 200
        return False

    async with asyncio.timeout(30):
        while not await accepted():  # noqa: ASYNC110 - a remote condition is polled
            await asyncio.sleep(0.05)
