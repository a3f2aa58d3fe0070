"""A simulated device under test: a server in virtual time, its control listener, and raw sockets to it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from pocketserver.engines.sim.engine import SimEngine
from pocketserver.settings import load
from pocketserver.simulator.presets import sim_engine
from pocketserver.simulator.simulator import Simulator
from tests.serving import Running, running

HI: dict[str, Any] = {"model": "default", "messages": [{"role": "user", "content": "hi"}]}
CHAT = "/v1/chat/completions"


class Device:
    """What a test does with one device: as a client, and as its owner."""

    def __init__(self, served: Running, owner: aiohttp.ClientSession, http: aiohttp.ClientSession) -> None:
        self.served = served
        self.owner = owner
        self.http = http

    @property
    def simulator(self) -> Simulator:
        assert self.served.server.simulator is not None
        return self.served.server.simulator

    @property
    def engine(self) -> SimEngine:
        return self.simulator.engine

    async def control(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        """One call of the control listener."""
        async with self.owner.request(method, path, json=body) as response:
            assert response.status == status, await response.text()
            return await response.json()

    async def ask(self, **fields: Any) -> tuple[int, Any]:
        """One request that is not streamed."""
        async with self.http.post(CHAT, json={**HI, **fields}) as response:
            return response.status, await response.json()

    async def text(self, **fields: Any) -> str:
        status, document = await self.ask(**fields)
        assert status == 200, document
        return str(document["choices"][0]["message"]["content"])

    async def raw(self, seconds: float = 20.0, **fields: Any) -> bytes:
        """Everything that the server sends on a connection of its own, until it closes it. A reset is `b"RESET"`."""
        body = json.dumps({**HI, **fields}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.served.server.port)
        writer.write(
            f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self.served.key}\r\n"
            f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        received = b""
        try:
            async with asyncio.timeout(seconds):
                while data := await reader.read(65536):
                    received += data
        except ConnectionError:
            received += b"RESET"
        except TimeoutError:
            received += b"SILENCE"
        finally:
            writer.transport.abort()
        return received


@asynccontextmanager
async def device(home: Path, **settings: Any) -> AsyncIterator[Device]:
    """A device in virtual time, unless `speed` says otherwise."""
    flags = {"home": str(home), "engine": "sim", "speed": "max", **settings}
    engine = sim_engine(load(flags=flags, environment={}).settings)
    async with running(home, engine, **{"speed": "max", **settings}) as served:
        token = {"Authorization": f"Bearer {served.server.control_token}"}
        async with (
            aiohttp.ClientSession(base_url=served.server.control_url, headers=token) as owner,
            served.session() as http,
        ):
            yield Device(served, owner, http)
