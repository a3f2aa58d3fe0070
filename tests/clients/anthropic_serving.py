"""A server with Anthropic's routes, and the official SDK as its client."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
from anthropic import AsyncAnthropic

from pocketserver.assembly import assemble
from pocketserver.engines.engine import Engine
from pocketserver.engines.sim.engine import SimEngine
from pocketserver.server import serving
from pocketserver.settings import Effective, load
from pocketserver.telemetry import logs
from tests.serving import FAST, Running

ROUTES = ("/v1/messages", "/v1/messages/count_tokens")


def with_messages(effective: Effective, **rules: object) -> Effective:
    """The same settings under a profile that serves Anthropic's routes beside its own."""
    profile = msgspec.structs.replace(
        effective.profile,
        **{
            "routes": (*effective.profile.routes, *ROUTES),
            "error_families": {"/": "openai", "/v1/messages": "anthropic"},
            "statuses": {},
            "codes": {},
            "shows_warnings": True,
            **rules,
        },
    )
    return replace(effective, profile=profile)


@asynccontextmanager
async def serving_messages(
    home: Path, engine: Engine | None = None, rules: dict[str, object] | None = None, **settings: object
) -> AsyncIterator[Running]:
    """Serve until the block is left. `rules` change the profile, `settings` are flags."""
    flags = {"home": str(home), "host": "127.0.0.1", "port": 0, "engine": "sim", "shutdown_grace_seconds": 0.0}
    effective = with_messages(load(flags={**flags, **settings}, environment={}), **(rules or {}))
    running: Running
    with logs.configure("text", level="info") as log:
        server = assemble(effective, engine or SimEngine(FAST), log)
        running = Running(server, [])
        server.on_exchange = running.exchanges.append
        await server.engine.start()
        async with serving(server):
            yield running


def client_of(server: Running, **options: object) -> AsyncAnthropic:
    """The official SDK; without retries unless a test wants them, so that it sees the first answer."""
    given = {"base_url": server.origin, "api_key": server.key, "max_retries": 0, **options}
    return AsyncAnthropic(**given)  # type: ignore[arg-type]
