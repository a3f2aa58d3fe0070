"""The official `ollama` package as the client of a server in profile `roach`."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import ollama

from pocketserver.assembly import assemble, make_engine, prepare_model
from pocketserver.engines.sim.engine import SimEngine, SimOptions
from pocketserver.engines.sim.rules import NewRule, Reply
from pocketserver.serving import serving
from pocketserver.settings import load
from pocketserver.telemetry import logs
from tests.serving import Running, running


@dataclass(frozen=True)
class Served:
    """A running server, its engine where it is the simulator, and the SDK."""

    running: Running
    sdk: ollama.AsyncClient

    @property
    def model(self) -> str:
        return self.running.server.model_id or ""

    @property
    def engine(self) -> SimEngine:
        engine = self.running.server.engine
        assert isinstance(engine, SimEngine)
        return engine

    def says(self, times: int | None = None, **reply: Any) -> None:
        self.engine.rules.add(NewRule(reply=Reply(**reply), times=times))

    async def post(self, path: str, body: Any) -> tuple[int, bytes]:
        """One request without the SDK, and without a JSON content type: status and body."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with aiohttp.ClientSession(self.running.origin) as http, http.post(path, data=data) as response:
            return response.status, await response.read()


def simulator(tokens_per_second: float | None = None, **options: Any) -> SimEngine:
    """A simulated device that loads what is asked for. Without a rate its time is virtual."""
    return SimEngine(SimOptions(tokens_per_second=tokens_per_second, loads_on_request=True, **options))


@asynccontextmanager
async def serving_ollama(home: Path, engine: Any = None, **settings: object) -> AsyncIterator[Served]:
    """Serve until the block is left."""
    async with running(home, engine or simulator(), **{"profile": "roach", **settings}) as server:
        async with ollama.AsyncClient(host=server.origin) as sdk:
            yield Served(server, sdk)


@asynccontextmanager
async def serving_real(home: Path, model: Path, **settings: object) -> AsyncIterator[Served]:
    """The same on a real model, put together as the command does it."""
    flags = {"home": str(home), "port": 0, "profile": "roach", "model": str(model), "shutdown_grace_seconds": 0.0}
    effective = load(flags={**flags, **settings}, environment={})
    found = await prepare_model(effective.settings, lambda _progress: None)
    with logs.configure("text", level="info") as log:
        server = assemble(effective, make_engine(effective.settings, found), log, found)
        await server.engine.start()
        async with serving(server), ollama.AsyncClient(host=f"http://127.0.0.1:{server.port}") as sdk:
            yield Served(Running(server, []), sdk)
