"""Clients that send or read too slowly: they lose their connection, and nobody else waits for them."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from pocketserver.engines.sim.engine import SimEngine, SimOptions
from pocketserver.errors import Code
from tests.serving import running
from tests.test_http_faults import CHAT, HI, connected
from tests.waiting import until

ENDLESS = SimOptions(tokens_per_second=None, reply_tokens=5_000_000, context_size=10_000_000)


def framed(body: dict[str, Any]) -> tuple[str, bytes]:
    data = json.dumps(body).encode()
    return f"Content-Length: {len(data)}", data


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_reader_that_stands_still_loses_the_model_to_the_next(
    tmp_path: Path, run: Callable[[Coroutine[None, None, None]], None]
) -> None:
    run(stand_still(tmp_path))


async def stand_still(tmp_path: Path) -> None:
    engine = SimEngine(ENDLESS)
    async with running(tmp_path, engine, client_seconds=0.3) as server, connected(server) as wire:
        wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
        length, data = framed({**HI, "stream": True, "max_tokens": 5_000_000})
        wire.send(wire.head(CHAT, length) + data)
        exchange = await server.exchange()

        await until(lambda: engine.running == 0 and not server.server.door.busy)
        async with server.session() as http:
            async with http.post("/v1/chat/completions", json={**HI, "max_tokens": 1}) as response:
                assert response.status == 200

    assert (exchange.status, exchange.error) == (499, Code.REQUEST_CANCELLED)


async def test_a_reader_that_is_slow_but_reads_on_keeps_its_answer(tmp_path: Path) -> None:
    options = SimOptions(tokens_per_second=None, reply_tokens=60_000, context_size=1_000_000)
    async with running(tmp_path, SimEngine(options), client_seconds=5.0) as server, connected(server) as wire:
        length, data = framed({**HI, "stream": True, "max_tokens": 60_000})
        wire.send(wire.head(CHAT, length, "Connection: close") + data)
        received, piece = 0, b""
        while more := await asyncio.wait_for(wire.reader.read(500_000), 30):
            received, piece = received + len(more), (piece + more)[-100:]
            await asyncio.sleep(0.01)

    assert b"data: [DONE]" in piece
    assert received > 5_000_000


async def test_a_body_that_never_ends_holds_nothing_and_is_told(tmp_path: Path) -> None:
    async with running(tmp_path, client_seconds=0.2) as server, connected(server) as wire:
        wire.send(wire.head(CHAT, "Content-Length: 1000") + b'{"mod')
        status, body = await wire.answer()
        rest = await wire.rest()

        assert not server.server.door.busy

    assert status == 400
    assert "did not arrive within 0.2 seconds" in json.loads(body)["error"]["message"]
    assert rest == b""
