"""Our server in front of others, in the profile that has every route."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from pocketserver.engines.upstream.engine import UpstreamEngine, UpstreamOptions
from tests.engines.upstream.fake import Answer, FakeUpstream, fake_upstream
from tests.serving import Running, running

HI = [{"role": "user", "content": "hi"}]
BODIES = {
    "/v1/chat/completions": {"model": "org/real-name", "messages": HI},
    "/v1/messages": {"model": "org/real-name", "messages": HI, "max_tokens": 9},
    "/api/chat": {"model": "org/real-name", "messages": HI, "stream": False},
}
SECRET = "sk-upstream-secret"


@asynccontextmanager
async def in_front_of(
    home: Path, *urls: str, key: str = SECRET, idle_seconds: float = 60.0, **settings: object
) -> AsyncIterator[Running]:
    concurrency = settings.get("concurrency", 1)
    assert isinstance(concurrency, int)
    options = UpstreamOptions(
        base_urls=urls, key=key, probe_every_seconds=0.2, idle_seconds=idle_seconds, concurrency=concurrency
    )
    flags = {"profile": "hub", "mdns": False, "switching": True, "upstream": urls, **settings}
    async with running(home, UpstreamEngine(options), **flags) as server:
        yield server


@asynccontextmanager
async def answered_by(
    home: Path, answer: Answer, **settings: object
) -> AsyncIterator[tuple[FakeUpstream, aiohttp.ClientSession, Running]]:
    async with fake_upstream(answer) as upstream, in_front_of(home, upstream.url, **settings) as server:  # type: ignore[arg-type]
        async with server.session() as session:
            yield upstream, session, server
