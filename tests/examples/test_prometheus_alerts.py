"""The example's rules are clean, and a real Prometheus that loads them fires each alert at a simulator in that trouble."""

import asyncio
import re
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pocketserver.engines.sim.engine import SimEngine, SimOptions, generic
from tests.engines.upstream.gateway import in_front_of
from tests.examples.prometheus_example import FOLDER, KEY, copied, prepared
from tests.serving import Running, running
from tests.telemetry.prometheus_bed import Prometheus, need, prometheus

CHAT = "/v1/chat/completions"
HI: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
HEALTHY = "healthy"
NAMES = re.findall(r"- alert: (\w+)", (FOLDER / "alerts.rules.yml").read_text())


@dataclass(frozen=True)
class Trouble:
    """What is done to a server, once or again and again, and how the server is made."""

    provoke: Callable[[Running], Awaitable[None]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    options: SimOptions | None = None


async def chat(server: Running, headers: Mapping[str, str] | None = None) -> None:
    async with server.session() as http, http.post(CHAT, json=HI, headers=headers) as answer:
        await answer.read()


def always(fault: str, **words: Any) -> Callable[[Running], Awaitable[None]]:
    async def provoke(server: Running) -> None:
        assert server.server.simulator is not None
        server.server.simulator.add_fault(fault, **words)
        await chat(server)

    return provoke


async def without_a_model(server: Running) -> None:
    assert server.server.simulator is not None
    server.server.simulator.set_state(model=None)
    await asyncio.sleep(0)


async def five_for_one(server: Running) -> None:
    assert server.server.simulator is not None
    server.server.simulator.add_fault("stall", after_tokens=1)
    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(chat(server))


async def with_a_wrong_key(server: Running) -> None:
    await chat(server, {"Authorization": "Bearer sk-wrong-wrong"})


async def under_a_foreign_name(server: Running) -> None:
    await chat(server, {"Host": "evil.example"})


TROUBLES: dict[str, Trouble] = {
    HEALTHY: Trouble(chat),
    "PocketserverNoModel": Trouble(without_a_model),
    "PocketserverStuck": Trouble(always("stall", after_tokens=1), {"stall_seconds": 3.0}),
    "PocketserverModelProcessLost": Trouble(always("worker_lost")),
    "PocketserverServerErrors": Trouble(always("internal_error")),
    "PocketserverTurnsAway": Trouble(always("model_busy")),
    "PocketserverLongQueue": Trouble(five_for_one, {"admission": "queue", "max_queue": 8}),
    "PocketserverSlowFirstToken": Trouble(always("delay_first_token", seconds=11)),
    "PocketserverSlowGeneration": Trouble(
        chat, options=SimOptions(preset=generic("sim-1b", 8192, 1.0, prompt_factor=1e6), speed=None)
    ),
    "PocketserverWrongKeys": Trouble(with_a_wrong_key),
    "PocketserverForeignAccess": Trouble(under_a_foreign_name),
}
ELSEWHERE = {"PocketserverDown", "PocketserverUpstreamDown"}
"""Their targets are a port where nobody listens, and a server in front of that port."""


@asynccontextmanager
async def troubled(home: Path, trouble: Trouble) -> AsyncIterator[Running]:
    """A server that meets its trouble for as long as the block lasts."""
    engine = SimEngine(trouble.options) if trouble.options else None
    async with running(home, engine, api_key=KEY, **trouble.settings) as server:
        provoking = asyncio.create_task(again_and_again(trouble, server))
        try:
            yield server
        finally:
            provoking.cancel()
            with suppress(asyncio.CancelledError):
                await provoking


async def again_and_again(trouble: Trouble, server: Running) -> None:
    while True:
        await trouble.provoke(server)
        await asyncio.sleep(0.25)


@asynccontextmanager
async def closed_port() -> AsyncIterator[int]:
    """A port of loopback that nobody else can take and where nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


async def fires(scraper: Prometheus, alert: str, target: str) -> None:
    series = f'ALERTS{{alertname="{alert}",instance="{target}",alertstate="firing"}}'
    await scraper.until(f"max({series})", 1, limit=90)


def test_every_alert_is_provoked() -> None:
    assert set(NAMES) == (TROUBLES.keys() - {HEALTHY}) | ELSEWHERE


async def test_each_alert_fires_at_its_trouble_and_none_at_a_healthy_server(tmp_path: Path) -> None:
    need("prometheus")
    folder = tmp_path / "prometheus"
    folder.mkdir()
    async with AsyncExitStack() as stack:
        nobody = await stack.enter_async_context(closed_port())
        targets = {"PocketserverDown": f"127.0.0.1:{nobody}"}
        door = in_front_of(tmp_path / "door", f"http://127.0.0.1:{nobody}/v1", api_key=KEY)
        targets["PocketserverUpstreamDown"] = address(await stack.enter_async_context(door))
        for name, trouble in TROUBLES.items():
            targets[name] = address(await stack.enter_async_context(troubled(tmp_path / name, trouble)))
        scraper = await stack.enter_async_context(prometheus(prepared(folder, *targets.values()), folder))

        await asyncio.gather(*(fires(scraper, name, targets[name]) for name in NAMES))
        assert await scraper.query(f'ALERTS{{instance="{targets[HEALTHY]}"}}') == []


def address(server: Running) -> str:
    return f"127.0.0.1:{server.server.port}"


@pytest.mark.parametrize(
    "words",
    [("check", "config", "prometheus.yml"), ("test", "rules", "rules.test.yml")],
    ids=["the configuration and its rules are clean", "the rules do what their tests say"],
)
def test_promtool_agrees(words: tuple[str, ...], tmp_path: Path) -> None:
    ran = subprocess.run([need("promtool"), *words], cwd=copied(tmp_path), capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "FAILED" not in ran.stdout + ran.stderr
