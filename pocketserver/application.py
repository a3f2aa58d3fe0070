"""The aiohttp application of one server: middlewares, the gate, every route that the profile names, and the record."""

import re
import time
from collections.abc import Callable, Mapping
from functools import partial

from aiohttp import web

from pocketserver.answering import Answering, Exchange
from pocketserver.engines.truncation import newest_that_fit
from pocketserver.explainable import explainable
from pocketserver.gate.entrance import Entrance
from pocketserver.gate.hosts import HostRule, OriginRule, PeerRule
from pocketserver.gate.limits import WrongKeyThrottle
from pocketserver.lan import address
from pocketserver.page.activity import is_page_view
from pocketserver.page.owner_routes import OwnerRoutes
from pocketserver.page.routes import BROWSER_PATHS, PageRoutes
from pocketserver.profile import Profile
from pocketserver.room.protocol import PATH
from pocketserver.server import Server
from pocketserver.telemetry.log_lines import RequestLine
from pocketserver.telemetry.rates import tokens_per_second
from pocketserver.wire import anthropic_request
from pocketserver.wire.anthropic_errors import AnthropicErrors
from pocketserver.wire.anthropic_messages import Messages
from pocketserver.wire.context import KEY_NAME, Answer, ModelAccess, ModelNames, Patience
from pocketserver.wire.device import ROOT, Device
from pocketserver.wire.error_table import ErrorTable
from pocketserver.wire.explain import Explain
from pocketserver.wire.ollama_embed import OllamaEmbed
from pocketserver.wire.ollama_errors import OllamaErrors
from pocketserver.wire.ollama_generation import OllamaGeneration
from pocketserver.wire.ollama_models import OllamaModels
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

FAMILIES: Mapping[str, type[ErrorTable]] = {
    "openai": OpenAIErrors,
    "anthropic": AnthropicErrors,
    "ollama": OllamaErrors,
}
"""Each API family's error table, by the word that profiles use."""
BARE_PATHS: Mapping[str, str] = {"/messages": "/v1/messages", "/api": "/api/chat"}
"""Parts of paths whose clients are given the address without `/v1`, where this route of theirs is served."""


def application(server: Server) -> web.Application:
    """The aiohttp application of one server: two middlewares and the routes that the profile names."""
    profile, settings = server.effective.profile, server.effective.settings
    shapes = error_shapes(server)
    answering = Answering(
        families=shapes,
        max_body_bytes=settings.max_body_bytes,
        record=partial(record, server),
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
    app.add_routes(page_routes(server))
    if server.room_host is not None:
        app.add_routes(server.room_host.routes())
        app.on_shutdown.append(server.room_host.shut_down)
    return app


def error_shapes(server: Server) -> dict[str, ErrorTable]:
    """The error table of each path prefix, as the profile words and numbers it."""
    profile = server.effective.profile
    return {
        prefix: FAMILIES[family](statuses=profile.statuses, codes=profile.codes, retry_after=profile.retry_after)
        for prefix, family in profile.error_families.items()
    }


def shape_of(shapes: Mapping[str, ErrorTable], path: str) -> ErrorTable:
    """The error table of a path: the longest prefix that fits wins."""
    return shapes[max((prefix for prefix in shapes if path.startswith(prefix)), key=len)]


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
            stored=None if server.library is None else server.library.find,
        ),
        client_seconds=settings.client_seconds,
        max_packed_bytes=settings.max_packed_bytes,
        waiting=Patience(
            early_headers_after=settings.early_headers_after_seconds, keep_alive_every=settings.keep_alive_seconds
        ),
        context_size=lambda: server.engine.status.context_size,
        counts_tokens=lambda: server.engine.status.counts_tokens,
        began=partial(_began, server),
    )


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
        keyless=frozenset(profile.keyless) | {route.path for route in page_routes(server)} | _proving(server),
        route_scopes=profile.route_scopes,
        max_body_bytes=settings.max_body_bytes,
        base_url=lambda: server.base_url,
        key_name=KEY_NAME,
        bare_paths=tuple(part for part, route in BARE_PATHS.items() if route in profile.routes),
        takes_x_api_key="anthropic" in profile.error_families.values(),
        unserved=profile.unserved,
        browser_paths={} if server.page is None else BROWSER_PATHS,
        instance=server.instance,
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
    ollama = ollama_generation(server, access, shape_of(shapes, "/api/chat"))
    apis = explainable(chat=chat, completions=completions, responses=responses, messages=messages, ollama=ollama)
    return [
        *(route for route in device.routes() if server.page is None or route.path != "/"),
        *chat.routes(),
        *completions.routes(),
        *messages.routes(),
        *responses.routes(),
        *([] if ollama is None else ollama_routes(server, ollama)),
        *EmbeddingsRoute(access=access).routes(),
        *Explain(access=access, apis=apis).routes(),
    ]


def _proving(server: Server) -> set[str]:
    """Routes on which a key is proved in another way."""
    return set() if server.room_host is None else {PATH}


def page_routes(server: Server) -> list[web.RouteDef]:
    """What browsers get, where the profile has a page; `/` then answers both them and programs."""
    if server.page is None:
        return []
    shape = ROOT[server.effective.profile.root]
    everybody = PageRoutes(page=server.page, plain=lambda: shape(server.view()))
    return [*everybody.routes(), *OwnerRoutes(page=server.page).routes()]


def ollama_generation(server: Server, access: ModelAccess, errors: ErrorTable) -> OllamaGeneration | None:
    """The part of Ollama's API that answers; it needs to know what is installed."""
    if server.library is None:
        return None
    models = OllamaModels(access=access, library=server.library, examine=server.examine)
    return OllamaGeneration(models=models, errors=errors, shorten=newest_that_fit)


def ollama_routes(server: Server, generation: OllamaGeneration) -> list[web.RouteDef]:
    """Ollama's whole API."""
    models, errors = generation.models, generation.errors
    return [
        *generation.routes(),
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


def record(server: Server, exchange: Exchange) -> None:
    """One line in the log and one count in the metrics for every request, however it ended."""
    answer = exchange.answer
    status, error = exchange.status, exchange.error
    server.metrics.observe_request(route=exchange.route, status=status, error=error, key=exchange.key_name)
    if answer.model is not None:
        if status < 300 and error is None:
            server.served += 1
        if answer.time_to_first_token is not None:
            server.metrics.observe_answer(
                model=answer.model,
                usage=answer.usage,
                timings=answer.timings,
                time_to_first_token=answer.time_to_first_token,
                seconds=exchange.seconds,
                tokens=answer.tokens,
            )
    server.activity.ended(exchange)
    if status >= 400 or not is_page_view(exchange.method, exchange.path):
        server.log.request(_line(exchange))
    if server.simulator is not None:
        server.simulator.ended(exchange.request_id, status, error, exchange.seconds)
    if server.on_exchange is not None:
        server.on_exchange(exchange)


def _began(server: Server, request: web.Request, answer: Answer, key: str | None) -> None:
    """A request asks for the model; it may have to wait."""
    server.activity.began(answer.request_id, key, request.remote or "", answer)


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
