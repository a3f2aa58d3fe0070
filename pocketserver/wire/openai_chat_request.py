"""`POST /v1/chat/completions`, the body: from OpenAI's fields to a GenerationRequest.

Source: the OpenAI API reference, "Create chat completion". Unknown fields are ignored, `null` means absent.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from pocketserver.chat import (
    AnyJsonObject,
    Constraint,
    GenerationRequest,
    JsonSchema,
    JsonValue,
    Sampling,
)
from pocketserver.wire import json_body, openai_messages, openai_tools
from pocketserver.wire.json_body import invalid
from pocketserver.wire.openai_tools import FUNCTION_NAME

MAX_STOP = 64
MAX_CHOICES = 8
_MOST_TOKENS = 2**31 - 1
_LARGEST_SHOWN = 10**15
_EFFORTS = frozenset({"none", "minimal", "low", "medium", "high", "xhigh", "max"})


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


class Body(msgspec.Struct, frozen=True):
    """The fields that are read. Everything else in the body is somebody else's extension."""

    messages: list[dict[str, Any]]
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repeat_last_n: int | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    functions: list[Any] | None = None
    function_call: str | dict[str, Any] | None = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None
    web_search_options: dict[str, Any] | None = None
    moderation: dict[str, Any] | None = None


class Defaults(msgspec.Struct, frozen=True, kw_only=True):
    """What a field means that the client left out: the server's settings, not OpenAI's values."""

    max_tokens: int
    temperature: float
    top_p: float
    stop: tuple[str, ...]


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed request. `model` is the name as the client wrote it. `choices` is how many answers are wanted."""

    model: str | None
    request: GenerationRequest
    choices: int
    stream: bool
    include_usage: bool


def parse(data: bytes, *, request_id: str, defaults: Defaults) -> Asked:
    """Read and check a whole body. Raises Refusal with the code and the field at fault."""
    body = json_body.decode(data, Body, required="messages")
    _refuse_unsupported(body)
    tools = openai_tools.tools(body.tools or [])
    request = GenerationRequest(
        id=request_id,
        model="",
        messages=openai_messages.messages(body.messages),
        sampling=_sampling(body, defaults),
        max_tokens=_max_tokens(body, defaults),
        stop=_stop(body.stop, defaults),
        tools=tools,
        tool_choice=openai_tools.tool_choice(body.tool_choice, tools, parallel=body.parallel_tool_calls is not False),
        constraint=_constraint(body.response_format),
        top_logprobs=_top_logprobs(body),
        reasoning_effort=_effort(body.reasoning_effort),
        template_arguments=body.chat_template_kwargs or {},
    )
    options = body.stream_options
    return Asked(
        model=body.model,
        request=request,
        choices=_choices(body.n),
        stream=bool(body.stream),
        include_usage=bool(body.stream and options and options.include_usage),
    )


def _refuse_unsupported(body: Body) -> None:
    """Refuse what would change the answer and cannot be done. Nothing of this kind is dropped silently."""
    for name, hint in (
        ("functions", "use `tools`"),
        ("function_call", "use `tool_choice`"),
        ("audio", "this server writes text only"),
        ("web_search_options", "this server does not search the web"),
        ("moderation", "this server does not moderate"),
    ):
        if getattr(body, name) is not None:
            raise invalid(name, f"`{name}` is not supported; {hint}.")
    if body.modalities is not None and body.modalities != ["text"]:
        raise invalid("modalities", '`modalities` can only be ["text"]: this server writes text only.')


def _choices(given: int | None) -> int:
    if given is not None and not 1 <= given <= MAX_CHOICES:
        raise invalid("n", f"`n` must be from 1 to {MAX_CHOICES}: the choices are written one after another.")
    return given or 1


def _in_range(name: str, value: float | None, low: float, high: float, default: float) -> float:
    if value is None:
        return default
    if not low <= value <= high:
        raise invalid(name, f"`{name}` must be between {low:g} and {high:g}, not {_shown(value)}.")
    return value


def _shown(value: float) -> str:
    """A number for a sentence. JSON's integers have no limit, and the largest are no float."""
    return f"{value:g}" if abs(value) < _LARGEST_SHOWN else "a number that large"


def _sampling(body: Body, defaults: Defaults) -> Sampling:
    return Sampling(
        temperature=_in_range("temperature", body.temperature, 0, 2, defaults.temperature),
        top_p=_in_range("top_p", body.top_p, 0, 1, defaults.top_p),
        top_k=int(_in_range("top_k", body.top_k, -1, 10_000_000, 0)),
        min_p=_in_range("min_p", body.min_p, 0, 1, 0.0),
        typical_p=_in_range("typical_p", body.typical_p, 0, 1, 1.0),
        repeat_penalty=_in_range("repeat_penalty", body.repeat_penalty, 0.01, 10, 1.0),
        frequency_penalty=_in_range("frequency_penalty", body.frequency_penalty, -2, 2, 0.0),
        presence_penalty=_in_range("presence_penalty", body.presence_penalty, -2, 2, 0.0),
        penalty_last_n=int(_in_range("repeat_last_n", body.repeat_last_n, 0, 1_000_000, 64)),
        dry_multiplier=_in_range("dry_multiplier", body.dry_multiplier, 0, 100, 0.0),
        dry_base=_in_range("dry_base", body.dry_base, 1, 10, 1.75),
        dry_allowed_length=int(_in_range("dry_allowed_length", body.dry_allowed_length, 1, 1000, 2)),
        logit_bias=_logit_bias(body.logit_bias or {}),
        seed=None if body.seed is None else body.seed & 0xFFFFFFFF,
    )


def _logit_bias(given: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    biases = []
    for token, bias in given.items():
        if not (token.isascii() and token.isdigit() and len(token) < 10):
            raise invalid("logit_bias", "`logit_bias` maps token ids, written as text, to numbers from -100 to 100.")
        biases.append((int(token), _in_range("logit_bias", bias, -100, 100, 0)))
    return tuple(biases)


def _max_tokens(body: Body, defaults: Defaults) -> int:
    """The newer name wins. A huge value is a safety limit of the client's, not an error."""
    for name in ("max_completion_tokens", "max_tokens"):
        value: int | None = getattr(body, name)
        if value is not None and value < 1:
            raise invalid(name, f"`{name}` must be 1 or more, not {_shown(value)}.")
    wanted = body.max_completion_tokens or body.max_tokens or defaults.max_tokens
    return min(wanted, _MOST_TOKENS)


def _stop(given: str | list[str] | None, defaults: Defaults) -> tuple[str, ...]:
    if given is None:
        return defaults.stop
    stop = (given,) if isinstance(given, str) else tuple(given)
    if len(stop) > MAX_STOP or any(len(text) > 1000 for text in stop):
        raise invalid("stop", f"`stop` takes at most {MAX_STOP} texts of at most 1000 characters.")
    return tuple(text for text in stop if text)


def _top_logprobs(body: Body) -> int | None:
    if body.top_logprobs is not None:
        _in_range("top_logprobs", body.top_logprobs, 0, 20, 0)
        if not body.logprobs:
            raise invalid("top_logprobs", "`top_logprobs` needs `logprobs: true`.")
    return (body.top_logprobs or 0) if body.logprobs else None


def _effort(given: str | None) -> str | None:
    if given is not None and given not in _EFFORTS:
        raise invalid("reasoning_effort", f"`reasoning_effort` must be one of {', '.join(sorted(_EFFORTS))}.")
    return given


def _constraint(given: Mapping[str, JsonValue] | None) -> Constraint | None:
    if given is None or given.get("type") == "text":
        return None
    match given.get("type"):
        case "json_object":
            return _json_object(given.get("schema"))
        case "json_schema":
            return _json_schema(given.get("json_schema"))
        case _:
            raise invalid("response_format.type", "`response_format.type` must be text, json_object or json_schema.")


def _json_object(schema: JsonValue) -> Constraint:
    """`schema` beside json_object is llama-server's form: it is applied, never ignored."""
    if schema is None:
        return AnyJsonObject()
    if not isinstance(schema, dict):
        raise invalid("response_format.schema", "`response_format.schema` must be a JSON Schema object.")
    return JsonSchema(schema=schema, strict=True)


def _json_schema(given: JsonValue) -> Constraint:
    place = "response_format.json_schema"
    if not isinstance(given, dict):
        raise invalid(place, f'`{place}` must be {{"name": "…", "schema": {{…}}}}.')
    name, schema = given.get("name"), given.get("schema")
    if not isinstance(name, str) or not FUNCTION_NAME.fullmatch(name):
        raise invalid(f"{place}.name", f"`{place}.name` must be 1 to 64 of a-z, A-Z, 0-9, _ and -.")
    if not isinstance(schema, dict):
        raise invalid(f"{place}.schema", f"`{place}.schema` must be a JSON Schema object.")
    return JsonSchema(schema=schema, strict=given.get("strict") is True)
