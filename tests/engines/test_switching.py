"""What an engine that changes its model says of itself while the model of the start is looked for."""

import asyncio

from pocketserver.chat import EngineState
from pocketserver.cli.banner import loaded
from pocketserver.engines.switching import Loadable, SwitchingEngine
from pocketserver.errors import Code, Refusal
from tests.waiting import until


async def test_the_model_of_the_start_is_loading_before_it_is_found() -> None:
    found = asyncio.Event()

    async def find(model: str) -> Loadable:
        await found.wait()
        raise Refusal(Code.MODEL_NOT_FOUND, f"There is no {model}.")

    engine = SwitchingEngine(name="llama", find=find, first="gone", keep_alive_seconds=1.0)
    await engine.start()
    assert engine.status.state is EngineState.LOADING

    found.set()
    await until(lambda: engine.status.state is EngineState.NO_MODEL)
    await engine.close()


async def test_no_model_at_the_start_is_told_to_load_on_request() -> None:
    async def find(model: str) -> Loadable:
        raise Refusal(Code.MODEL_NOT_FOUND, f"There is no {model}.")

    engine = SwitchingEngine(name="llama", find=find, first=None, keep_alive_seconds=1.0)
    await engine.start()

    assert loaded(engine.status) == "The model is loaded by the first request that asks for it"
    await engine.close()
