"""The engines that every client scenario runs against: the simulator, and the real default model."""

from pathlib import Path

import pytest

from pocketserver.engines.engine import Engine
from pocketserver.engines.sim.engine import SimEngine
from tests.serving import FAST

ENGINES = ["sim", pytest.param("llama", marks=pytest.mark.real_model)]


async def make_engine(request: pytest.FixtureRequest, home: Path) -> Engine:
    if request.param == "sim":
        return SimEngine(FAST)
    raise AssertionError(home)
