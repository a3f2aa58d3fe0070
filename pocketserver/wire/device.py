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
from pocketserver.wire.context import KEY_NAME


class Lane(Protocol):
    """The door, as far as health looks at it. Nothing here waits for the model."""

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
    """What the shapes draw from. `keyless` is true where no key is asked for, so that everybody sees everything."""

    status: Callable[[], EngineStatus]
    models: Callable[[], Awaitable[Sequence[ModelInfo]]]
    lane: Lane
    engine: str
    keyless: bool
    started: float


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
    loaded = status.state is EngineState.READY
    return {
        "status": "ok",
        "model": status.model if loaded else None,
        "context_size": status.context_size if loaded else None,
        "metal": status.metal,
        "x_pocketserver": own,
    }


async def device_models(view: DeviceView) -> list[dict[str, Any]]:
    """Every model on the device in OpenAI's shape, the loaded one with `"loaded": true`."""
    return [
        {
            "id": model.id,
            "object": "model",
            "created": model.created,
            "owned_by": "local",
            "loaded": model.loaded,
            "size_bytes": model.size_bytes,
            "quantization": model.quantization,
            "context_size": model.context_size,
        }
        for model in await view.models()
    ]


HEALTH: Mapping[str, Callable[..., dict[str, Any]]] = {"pocketllm": pocketllm_health}
MODELS: Mapping[str, Callable[[DeviceView], Awaitable[list[dict[str, Any]]]]] = {"device": device_models}


class MetricsText(Protocol):
    def render(self, accept: str) -> tuple[bytes, str]:
        """The exposition and its content type, by what the scraper accepts."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The endpoints themselves."""

    view: DeviceView
    health_shape: str
    models_shape: str
    metrics: MetricsText

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/health", self.health),
            web.get("/v1/models", self.list_models),
            web.get("/metrics", self.scrape),
        ]

    async def health(self, request: web.Request) -> web.Response:
        authenticated = self.view.keyless or KEY_NAME in request
        return _json(HEALTH[self.health_shape](self.view, authenticated=authenticated))

    async def list_models(self, _request: web.Request) -> web.Response:
        return _json({"object": "list", "data": await MODELS[self.models_shape](self.view)})

    async def scrape(self, request: web.Request) -> web.Response:
        body, content_type = await asyncio.to_thread(self.metrics.render, request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})


def _json(value: dict[str, Any]) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
