"""One request to a simulated server of a profile, and the shapes in which its families refuse."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from pocketserver.engines.sim.engine import SimEngine, SimOptions
from pocketserver.settings import load
from pocketserver.simulator.presets import sim_engine
from tests.serving import Running, running
from tests.waiting import until

HI = [{"role": "user", "content": "hi"}]


@dataclass(frozen=True)
class Answered:
    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def message(self) -> str:
        """The sentence of a refusal, in whichever shape."""
        error = self.json["error"]
        return str(error if isinstance(error, str) else error["message"])


@dataclass(frozen=True)
class Page:
    """One running server, asked as a client without any key unless a header says otherwise."""

    served: Running
    http: aiohttp.ClientSession

    @property
    def engine(self) -> SimEngine:
        engine = self.served.server.engine
        assert isinstance(engine, SimEngine)
        return engine

    @property
    def port(self) -> int:
        return self.served.server.port

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answered:
        """`body` is bytes as they are, or a value to send as JSON. Underscores in header names are dashes."""
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        # a server may refuse a large body before it has read it: asking again is what clients do then
        for _ in range(3):
            try:
                async with self.http.request(
                    method, path, data=io.BytesIO(data) if data else None, headers=named
                ) as response:
                    return Answered(response.status, response.headers, await response.read())
            except (aiohttp.ClientConnectionError, ConnectionError):
                await asyncio.sleep(0)
        raise AssertionError("the server never answered")

    async def post(self, path: str, body: Any, **headers: str) -> Answered:
        return await self.ask("POST", path, body, **headers)

    async def get(self, path: str, **headers: str) -> Answered:
        return await self.ask("GET", path, **headers)

    @asynccontextmanager
    async def busy(self, path: str, body: Any) -> AsyncIterator[None]:
        """While one request of this kind is running."""
        before = len(self.served.exchanges)
        asking = asyncio.create_task(self.post(path, body))
        try:
            await until(lambda: self.served.server.door.running is not None)
            yield
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await until(lambda: not self.served.server.door.busy and len(self.served.exchanges) > before)


@asynccontextmanager
async def page(
    home: Path, profile: str, *, options: SimOptions | None = None, **settings: object
) -> AsyncIterator[Page]:
    """A server of this profile on the simulator; without delays unless `options` say so."""
    flags: dict[str, object] = {"profile": profile, "mdns": False, "speed": "max", **settings}
    engine = sim_engine(load(flags={**flags, "engine": "sim", "home": str(home)}, environment={}).settings)
    async with (
        running(home, engine if options is None else SimEngine(options), **flags) as served,
        aiohttp.ClientSession(base_url=served.origin) as http,
    ):
        yield Page(served, http)


def is_openai_error(answer: Answered) -> bool:
    document = answer.json
    return set(document) == {"error"} and set(document["error"]) >= {"message", "type", "param", "code"}


def is_anthropic_error(answer: Answered) -> bool:
    document = answer.json
    return document["type"] == "error" and set(document["error"]) == {"type", "message"}


def is_ollama_error(answer: Answered) -> bool:
    return set(answer.json) == {"error"} and isinstance(answer.json["error"], str)


def events(body: bytes) -> list[str]:
    """The frames of an SSE stream, comments left out."""
    frames = [frame for frame in body.decode().split("\n\n") if frame]
    return [frame for frame in frames if not frame.startswith(":")]
