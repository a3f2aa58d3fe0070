"""The official SDK as the client of a server that serves every API."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from anthropic import AsyncAnthropic

from pocketserver.engines.engine import Engine
from tests.serving import Running, running


@asynccontextmanager
async def serving_messages(home: Path, engine: Engine | None = None, **settings: object) -> AsyncIterator[Running]:
    """Serve until the block is left."""
    async with running(home, engine, **{"profile": "hub", **settings}) as server:
        yield server


def client_of(server: Running, **options: object) -> AsyncAnthropic:
    """The official SDK; without retries unless a test wants them, so that it sees the first answer."""
    given = {"base_url": server.origin, "api_key": server.key, "max_retries": 0, **options}
    return AsyncAnthropic(**given)  # type: ignore[arg-type]
