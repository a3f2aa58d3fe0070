"""`POST /v1/chat/completions`, the body: from OpenAI's fields to a GenerationRequest.

Source: the OpenAI API reference, "Create chat completion". Unknown fields are ignored, `null` means absent.
"""

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import msgspec

from pocketserver.chat import (
    AnyJsonObject,
    Constraint,
    GenerationRequest,
    JsonSchema,
    JsonValue,
)
from pocketserver.errors import Refusal
from pocketserver.wire import json_body, openai_messages, openai_tools
from pocketserver.wire.json_body import invalid
from pocketserver.wire.openai_sampling import (
    MOST_TOKENS,
    Defaults,
    SamplingFields,
    in_range,
    sampling,
    shown,
    stop_texts,
)
from pocketserver.wire.openai_tools import FUNCTION_NAME

MAX_CHOICES = 8
_UNSUPPORTED: Mapping[str, str] = {
    "functions": "use `tools`",
    "function_call": "use `tool_choice`",
    "audio": "this server writes text only",
    "web_search_options": "this server does not search the web",
    "moderation": "this server does not moderate",
}
_NONE_GIVEN = (None,) * len(_UNSUPPORTED)
_unsupported = attrgetter(*_UNSUPPORTED)
_EFFORTS = frozenset({"none", "minimal", "low", "medium", "high", "xhigh", "max"})


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


class Body(SamplingFields, frozen=True, kw_only=True):
    """The fields that are read. Everything else in the body is somebody else's extension."""

    messages: list[dict[str, Any]]
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
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


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed request. `model` is the name as the client wrote it. `choices` is how many answers are wanted.

    `max_tokens_field` is the one that limits the answer, None where the client set no limit.
    """

    model: str | None
    request: GenerationRequest
    choices: int
    stream: bool
    include_usage: bool
    max_tokens_field: str | None = None


def parse(data: bytes, *, request_id: str, defaults: Defaults) -> Asked:
    """Read and check a whole body. Raises Refusal with the code and the field at fault."""
    body = json_body.decode(data, Body, required="messages")
    _refuse_unsupported(body)
    tools = openai_tools.tools(body.tools)
    request = GenerationRequest(
        id=request_id,
        model="",
        messages=openai_messages.messages(body.messages),
        sampling=sampling(body, defaults),
        max_tokens=_max_tokens(body, defaults),
        stop=stop_texts(body.stop, defaults),
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
        max_tokens_field=_limit_field(body),
    )


def _refuse_unsupported(body: Body) -> None:
    """Refuse what would change the answer and cannot be done. Nothing of this kind is dropped silently."""
    given = _unsupported(body)
    if given != _NONE_GIVEN:
        name = next(name for name, value in zip(_UNSUPPORTED, given, strict=True) if value is not None)
        raise invalid(name, f"`{name}` is not supported; {_UNSUPPORTED[name]}.")
    if body.modalities is not None and body.modalities != ["text"]:
        raise invalid("modalities", '`modalities` can only be ["text"]: this server writes text only.')


def _choices(given: int | None) -> int:
    if given is not None and not 1 <= given <= MAX_CHOICES:
        raise invalid("n", f"`n` must be from 1 to {MAX_CHOICES}: the choices are written one after another.")
    return given or 1


def _max_tokens(body: Body, defaults: Defaults) -> int:
    """The newer name wins. A huge value is a safety limit of the client's, not an error."""
    newer, older = body.max_completion_tokens, body.max_tokens
    if newer is not None and newer < 1:
        raise _no_limit("max_completion_tokens", newer)
    if older is not None and older < 1:
        raise _no_limit("max_tokens", older)
    return min(newer or older or defaults.max_tokens, MOST_TOKENS)


def _no_limit(name: str, value: int) -> Refusal:
    return invalid(name, f"`{name}` must be 1 or more, not {shown(value)}.")


def _limit_field(body: Body) -> str | None:
    if body.max_completion_tokens is not None:
        return "max_completion_tokens"
    return "max_tokens" if body.max_tokens is not None else None


def _top_logprobs(body: Body) -> int | None:
    if body.top_logprobs is not None:
        in_range("top_logprobs", body.top_logprobs, 0, 20, 0)
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
