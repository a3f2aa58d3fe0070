"""The composition root: settings become engine, gate, routes and listeners. The only module that knows everybody."""

import asyncio
import contextlib
import itertools
import os
import re
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from pocketserver import control, run_file
from pocketserver.answering import Answering, Exchange
from pocketserver.chat import ModelInfo
from pocketserver.engines.engine import Engine
from pocketserver.engines.truncation import newest_that_fit
from pocketserver.errors import Code, Refusal
from pocketserver.gate.admission import Door
from pocketserver.gate.entrance import Entrance
from pocketserver.gate.hosts import HostRule, OriginRule, PeerRule
from pocketserver.gate.keys import Identity, KeyStore
from pocketserver.gate.limits import WrongKeyThrottle
from pocketserver.http_server import serving_http
from pocketserver.lan import address
from pocketserver.listening import EVERYWHERE, PortTaken, listen
from pocketserver.models.library import ModelLibrary, StoredModel
from pocketserver.profile import Profile
from pocketserver.settings import Effective
from pocketserver.simulator.routes import ControlRoutes
from pocketserver.simulator.simulator import Simulator
from pocketserver.telemetry.log_lines import RequestLine
from pocketserver.telemetry.logs import ServerLog
from pocketserver.telemetry.metrics import Metrics
from pocketserver.telemetry.rates import tokens_per_second
from pocketserver.wire import anthropic_request
from pocketserver.wire.anthropic_errors import AnthropicErrors
from pocketserver.wire.anthropic_messages import Messages
from pocketserver.wire.context import KEY_NAME, ModelAccess, ModelNames, Patience
from pocketserver.wire.device import Device, DeviceView, lane_state
from pocketserver.wire.error_table import ErrorTable
from pocketserver.wire.ollama_embed import OllamaEmbed
from pocketserver.wire.ollama_errors import OllamaErrors
from pocketserver.wire.ollama_generation import OllamaGeneration
from pocketserver.wire.ollama_models import Capabilities, OllamaModels, nothing_known
from pocketserver.wire.ollama_progress import OllamaProgress
from pocketserver.wire.ollama_server import OllamaServer
from pocketserver.wire.ollama_store import OllamaStore
from pocketserver.wire.openai_chat import ChatCompletions
from pocketserver.wire.openai_completions import Completions
from pocketserver.wire.openai_embeddings import EmbeddingsRoute
from pocketserver.wire.openai_errors import OpenAIErrors
from pocketserver.wire.openai_responses import Responses
from pocketserver.wire.openai_responses_store import ResponseStore
from pocketserver.wire.openai_sampling import Defaults

LAST_WORDS_SECONDS = 2.0


@dataclass(slots=True, kw_only=True)
class Server:
    """One running server and what belongs to it."""

    effective: Effective
    engine: Engine
    door: Door
    keys: KeyStore | None
    metrics: Metrics
    log: ServerLog
    installed: Callable[[], Sequence[ModelInfo]]
    """Installed models, the loaded one marked; reads the disk, so it is asked in a thread."""
    on_exchange: Callable[[Exchange], None] | None = None
    """Told of every finished request, beside the log and the metrics."""
    model_id: str | None = None
    """The model that is served, loaded or not yet."""
    port: int = 0
    advertised_host: str = "127.0.0.1"
    other_hosts: tuple[str, ...] = ()
    network_name: str | None = None
    """The `.local` name under which mDNS announces this server, once it does."""
    room: str = ""
    """The code of the room that this server stands for, once it is known."""
    instance: str = ""
    """Our name in the chain of servers that a request passes, where we pass it on."""
    served: int = 0
    """Answers given since the start."""
    control_url: str = ""
    control_token: str = ""
    simulator: Simulator | None = None
    """The simulated device, when the engine is one."""
    library: ModelLibrary | None = None
    """Every model of this machine, for the routes that list and change them."""
    examine: Callable[[StoredModel], Awaitable[Capabilities | None]] = nothing_known
    """What the engine knows of a model without loading it."""
    at_work: tuple[AbstractAsyncContextManager[object], ...] = ()
    """What goes on beside the requests, as long as the server runs."""
    new_id: Callable[[], str] = field(default_factory=lambda: request_ids(secrets.token_hex(6)))
    started: float = field(default_factory=time.monotonic)
    shut_down: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server is to end: by a signal, a command, or a parent that closed its pipe."""

    @property
    def base_url(self) -> str:
        """The address under which other devices reach this server."""
        return f"http://{_in_url(self.advertised_host)}:{self.port}/v1"

    @property
    def other_urls(self) -> list[str]:
        """The same server under its other addresses."""
        return [f"http://{_in_url(host)}:{self.port}/v1" for host in self.other_hosts]

    @property
    def local_url(self) -> str:
        """An address that works on this machine."""
        host = self.effective.settings.host
        return f"http://{_in_url('127.0.0.1' if host in EVERYWHERE else host)}:{self.port}/v1"

    async def models(self) -> Sequence[ModelInfo]:
        return await asyncio.to_thread(self.installed)

    def status(self) -> dict[str, Any]:
        """For `pocketserver status`; nothing secret."""
        status = self.engine.status
        return {
            "pid": os.getpid(),
            "base_url": self.base_url,
            "local_url": self.local_url,
            "profile": self.effective.profile.name,
            "engine": self.engine.name,
            "model": status.model or self.model_id,
            "asks_for_key": self.keys is not None,
            "state": lane_state(self.view()),
            "context_size": status.context_size,
            "waiting": self.door.waiting,
            "uptime_seconds": round(time.monotonic() - self.started, 1),
            "problem": status.problem,
        }

    def view(self) -> DeviceView:
        return DeviceView(
            status=lambda: self.engine.status,
            models=self.models,
            lane=self.door,
            engine=self.engine.name,
            keyless=self.keys is None,
            started=self.started,
            model_prefix=self.effective.profile.model_prefix,
            room=lambda: self.room,
            served=lambda: self.served,
        )


def request_ids(prefix: str) -> Callable[[], str]:
    """A source of ids that do not repeat: counting is cheaper than random bytes for each request."""
    numbers = itertools.count(1)
    return lambda: f"{prefix}{next(numbers):08x}"


@asynccontextmanager
async def serving(server: Server) -> AsyncIterator[Server]:
    """Listen, open the control listener, write the run file; undo all of it in reverse on leaving.

    The engine is started by the caller's `engine.start()`; it is closed here, last. Raises StartupError when the port
    is taken.
    """
    settings = server.effective.settings
    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.engine.close)
        for work in server.at_work:
            await stack.enter_async_context(work)
        sockets = _listen(server.effective)
        for listener in sockets:
            stack.callback(listener.close)
        server.port = sockets[0].getsockname()[1]
        app = application(server)
        listeners = await stack.enter_async_context(
            serving_http(
                app,
                sockets,
                refuse=error_shapes(server)["/"].response,
                log=server.log.logger,
                reader_seconds=settings.client_seconds,
            )
        )
        if server.simulator is not None:
            await stack.enter_async_context(server.simulator.on_air(listeners))
        server.control_url, server.control_token = await stack.enter_async_context(control.listening(_control(server)))
        path = run_file.write(settings.home_folder / "run", _run_entry(server))
        stack.callback(path.unlink, missing_ok=True)
        await stack.enter_async_context(_keys_watched(server))
        try:
            yield server
        finally:
            await _let_running_finish(server)


def _listen(effective: Effective) -> list[socket.socket]:
    """The port that the settings name; any free one when a profile's own port is taken and it may move."""
    settings = effective.settings
    try:
        return listen(settings.host, settings.port)
    except PortTaken:
        if not effective.profile.moves_when_taken or not effective.origins["port"].startswith("profile"):
            raise
        return listen(settings.host, 0)


def application(server: Server) -> web.Application:
    """The aiohttp application of one server: two middlewares and the routes that the profile names."""
    profile, settings = server.effective.profile, server.effective.settings
    shapes = error_shapes(server)
    answering = Answering(
        families=shapes,
        max_body_bytes=settings.max_body_bytes,
        record=lambda exchange: record(server, exchange),
        log=server.log.logger,
        new_id=server.new_id,
        unix_time=_unix_time(server),
        models_for_anthropic=shapes.get("/v1/messages"),
        strict=settings.strict == "on",
        shows_warnings=profile.shows_warnings,
    )
    gate = entrance(server)
    middlewares = [answering.middleware, gate.middleware]
    if server.simulator is not None:
        injection = server.simulator.injection
        middlewares = [answering.middleware, injection.watching, gate.middleware, injection.striking]
    app = web.Application(middlewares=middlewares, client_max_size=settings.max_body_bytes)
    app.on_response_prepare.append(answering.stamp)
    if settings.allowed_origins:
        app.on_response_prepare.append(gate.allow_reading)
    app.add_routes([route for route in _routes(server, shapes) if _canonical(route.path) in profile.routes])
    return app


FAMILIES: Mapping[str, type[ErrorTable]] = {
    "openai": OpenAIErrors,
    "anthropic": AnthropicErrors,
    "ollama": OllamaErrors,
}
"""Each API family's error table, by the word that profiles use."""


def error_shapes(server: Server) -> dict[str, ErrorTable]:
    """The error table of each path prefix, as the profile words and numbers it."""
    profile = server.effective.profile
    return {
        prefix: FAMILIES[family](statuses=profile.statuses, codes=profile.codes, retry_after=profile.retry_after)
        for prefix, family in profile.error_families.items()
    }


def model_access(server: Server) -> ModelAccess:
    """What the wire modules are given of this server's model."""
    profile, settings = server.effective.profile, server.effective.settings
    return ModelAccess(
        door=server.door,
        models=ModelNames(
            installed=server.models,
            loaded=lambda: server.engine.status.model or (server.model_id if settings.switching else None),
            generic=frozenset(settings.generic_models),
            required=profile.model_required,
            switching=settings.switching or settings.engine == "upstream",
            prefix=profile.model_prefix,
        ),
        client_seconds=settings.client_seconds,
        max_packed_bytes=settings.max_packed_bytes,
        waiting=Patience(
            early_headers_after=settings.early_headers_after_seconds, keep_alive_every=settings.keep_alive_seconds
        ),
        context_size=lambda: server.engine.status.context_size,
        counts_tokens=lambda: server.engine.status.counts_tokens,
    )


def _routes(server: Server, shapes: Mapping[str, ErrorTable]) -> list[web.RouteDef]:
    """Every route that this program can serve; the profile picks."""
    profile, settings = server.effective.profile, server.effective.settings
    access = model_access(server)
    defaults = Defaults(
        max_tokens=settings.default_max_tokens,
        temperature=settings.default_temperature,
        top_p=settings.default_top_p,
        stop=settings.default_stop,
    )
    device = Device(
        view=server.view(),
        health_shape=profile.health,
        models_shape=profile.models,
        root_shape=profile.root,
        metrics=server.metrics,
        speaks_anthropic=_speaks_anthropic(profile),
    )
    chat = ChatCompletions(access=access, defaults=defaults, errors=shape_of(shapes, "/v1/chat/completions"))
    completions = Completions(access=access, defaults=defaults, errors=shape_of(shapes, "/v1/completions"))
    messages = Messages(
        access=access,
        defaults=anthropic_request.Defaults(
            temperature=settings.default_temperature, top_p=settings.default_top_p, stop=settings.default_stop
        ),
        errors=shape_of(shapes, "/v1/messages"),
        drop_hosted=profile.drops_hosted_tools,
    )
    responses = Responses(
        access=access,
        defaults=defaults,
        store=ResponseStore(clock=time.monotonic) if profile.stores else None,
        drop_hosted=profile.drops_hosted_tools,
        shorten=newest_that_fit,
        unix_time=_unix_time(server),
    )
    ollama = ollama_routes(server, access, shape_of(shapes, "/api/chat"))
    return [
        *device.routes(),
        *chat.routes(),
        *completions.routes(),
        *messages.routes(),
        *responses.routes(),
        *ollama,
        *EmbeddingsRoute(access=access).routes(),
    ]


def ollama_routes(server: Server, access: ModelAccess, errors: ErrorTable) -> list[web.RouteDef]:
    """Ollama's API; it needs to know what is installed."""
    if server.library is None:
        return []
    models = OllamaModels(access=access, library=server.library, examine=server.examine)
    return [
        *OllamaGeneration(models=models, errors=errors, shorten=newest_that_fit).routes(),
        *OllamaEmbed(models=models).routes(),
        *OllamaStore(models=models).routes(),
        *OllamaProgress(models=models, errors=errors).routes(),
        *OllamaServer(port=lambda: server.port).routes(),
    ]


def _unix_time(server: Server) -> Callable[[], float]:
    return time.time if server.simulator is None else server.simulator.unix_time


def _canonical(path: str) -> str:
    """A route's template as profiles write it, without the patterns of its parts: `/v1/models/{id}`."""
    return re.sub(r":[^{}]+\}", "}", path)


def _speaks_anthropic(profile: Profile) -> bool:
    return "anthropic" in profile.error_families.values()


def shape_of(shapes: Mapping[str, ErrorTable], path: str) -> ErrorTable:
    """The error table of a path: the longest prefix that fits wins."""
    return shapes[max((prefix for prefix in shapes if path.startswith(prefix)), key=len)]


def make_door(engine: Engine, effective: Effective, on_waited: Callable[[float], None]) -> Door:
    """The admission that the settings ask for: `mutex` admits one and refuses the rest, `queue` lets some wait."""
    settings = effective.settings
    mutex = settings.admission == "mutex"
    return Door(
        engine,
        limit=1 if mutex else settings.max_queue,
        full=Code.MODEL_BUSY if mutex else Code.QUEUE_FULL,
        stall_seconds=settings.stall_seconds,
        queue_seconds=settings.queue_seconds,
        on_waited=on_waited,
    )


def _control(server: Server) -> control.Control:
    routes = () if server.simulator is None else ControlRoutes(server.simulator).routes()
    return control.Control(status=server.status, stop=server.door.stop, shut_down=server.shut_down.set, routes=routes)


def _run_entry(server: Server) -> run_file.RunningServer:
    return run_file.RunningServer(
        pid=os.getpid(),
        port=server.port,
        base_url=server.local_url,
        profile=server.effective.profile.name,
        engine=server.engine.name,
        control_url=server.control_url,
        control_token=server.control_token,
        started=time.time(),
    )


@asynccontextmanager
async def _keys_watched(server: Server) -> AsyncIterator[None]:
    """Follow the key file: revoking a key takes effect without a restart, on its running generation too."""
    keys = server.keys
    if keys is None:
        yield
        return

    def end(identity: Identity) -> None:
        server.door.end_owned_by(
            identity.name, Refusal(Code.INVALID_API_KEY, "The API key of this request has been revoked.")
        )

    watching = asyncio.create_task(keys.watch(end))
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await asyncio.to_thread(keys.write_uses)


async def _let_running_finish(server: Server) -> None:
    """Admit nobody, give the running request its grace, then end it with an error that its client sees."""
    server.door.close()
    grace = server.effective.settings.shutdown_grace_seconds
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(grace):
            await server.door.idle()
    if server.door.running is not None:
        server.door.running.end(Refusal(Code.MODEL_NOT_LOADED, "The server is shutting down. Connect again later."))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                await server.door.idle()


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def entrance(server: Server) -> Entrance:
    """The gate that the profile and the settings ask for."""
    profile, settings = server.effective.profile, server.effective.settings
    return Entrance(
        host_rule=HostRule(
            kind=profile.host_rule,
            port=lambda: server.port,
            own_addresses=address.own_addresses,
            own_names=lambda: () if server.network_name is None else (server.network_name,),
            configured=settings.allowed_hosts,
        ),
        peer_rule=PeerRule(
            kind=profile.peer_rule, allow_public=settings.allow_public, networks=address.on_link_networks
        ),
        origin_rule=OriginRule(kind=profile.origin_rule, configured=settings.allowed_origins),
        keys=server.keys,
        throttle=WrongKeyThrottle(settings.wrong_keys_a_minute),
        keyless=frozenset(profile.keyless),
        route_scopes=profile.route_scopes,
        max_body_bytes=settings.max_body_bytes,
        base_url=lambda: server.base_url,
        key_name=KEY_NAME,
        takes_x_api_key="anthropic" in profile.error_families.values(),
        unserved=profile.unserved,
        instance=server.instance,
    )


def record(server: Server, exchange: Exchange) -> None:
    """One line in the log and one count in the metrics for every request, however it ended."""
    answer = exchange.answer
    server.metrics.observe_request(
        route=exchange.route, status=exchange.status, error=exchange.error, key=exchange.key_name
    )
    if answer.model is not None and exchange.status < 300 and exchange.error is None:
        server.served += 1
    if answer.model is not None and answer.time_to_first_token is not None:
        server.metrics.observe_answer(
            model=answer.model,
            usage=answer.usage,
            timings=answer.timings,
            time_to_first_token=answer.time_to_first_token,
            seconds=exchange.seconds,
            tokens=answer.tokens,
        )
    server.log.request(_line(exchange))
    if server.simulator is not None:
        server.simulator.ended(exchange.request_id, exchange.status, exchange.error, exchange.seconds)
    if server.on_exchange is not None:
        server.on_exchange(exchange)


def _line(exchange: Exchange) -> RequestLine:
    answer, usage = exchange.answer, exchange.answer.usage
    return RequestLine(
        method=exchange.method,
        path=exchange.path,
        status=exchange.status,
        seconds=exchange.seconds,
        peer=exchange.peer,
        request_id=exchange.request_id,
        route=exchange.route,
        error=exchange.error,
        key_name=exchange.key_name,
        model=answer.model,
        prompt_tokens=usage.prompt_tokens if usage else None,
        cached_tokens=usage.cached_tokens if usage else None,
        completion_tokens=usage.completion_tokens if usage else (answer.tokens or None),
        time_to_first_token=answer.time_to_first_token,
        tokens_per_second=tokens_per_second(usage, answer.timings) if usage and answer.timings else None,
    )
