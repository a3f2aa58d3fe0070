"""From settings to the parts of one server: which engine, which keys, which door. Used by `serve` and by tests alike."""

from collections.abc import Callable, Mapping
from pathlib import Path

from pocketserver.chat import ModelInfo
from pocketserver.engines.engine import Engine
from pocketserver.engines.sim.engine import SimEngine, SimOptions
from pocketserver.errors import StartupError
from pocketserver.gate.keys import KeyStore
from pocketserver.models.store import ModelStore
from pocketserver.server import Server, make_door
from pocketserver.settings import Effective, Settings
from pocketserver.telemetry.logs import ServerLog
from pocketserver.telemetry.metrics import Metrics


def assemble(effective: Effective, engine: Engine, log: ServerLog, *, models: Callable[[], list[ModelInfo]]) -> Server:
    """Put one server together; nothing is started and no socket is open yet."""
    settings = effective.settings
    metrics = Metrics()
    keys = None
    if settings.auth == "on":
        keys = KeyStore(settings.home_folder, main_key_override=settings.api_key)
    return Server(
        effective=effective,
        engine=engine,
        door=make_door(engine, effective, metrics.observe_wait),
        keys=keys,
        metrics=metrics,
        log=log,
        models=models,
    )


def make_engine(settings: Settings, model: Path | None) -> Engine:
    """The engine that the settings name. `model` is the GGUF file, for engines that need one."""
    return _ENGINES[settings.engine](settings, model)


def _sim(settings: Settings, _model: Path | None) -> Engine:
    rate = None if settings.speed == "max" else settings.tokens_per_second * settings.speed
    options = SimOptions(tokens_per_second=rate, seed=settings.seed, reply=settings.reply)
    return SimEngine(options)


def _llama(settings: Settings, model: Path | None) -> Engine:
    try:
        from pocketserver.engines.llama.process import LlamaEngine, LlamaOptions
    except ImportError as error:
        raise StartupError(
            f"The engine llama needs packages that are missing ({error.name}). Install pocketserver[llama]."
        ) from error
    assert model is not None
    raise NotImplementedError(LlamaEngine, LlamaOptions)


def _not_here(settings: Settings, _model: Path | None) -> Engine:
    raise StartupError(f"The engine {settings.engine} is not part of this version. Use llama or sim.")


_ENGINES: Mapping[str, Callable[[Settings, Path | None], Engine]] = {
    "llama": _llama,
    "sim": _sim,
    "upstream": _not_here,
    "ray": _not_here,
}
