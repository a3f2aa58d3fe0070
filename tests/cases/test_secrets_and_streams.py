"""What the field met: keys that leak sideways, tokens that arrive in one lump, clients that leave in the last moment."""

import asyncio
import contextlib
import socket
import struct
from itertools import pairwise
from pathlib import Path

import aiohttp
import pytest

from pocketserver.engines.llama.process import LlamaEngine, LlamaOptions
from pocketserver.engines.sim.engine import SimEngine, SimOptions
from tests.serving import running
from tests.waiting import until

HI = {"model": "default", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.real_model
async def test_the_model_process_is_not_told_the_key(
    default_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AU-03: neither its arguments nor its environment hold a key that the server got from its environment."""
    monkeypatch.setenv("POCKETSERVER_API_KEY", "sk-told-to-the-server-only")
    engine = LlamaEngine(LlamaOptions(model_id="m", path=default_model_path, state_folder=tmp_path, context=512))
    await engine.start()
    try:
        await engine.loaded()
        process = Path(f"/proc/{engine.status.worker_pid}")
        if not await asyncio.to_thread(process.exists):
            pytest.skip("only Linux shows what a process was given")
        assert b"told-to-the-server" not in await asyncio.to_thread((process / "environ").read_bytes)
        assert b"sk-" not in await asyncio.to_thread((process / "cmdline").read_bytes)
    finally:
        await engine.close()


async def test_each_token_arrives_before_the_next_one_is_made(tmp_path: Path) -> None:
    """ST-13: nothing between engine and client waits for more."""
    engine = SimEngine(SimOptions(tokens_per_second=4, reply_tokens=6))
    async with running(tmp_path, engine) as server, server.session() as http:
        async with http.post("/v1/chat/completions", json={**HI, "stream": True}) as response:
            await response.content.readuntil(b'"role":"assistant"')
            assert server.server.door.running is not None, "headers and role came while the first token was not there"
            arrivals = []
            while b'"finish_reason":"stop"' not in (line := await response.content.readuntil(b"\n\n")):
                if b'"content":"' in line:
                    arrivals.append(asyncio.get_running_loop().time())

    gaps = sorted(later - earlier for earlier, later in pairwise(arrivals))
    assert len(arrivals) >= 6
    assert gaps[len(gaps) // 2] > 0.02, "tokens came in one lump"


async def test_a_client_that_leaves_after_the_last_chunk_disturbs_nobody(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """CB-07, between the last chunk and [DONE]: a whole answer, quiet and without remains."""
    async with running(tmp_path, SimEngine(SimOptions(tokens_per_second=200))) as server:
        for _ in range(10):
            async with aiohttp.ClientSession(base_url=server.origin, headers=server.headers) as http:
                async with http.post("/v1/chat/completions", json={**HI, "stream": True}) as response:
                    with contextlib.suppress(asyncio.IncompleteReadError):
                        await response.content.readuntil(b'"finish_reason":"stop"')
                    assert response.connection is None or response.connection.transport is not None
                    if response.connection is not None and response.connection.transport is not None:
                        raw = response.connection.transport.get_extra_info("socket")
                        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        response.connection.transport.abort()
        await until(lambda: len(server.exchanges) == 10 and not server.server.door.busy)

    assert {(exchange.status, exchange.error) for exchange in server.exchanges} == {(200, None)}
    assert "Traceback" not in capfd.readouterr().err


async def test_the_right_key_works_at_once_from_another_address(tmp_path: Path) -> None:
    """AU-07: the slow-down follows the TCP peer; another address of this machine stands for another device."""
    async with running(tmp_path, host="0.0.0.0") as server:
        wrong = {"Authorization": "Bearer sk-wrong", "X-Forwarded-For": "10.9.9.9"}
        async with aiohttp.ClientSession(base_url=server.origin) as stranger:
            codes = []
            for _ in range(15):
                async with stranger.get("/v1/models", headers=wrong) as response:
                    codes.append(response.status)
        other = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))
        async with aiohttp.ClientSession(base_url=server.origin, connector=other) as second:
            async with second.get("/v1/models", headers=server.headers) as right:
                assert right.status == 200
            async with second.get("/v1/models", headers=wrong) as first_wrong:
                assert first_wrong.status == 401

    assert codes[0] == 401
    assert codes[-1] == 429
