"""One loaded engine for all tests of this folder, and engines of one's own for tests that break them."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import pytest_asyncio

from pocketserver.engines.llama.process import LlamaEngine, LlamaOptions

MakeEngine: TypeAlias = Callable[..., LlamaEngine]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engine(default_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LlamaEngine]:
    """The shared engine. Tests leave it as they found it: loaded and idle."""
    folder = tmp_path_factory.mktemp("llama-state")
    options = LlamaOptions(model_id="model", path=default_model_path, state_folder=folder, threads=1)
    shared = LlamaEngine(options)
    await shared.start()
    await shared.loaded()
    yield shared
    await shared.close()


@pytest_asyncio.fixture
async def make_engine(default_model_path: Path, tmp_path: Path) -> AsyncIterator[MakeEngine]:
    """Makes engines that are closed at the end of the test."""
    async with AsyncExitStack() as stack:

        def make(**options: Any) -> LlamaEngine:
            values = {"model_id": "model", "path": default_model_path, "state_folder": tmp_path}
            values |= {"context": 1024, "threads": 1}  # one thread: two wait for each other on a busy machine
            made = LlamaEngine(LlamaOptions(**values | options))
            stack.push_async_callback(made.close)
            return made

        yield make
