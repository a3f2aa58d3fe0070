"""A server that is its own upstream, straight or by others, says so at once instead of asking itself for ever."""

import asyncio
import socket
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import ifaddr
import pytest

from pocketserver.engines.upstream.engine import UpstreamEngine, UpstreamOptions
from tests.engines.upstream.gateway import HI, in_front_of
from tests.serving import Running
from tests.waiting import until

CALLS = {
    "/v1/chat/completions": {"model": "sim-1b", "messages": HI},
    "/v1/messages": {"model": "sim-1b", "messages": HI, "max_tokens": 9},
    "/api/chat": {"model": "sim-1b", "messages": HI, "stream": False},
    "/v1/embeddings": {"model": "sim-1b", "input": "hi"},
    "/api/embed": {"model": "sim-1b", "input": "hi"},
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def own_address() -> str | None:
    """An address of this machine other than loopback."""
    found = [str(ip.ip) for adapter in ifaddr.get_adapters() for ip in adapter.ips if ip.is_IPv4]
    return next((address for address in found if not address.startswith("127.")), None)


@pytest.mark.parametrize("where", ["loopback", "its own address on the network"])
async def test_a_server_that_is_its_own_upstream_says_so(tmp_path: Path, where: str) -> None:
    address = "127.0.0.1" if where == "loopback" else own_address()
    if address is None:
        pytest.skip("this machine has no network")
    port = free_port()
    async with in_front_of(tmp_path, f"http://{address}:{port}/v1", host="0.0.0.0", port=port, auth="off") as server:
        async with aiohttp.ClientSession(server.origin) as session:
            await until(lambda: "own upstream" in (server.server.engine.status.problem or ""))
            async with asyncio.timeout(20), session.post("/v1/chat/completions", json={"messages": HI}) as answer:
                assert answer.status in (502, 503)
                assert "own upstream" in (await answer.json())["error"]["message"]
        assert len([one for one in server.exchanges if one.path == "/v1/chat/completions"]) == 1
        assert not server.server.door.busy


@pytest.mark.parametrize("path", CALLS)
@pytest.mark.parametrize("length", [2, 3])
async def test_servers_that_point_at_each_other_end_a_request_after_one_round(
    tmp_path: Path, path: str, length: int
) -> None:
    """All of them know a model: what they believe of each other is what a stale list or an alias would leave."""
    ports = [free_port() for _ in range(length)]
    async with AsyncExitStack() as stack:
        ring: list[Running] = []
        for number, port in enumerate(ports):
            url = f"http://127.0.0.1:{ports[(number + 1) % length]}/v1"
            home = tmp_path / str(number)
            engine = UpstreamEngine(UpstreamOptions(base_urls=(url,), model="sim-1b", probe_every_seconds=600))
            ring.append(await stack.enter_async_context(_believing(engine, home, url, port)))
        async with aiohttp.ClientSession(ring[0].origin) as session:
            async with asyncio.timeout(20), session.post(path, json=CALLS[path]) as answer:
                assert answer.status in (502, 503)
                text = await answer.text()
            assert "own upstream" in text
        asked = [sum(one.path.endswith(_upstream_path(path, one.path)) for one in server.exchanges) for server in ring]
        assert asked == [2, *[1] * (length - 1)], "the first one met its own request again, and nobody asked twice"
        await until(lambda: not any(server.server.door.busy for server in ring))


def _upstream_path(path: str, seen: str) -> str:
    """The path that was asked, or the one that it becomes on its way."""
    return seen if seen in (path, "/v1/chat/completions", "/v1/embeddings") else "\0"


def _believing(engine: UpstreamEngine, home: Path, url: str, port: int):  # type: ignore[no-untyped-def]
    from pocketserver.chat import ModelInfo
    from tests.serving import running

    for endpoint in engine._endpoints:
        endpoint.models = [ModelInfo(id="sim-1b", loaded=True)]
        endpoint._known = True
    flags = {"profile": "hub", "mdns": False, "switching": True, "upstream": (url,), "auth": "off", "port": port}
    return running(home, engine, **flags)


async def test_the_other_upstream_answers_when_one_leads_back(tmp_path: Path) -> None:
    from tests.serving import running

    port = free_port()
    async with (
        running(tmp_path / "real", profile="hub", mdns=False, auth="off") as real,
        in_front_of(tmp_path / "b", f"http://127.0.0.1:{port}/v1", auth="off") as back,
        in_front_of(tmp_path / "a", f"{back.origin}/v1", f"{real.origin}/v1", auth="off", port=port) as first,
    ):
        async with aiohttp.ClientSession(first.origin) as session:
            await until(lambda: any(model.id == "sim-1b" for model in back.server.engine.models()))
            async with session.post("/v1/chat/completions", json=CALLS["/v1/chat/completions"]) as answer:
                assert answer.status == 200
                assert (await answer.json())["choices"][0]["message"]["content"]
        assert len([one for one in back.exchanges if one.path == "/v1/chat/completions"]) <= 1
