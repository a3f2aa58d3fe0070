"""From settings to the parts of one server: which engine, which keys, which door."""

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pocketserver.application import record
from pocketserver.chat import EngineState, ModelInfo
from pocketserver.engines.engine import Engine
from pocketserver.engines.recording import RecordingEngine
from pocketserver.engines.replay import Library, ReplayEngine, load_recordings
from pocketserver.engines.room import RoomEngine
from pocketserver.engines.sim.engine import SimEngine
from pocketserver.engines.switching import Loadable, SwitchingEngine
from pocketserver.engines.upstream.engine import UpstreamEngine, UpstreamOptions
from pocketserver.errors import Code, Refusal, StartupError, UsageError
from pocketserver.front_page import make_page
from pocketserver.gate.keys import MAIN, KeyStore
from pocketserver.models.catalog import load_catalog
from pocketserver.models.download import Patience
from pocketserver.models.elsewhere import LibraryElsewhere
from pocketserver.models.library import DiskLibrary, StoredModel
from pocketserver.models.progress import Report
from pocketserver.models.pull import PullMeans, pull
from pocketserver.models.store import InstalledModel, ModelStore, open_store, resolve_model_argument
from pocketserver.models.whole_file import put_in_place
from pocketserver.room.code import checked_code, own_code
from pocketserver.rooms import open_room, room_engine
from pocketserver.server import Server, make_door
from pocketserver.settings import SECRETS, Effective, Settings
from pocketserver.simulator.library import SimLibrary
from pocketserver.simulator.presets import sim_engine
from pocketserver.simulator.scenario import load_scenario
from pocketserver.simulator.simulator import Simulator
from pocketserver.telemetry.log_lines import Redaction
from pocketserver.telemetry.logs import ServerLog
from pocketserver.telemetry.metrics import Metrics
from pocketserver.telemetry.present import Sources
from pocketserver.wire.ollama_models import EVERYTHING, Capabilities

if TYPE_CHECKING:
    from pocketserver.engines.llama.examiner import Examiner
    from pocketserver.engines.llama.process import LlamaOptions

_SMALLEST_CONTEXT = 16


def assemble(effective: Effective, engine: Engine, log: ServerLog, model: InstalledModel | None = None) -> Server:
    """Put one server together; nothing is started and no socket is open yet."""
    settings = effective.settings
    metrics = Metrics(routes=effective.profile.routes)
    keys = None
    if settings.auth == "on":
        keys = KeyStore(settings.home_folder, main_key_override=settings.api_key)
    if settings.api_key:
        log.keep_secret(settings.api_key)
    server = Server(
        effective=effective,
        engine=engine,
        door=make_door(engine, effective, metrics.observe_wait),
        keys=keys,
        metrics=metrics,
        log=log,
        installed=lambda: installed_models(settings, engine, model),
        model_id=engine.status.model if model is None else model.id,
    )
    if effective.profile.names_room:
        server.room = own_code(settings.home_folder)
    device = engine.inner if isinstance(engine, RecordingEngine) else engine
    metrics.watch(
        Sources(
            status=lambda: engine.status,
            models=server.installed,
            lane=server.door,
            dropped_log_lines=lambda: log.dropped,
            upstreams=device.figures if isinstance(device, UpstreamEngine) else lambda: (),
        )
    )
    if isinstance(device, UpstreamEngine | RoomEngine):
        server.instance = device.instance
    if isinstance(device, SimEngine):
        server.simulator = Simulator(
            device,
            scenario=None if settings.scenario is None else load_scenario(settings.scenario),
            rotate_key=lambda: _rotate(keys),
        )
        server.new_id = server.simulator.new_id
        library = SimLibrary(device, unix_time=server.simulator.unix_time)
        server.library, server.examine = library, library.examined
    elif model is not None:
        disk = DiskLibrary(
            model_store(settings, also=(model,)),
            load_catalog(settings.home_folder / "catalog.toml"),
            means=pull_means(settings),
            warn=log.logger.warning,
        )
        server.library, server.at_work = disk, (disk,)
        server.examine = _examination(settings)
    else:
        server.library = LibraryElsewhere(engine.models)
        server.examine = _told_when_asked
    server.page = make_page(server)
    if isinstance(device, RoomEngine):
        device.tell = log.logger.info
        server.room = checked_code(settings.room or "")
    elif settings.room is not None:
        server.room_host = open_room(server, lambda exchange: record(server, exchange))
        server.room = server.room_host.code
    return server


async def _told_when_asked(_model: StoredModel) -> Capabilities | None:
    return EVERYTHING


def _examination(settings: Settings) -> Callable[[StoredModel], Awaitable[Capabilities | None]]:
    """Asks a short-lived process what a model can do, once for each file."""
    from pocketserver.engines.llama.examiner import Examiner

    examiner = Examiner(settings.home_folder / "llama")
    template = None if settings.chat_template is None else Path(settings.chat_template)

    async def examine(model: StoredModel) -> Capabilities | None:
        if model.path is None:
            return None
        try:
            found = await examiner.examined(model.path, template)
        except Refusal:
            return None  # whoever asks the model something is told why
        return Capabilities(
            completion=found.completion,
            tools=found.tools,
            thinking=found.thinking,
            embedding=found.embedding,
            insert=found.insert,
        )

    return examine


def _rotate(keys: KeyStore | None) -> None:
    """Put a new main key in place at once, so that the next request meets it: the simulator's stories have no gaps."""
    if keys is not None:
        keys.revoke(MAIN)
        keys.refresh()


def model_store(settings: Settings, also: Sequence[InstalledModel] = ()) -> ModelStore:
    """The models of this machine, in every folder that the settings name."""
    return open_store(
        settings.home_folder, model_folders=settings.model_folders, ollama=settings.ollama_folder, also=also
    )


def pull_means(settings: Settings) -> PullMeans:
    """With what models are fetched."""
    return PullMeans(patience=Patience(stall_seconds=settings.pull_stall_seconds))


async def prepare_model(settings: Settings, progress: Report) -> InstalledModel | None:
    """The GGUF file to serve, fetched first where that is needed; None for engines without files.

    Raises StartupError for a name that is none and for a broken file.
    """
    if settings.engine != "llama" or settings.replay is not None:
        return None
    store = model_store(settings)
    catalog = await asyncio.to_thread(load_catalog, settings.home_folder / "catalog.toml")
    found = await asyncio.to_thread(resolve_model_argument, settings.model, store, catalog)
    if isinstance(found, InstalledModel):
        return found
    await pull(found, store, progress, pull_means(settings))
    again = await asyncio.to_thread(resolve_model_argument, found.name, store, catalog)
    assert isinstance(again, InstalledModel)
    return again


def installed_models(settings: Settings, engine: Engine, served: InstalledModel | None) -> list[ModelInfo]:
    """What is on disk, with the served model among it wherever its file lies. Reads the disk."""
    if served is None:
        return list(engine.models())
    status = engine.status
    loaded = status.model if status.state is EngineState.READY else None
    models = {model.id: model for model in model_store(settings).list()}
    models[served.id] = served
    return [
        model.info(loaded=model.id == loaded, context_size=status.context_size if model.id == loaded else None)
        for model in models.values()
        if model.fault is None
    ]


def make_engine(
    settings: Settings, model: InstalledModel | None, warn: Callable[[str], None] = lambda _sentence: None
) -> Engine:
    """The engine that the settings name. `model` is the GGUF file, for engines that need one.

    With `replay`, recordings answer; with `record`, the engine's answers are recorded, and `warn` is told what fails.
    """
    if settings.replay is not None and settings.record is not None:
        raise UsageError("record and replay cannot be set together.")
    if settings.replay is not None:
        return _replay(settings, Path(settings.replay))
    engine = _ENGINES[settings.engine](settings, model)
    if settings.record is None:
        return engine
    return RecordingEngine(engine, Path(settings.record), redact=_redaction(settings), warn=warn)


def _replay(settings: Settings, folder: Path) -> Engine:
    library = Library(load_recordings(folder), _redaction(settings))
    speed = None if settings.speed == "max" else settings.speed
    return ReplayEngine(library, fallback=settings.replay_fallback, speed=speed, seed=settings.seed)


def _redaction(settings: Settings) -> Redaction:
    return Redaction([secret for name in SECRETS if (secret := getattr(settings, name))])


def _sim(settings: Settings, _model: InstalledModel | None) -> Engine:
    return sim_engine(settings)


def _llama(settings: Settings, model: InstalledModel | None) -> Engine:
    from pocketserver.engines.llama.process import LlamaEngine  # needs the extra `llama`

    assert model is not None, "prepare_model finds one"
    if not settings.switching:
        return LlamaEngine(llama_options(settings, model))
    from pocketserver.engines.llama.examiner import Examiner

    examiner = Examiner(settings.home_folder / "llama")
    return SwitchingEngine(
        name=LlamaEngine.name,
        find=lambda name: asyncio.to_thread(_loadable, settings, examiner, model, name),
        first=model.id,
        keep_alive_seconds=settings.model_keep_alive_seconds,
    )


def _loadable(settings: Settings, examiner: "Examiner", first: InstalledModel, name: str) -> Loadable:
    """An installed model of this name, ready to be loaded. Reads the disk. Raises MODEL_NOT_FOUND."""
    from pocketserver.engines.llama.process import LlamaEngine

    model = first if name == first.id else model_store(settings).find(name)
    if model is None:
        raise Refusal(Code.MODEL_NOT_FOUND, f"The model {name[:80]!r} is not installed here.", param="model")
    if model.problem is not None:
        raise Refusal(Code.MODEL_NOT_LOADED, f"The model {model.id} cannot be loaded: {model.problem}")
    stat = model.path.stat()
    options = llama_options(settings, model)
    return Loadable(
        id=model.id,
        identity=(stat.st_dev, stat.st_ino, stat.st_mtime_ns, options.chat_template, options.context),
        make=lambda: LlamaEngine(options),
        count=lambda request: examiner.count(model.path, request, options.chat_template),
        explain=lambda request: examiner.explain(model.path, request, options.chat_template),
    )


def _template_file(settings: Settings, model: InstalledModel) -> Path | None:
    """The chat template to use in place of the file's own: the setting's, else the one made with the model's name."""
    if settings.chat_template is not None:
        return Path(settings.chat_template)
    text = model.settings.jinja_template
    if text is None:
        return None
    folder = settings.home_folder / "llama" / "templates"
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.jinja"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(text, encoding="utf-8")
        put_in_place(temporary, path)
    return path


def _context(settings: Settings, model: InstalledModel) -> int | None:
    """The context that a model was made with, within the one that the settings allow."""
    made_with = model.settings.parameters.get("num_ctx")
    if not isinstance(made_with, int) or isinstance(made_with, bool) or made_with < _SMALLEST_CONTEXT:
        return settings.context
    return made_with if settings.context is None else min(made_with, settings.context)


def llama_options(settings: Settings, model: InstalledModel, *, tune_again: bool = False) -> "LlamaOptions":
    """How to serve a model by these settings. `tune_again` measures it although that was done before."""
    from pocketserver.engines.llama.process import LlamaOptions
    from pocketserver.engines.llama.runtime import FlashAttention, KvType

    template = _template_file(settings, model)
    if template is not None and not template.is_file():
        raise StartupError(f"--chat-template {template} is no file. Give the path of a Jinja template.")
    return LlamaOptions(
        model_id=model.id,
        path=model.path,
        state_folder=settings.home_folder / "llama",
        context=_context(settings, model),
        threads=settings.threads,
        threads_batch=settings.threads_batch,
        kv_type=None if settings.kv_type == "auto" else KvType(settings.kv_type),
        flash_attention=FlashAttention(settings.flash_attention),
        micro_batch=settings.micro_batch,
        blas=None if settings.blas == "auto" else settings.blas == "on",
        draft_tokens=0 if settings.speculation == "off" else None,
        tuning=settings.tuning == "auto",
        tune_again=tune_again,
        gpu_layers=settings.gpu_layers,
        chat_template=template,
        reasoning_budget=settings.reasoning_budget,
        memory_limit_bytes=settings.memory_limit_bytes,
        cache_memory_bytes=settings.cache_memory_bytes,
        cache_disk_bytes=settings.cache_disk_bytes,
    )


def _upstream(settings: Settings, _model: InstalledModel | None) -> Engine:
    if not settings.upstream:
        raise UsageError("The engine upstream needs at least one --upstream URL, such as http://127.0.0.1:8000/v1.")
    urls = tuple(_checked_url(url) for url in settings.upstream)
    options = UpstreamOptions(
        base_urls=urls,
        key=settings.upstream_key,
        model=settings.model,
        idle_seconds=settings.upstream_idle_seconds,
        concurrency=settings.concurrency or 1,
    )
    return UpstreamEngine(options)


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable or parts.username or parts.password:
        raise UsageError("--upstream must be a base URL such as http://127.0.0.1:8000/v1, without a key in it.")
    return url


def _ray(settings: Settings, _model: InstalledModel | None) -> Engine:
    from pocketserver.cluster.deploy import connect  # needs the extra `ray` once it is called
    from pocketserver.cluster.options import cluster_options
    from pocketserver.engines.ray_serve.engine import RayEngine, RayOptions

    return RayEngine(RayOptions(connect=lambda: connect(cluster_options(settings)), concurrency=settings.concurrency))


_ENGINES: Mapping[str, Callable[[Settings, InstalledModel | None], Engine]] = {
    "llama": _llama,
    "sim": _sim,
    "upstream": _upstream,
    "room": lambda settings, _model: room_engine(settings),
    "ray": _ray,
}
