"""The engines that every client scenario runs against: the simulator, and the real default model."""

from pathlib import Path

import pytest

from pocketserver.engines.engine import Engine
from pocketserver.engines.llama.process import LlamaEngine, LlamaOptions
from pocketserver.engines.sim.engine import SimEngine
from tests.serving import FAST

ENGINES = ["sim", pytest.param("llama", marks=pytest.mark.real_model)]


TEMPLATES = Path(__file__).resolve().parent.parent / "templates"


async def make_engine(request: pytest.FixtureRequest, home: Path) -> Engine:
    """The engine of this parameter, ready to answer."""
    if request.param == "sim":
        return SimEngine(FAST)
    model = request.getfixturevalue("default_model_path")
    engine = LlamaEngine(LlamaOptions(model_id="smollm2-135m-instruct", path=model, state_folder=home / "llama"))
    await engine.start()
    await engine.loaded()
    return engine


async def make_calling_engine(request: pytest.FixtureRequest, home: Path, template: str | None = None) -> Engine:
    """The simulator, or the real model with a template that can call tools; its name is the parameter without one."""
    if request.param == "sim":
        return SimEngine(FAST)
    options = LlamaOptions(
        model_id="smollm2-135m-instruct",
        path=request.getfixturevalue("default_model_path"),
        state_folder=home / "llama",
        context=1024,
        threads=1,
        chat_template=TEMPLATES / f"{template or request.param}.jinja",
    )
    engine = LlamaEngine(options)
    await engine.start()
    await engine.loaded()
    return engine
