"""One server on the real model and one on the simulator for each module of tables."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from pocketserver.engines.llama.process import LlamaEngine, LlamaOptions
from tests.serving import Running, running

CONTEXT = 2048


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def simulated(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    async with running(tmp_path_factory.mktemp("home")) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def real(default_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """The default model with a small context."""
    home = tmp_path_factory.mktemp("home")
    options = LlamaOptions(
        model_id="smollm2-135m-instruct", path=default_model_path, state_folder=home / "llama", context=CONTEXT
    )
    engine = LlamaEngine(options)
    async with running(home, engine) as server:
        await engine.loaded()
        yield server


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Running:
    """The server that the test names (`simulated` or `real`), the simulator unless it says."""
    found: Running = request.getfixturevalue(getattr(request, "param", "simulated"))
    return found


@pytest_asyncio.fixture(loop_scope="module")
async def http(server: Running) -> AsyncIterator[aiohttp.ClientSession]:
    """A session with the key."""
    async with server.session() as session:
        yield session
