"""What a device tells about itself: `/health`, `/v1/models`, `/metrics`. Profiles name the shapes kept here."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from aiohttp import web

from pocketserver import __version__
from pocketserver.chat import EngineState, EngineStatus, ModelInfo
from pocketserver.errors import Code, Refusal
from pocketserver.wire.anthropic_models import asks_models_of_anthropic, model_fields, model_list
from pocketserver.wire.context import KEY_NAME


class Lane(Protocol):
    """The door, as far as health looks at it. Nothing here waits for the model."""

    @property
    def taken(self) -> int: ...

    @property
    def busy(self) -> bool: ...

    @property
    def stuck(self) -> bool: ...

    @property
    def waiting(self) -> int: ...

    @property
    def seconds_since_progress(self) -> float | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceView:
    """What the shapes draw from. `keyless` is true where no key is asked for, so that everybody sees everything.

    `room` is the code of the room that this server stands for, `served` how many answers it gave.
    """

    status: Callable[[], EngineStatus]
    models: Callable[[], Awaitable[Sequence[ModelInfo]]]
    lane: Lane
    engine: str
    keyless: bool
    started: float
    model_prefix: str = ""
    room: Callable[[], str] = lambda: ""
    served: Callable[[], int] = lambda: 0
    guests: Callable[[], Sequence[Any] | None] = lambda: None
    """Who is in the room that this server hosts; None when it hosts none."""


def lane_state(view: DeviceView) -> str:
    """`stuck`, `loading`, `no_model`, `busy` or `idle`."""
    state = view.status().state
    if view.lane.stuck or state is EngineState.STUCK:
        return "stuck"
    if state is not EngineState.READY:
        return state.value
    return "busy" if view.lane.busy else "idle"


def pocketllm_health(view: DeviceView, *, authenticated: bool) -> dict[str, Any]:
    """Liveness with model, context size and Metal status; more for whoever has the key (interfaces, section D)."""
    status = view.status()
    own: dict[str, Any] = {"state": lane_state(view), "version": __version__}
    if status.device is not None:
        own["device"] = status.device
    if authenticated:
        own |= {
            "uptime_seconds": round(time.monotonic() - view.started, 1),
            "engine": view.engine,
            "seconds_since_last_token": _rounded(view.lane.seconds_since_progress),
            "waiting": view.lane.waiting,
            "safe_mode": status.safe_mode,
            "gpu_layers": status.gpu_layers,
            "runtime": status.runtime,
            "load_progress": _rounded(status.load_progress),
            "problem": status.problem,
        }
        guests = view.guests()
        if guests is not None:
            own["room"] = {"code": view.room(), "guests": guests}
    loaded = status.state is EngineState.READY
    return {
        "status": "ok",
        "model": status.model if loaded else None,
        "context_size": status.context_size if loaded else None,
        "metal": status.metal,
        "x_pocketserver": own,
    }


def device_fields(model: ModelInfo, shown: str) -> dict[str, Any]:
    """A model on the device in OpenAI's shape, the loaded one with `"loaded": true`."""
    return {
        "id": shown,
        "object": "model",
        "created": model.created,
        "owned_by": "local",
        "loaded": model.loaded,
        "size_bytes": model.size_bytes,
        "quantization": model.quantization,
        "context_size": model.context_size,
    }


def pooled_health(view: DeviceView, *, authenticated: bool) -> dict[str, Any]:
    """Pooled's status for scripts; without its token only that the server lives."""
    if not authenticated:
        return {"ok": True}
    status = view.status()
    ready = status.state is EngineState.READY
    health = {
        "ok": True,
        "room": view.room(),
        "connected": status.connected,
        "ready": ready,
        "model": f"{view.model_prefix}{status.model}" if ready and status.model else None,
        "ctx": status.context_size if ready else None,
        "queue": view.lane.waiting + view.lane.taken,
        "served": view.served(),
    }
    return health if status.closed is None else {**health, "closed": status.closed}


def hub_health(view: DeviceView, *, authenticated: bool) -> dict[str, Any]:
    """Both products' fields; where they share a word (`model`) they mean the same."""
    return {
        **pooled_health(view, authenticated=authenticated),
        **pocketllm_health(view, authenticated=authenticated),
    }


def room_fields(model: ModelInfo, shown: str) -> dict[str, Any]:
    """The room's model, with its context."""
    return {
        "id": shown,
        "object": "model",
        "created": model.created,
        "owned_by": "pooled",
        "max_model_len": model.context_size,
    }


def library_fields(model: ModelInfo, shown: str) -> dict[str, Any]:
    """An installed model in OpenAI's bare shape."""
    return {"id": shown, "object": "model", "created": model.created, "owned_by": "library"}


def hub_fields(model: ModelInfo, shown: str) -> dict[str, Any]:
    """A model with the extras of both products."""
    return {**device_fields(model, shown), "max_model_len": model.context_size}


async def every_model(view: DeviceView) -> Sequence[ModelInfo]:
    return await view.models()


async def ready_model(view: DeviceView) -> Sequence[ModelInfo]:
    """The one model, none until it is ready."""
    status = view.status()
    if status.state is not EngineState.READY:
        return ()
    return [
        msgspec.structs.replace(model, context_size=status.context_size)
        for model in await view.models()
        if model.id == status.model
    ]


def banner(view: DeviceView) -> str:
    model = view.status().model
    return f"pocketserver {__version__}. " + (f"Serving {view.model_prefix}{model}." if model else "No model is ready.")


def ollama_banner(_view: DeviceView) -> str:
    """What Ollama's clients look for."""
    return "Ollama is running"


HEALTH: Mapping[str, Callable[..., dict[str, Any]]] = {
    "pocketllm": pocketllm_health,
    "pooled": pooled_health,
    "hub": hub_health,
}
MODELS: Mapping[
    str, tuple[Callable[[DeviceView], Awaitable[Sequence[ModelInfo]]], Callable[[ModelInfo, str], dict[str, Any]]]
] = {
    "device": (every_model, device_fields),
    "pooled": (ready_model, room_fields),
    "installed": (every_model, library_fields),
    "hub": (every_model, hub_fields),
}
"""Which models a profile lists, and how OpenAI's clients see one."""
ROOT: Mapping[str, Callable[[DeviceView], str]] = {"banner": banner, "ollama": ollama_banner}


class MetricsText(Protocol):
    def render(self, accept: str) -> tuple[bytes, str]:
        """The exposition and its content type, by what the scraper accepts."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The endpoints themselves. With `speaks_anthropic` that family's clients see models in its shape."""

    view: DeviceView
    health_shape: str
    models_shape: str
    root_shape: str
    metrics: MetricsText
    speaks_anthropic: bool = False

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/", self.root),
            web.get("/health", self.health),
            web.get("/v1/models", self.list_models),
            web.get("/v1/models/{id:.+}", self.show_model),
            web.get("/metrics", self.scrape),
        ]

    async def root(self, _request: web.Request) -> web.Response:
        return web.Response(text=ROOT[self.root_shape](self.view))

    async def health(self, request: web.Request) -> web.Response:
        authenticated = self.view.keyless or KEY_NAME in request
        return _json(HEALTH[self.health_shape](self.view, authenticated=authenticated))

    async def list_models(self, request: web.Request) -> web.Response:
        select, fields = MODELS[self.models_shape]
        models = await select(self.view)
        if self.speaks_anthropic and asks_models_of_anthropic(request):
            return _json(model_list(models, self._shown, request.query))
        return _json({"object": "list", "data": [fields(model, self._shown(model.id)) for model in models]})

    async def show_model(self, request: web.Request) -> web.Response:
        select, fields = MODELS[self.models_shape]
        wanted = request.match_info["id"]
        found = next((model for model in await select(self.view) if self._shown(model.id) == wanted), None)
        if found is None:
            raise Refusal(
                Code.MODEL_NOT_FOUND,
                f"The model {wanted[:80]!a} does not exist here. GET /v1/models lists what there is.",
                param="model",
            )
        if self.speaks_anthropic and asks_models_of_anthropic(request):
            return _json(model_fields(found, wanted))
        return _json(fields(found, wanted))

    def _shown(self, model: str) -> str:
        return self.view.model_prefix + model

    async def scrape(self, request: web.Request) -> web.Response:
        body, content_type = await asyncio.to_thread(self.metrics.render, request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})


def _json(value: dict[str, Any]) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
