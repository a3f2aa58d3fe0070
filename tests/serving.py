"""One server inside the test's own process, started the way production starts it, on a free loopback port."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from openai import AsyncOpenAI

from pocketserver.answering import Exchange
from pocketserver.assembly import assemble
from pocketserver.engines.engine import Engine
from pocketserver.engines.sim.engine import SimEngine, SimOptions
from pocketserver.server import Server
from pocketserver.serving import serving
from pocketserver.settings import load
from pocketserver.telemetry import logs
from tests.waiting import until

FAST = SimOptions(tokens_per_second=None)


@dataclass
class Running:
    """A running server, its addresses, its main key, and the exchanges it recorded."""

    server: Server
    exchanges: list[Exchange]

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    @property
    def key(self) -> str:
        """The main key; where none is asked for, something that clients can send."""
        return "unused" if self.server.keys is None else self.server.keys.main_key()

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    def openai(self, **options: object) -> AsyncOpenAI:
        """The official SDK; without retries unless a test wants them, so that it sees the first answer."""
        return AsyncOpenAI(base_url=f"{self.origin}/v1", api_key=self.key, **{"max_retries": 0, **options})  # type: ignore[arg-type]

    def session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(base_url=self.origin, headers=self.headers)

    async def exchange(self, number: int = 1) -> Exchange:
        """The n-th recorded exchange, once it is there."""
        await until(lambda: len(self.exchanges) >= number)
        return self.exchanges[number - 1]


@asynccontextmanager
async def running(home: Path, engine: Engine | None = None, **settings: object) -> AsyncIterator[Running]:
    """Serve until the block is left."""
    flags = {"home": str(home), "host": "127.0.0.1", "port": 0, "engine": "sim", "shutdown_grace_seconds": 0.0}
    effective = load(flags={**flags, **settings}, environment={})
    exchanges: list[Exchange] = []
    with logs.configure("text", level="info") as log:
        server = assemble(effective, engine or SimEngine(FAST), log)
        server.on_exchange = exchanges.append
        await server.engine.start()
        await asyncio.to_thread(lambda: server.keys and server.keys.main_key())
        async with serving(server):
            yield Running(server, exchanges)
