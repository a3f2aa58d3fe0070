"""`POST /v1/chat/completions`, the body: from OpenAI's fields to a GenerationRequest.

Source: the OpenAI API reference, "Create chat completion". Unknown fields are ignored, `null` means absent.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from pocketserver.chat import (
    AnyJsonObject,
    Constraint,
    GenerationRequest,
    JsonSchema,
    JsonValue,
    Message,
    Role,
    Sampling,
    Tool,
    ToolCall,
    ToolChoice,
    ToolMode,
)
from pocketserver.errors import Code, Refusal
from pocketserver.wire import json_body
from pocketserver.wire.json_body import invalid

MAX_MESSAGES = 10_000
MAX_TOOLS = 128
MAX_STOP = 64
MAX_CHOICES = 8
_MOST_TOKENS = 2**31 - 1
_LARGEST_SHOWN = 10**15
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ROLES: Mapping[str, Role] = {**{role.value: role for role in Role}, "developer": Role.SYSTEM}
_EFFORTS = frozenset({"none", "minimal", "low", "medium", "high", "xhigh", "max"})
_MEDIA = frozenset(
    {"image_url", "input_audio", "file", "video_url", "input_video", "audio_url", "input_image", "image"}
)


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
    tools = _tools(body.tools or [])
    request = GenerationRequest(
        id=request_id,
        model="",
        messages=_messages(body.messages),
        sampling=_sampling(body, defaults),
        max_tokens=_max_tokens(body, defaults),
        stop=_stop(body.stop, defaults),
        tools=tools,
        tool_choice=_tool_choice(body, tools),
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


def _messages(given: list[dict[str, Any]]) -> tuple[Message, ...]:
    if not given:
        raise invalid("messages", "`messages` is empty. Send at least one message.")
    if len(given) > MAX_MESSAGES:
        raise invalid("messages", f"`messages` has {len(given)} entries; at most {MAX_MESSAGES} are taken.")
    return tuple(_message(message, f"messages[{index}]") for index, message in enumerate(given))


def _message(given: Mapping[str, JsonValue], place: str) -> Message:
    role = _role(given.get("role"), place)
    calls = _tool_calls(given.get("tool_calls"), place) if role is Role.ASSISTANT else ()
    return Message(
        role=role,
        content=_content(given.get("content"), role, place),
        name=_optional_text(given.get("name"), f"{place}.name"),
        tool_calls=calls,
        tool_call_id=_optional_text(given.get("tool_call_id"), f"{place}.tool_call_id"),
        reasoning=_reasoning(given) if role is Role.ASSISTANT else None,
    )


def _role(given: JsonValue, place: str) -> Role:
    role = _ROLES.get(given) if isinstance(given, str) else None
    if role is None:
        raise invalid(f"{place}.role", f"`{place}.role` must be one of {', '.join(sorted(_ROLES))}.")
    return role


def _content(given: JsonValue, role: Role, place: str) -> str:
    if isinstance(given, str):
        return given
    if given is None:
        if role is Role.ASSISTANT:
            return ""
        raise invalid(f"{place}.content", f"`{place}.content` must be a string or a list of text parts.")
    if not isinstance(given, list):
        raise invalid(f"{place}.content", f"`{place}.content` must be a string or a list of text parts.")
    return "\n".join(_part(part, f"{place}.content[{index}]") for index, part in enumerate(given))


def _part(given: JsonValue, place: str) -> str:
    kind = given.get("type") if isinstance(given, dict) else None
    if not isinstance(kind, str):
        raise invalid(place, f'`{place}` must be {{"type": "text", "text": "…"}}.')
    if kind in {"text", "refusal"} and isinstance(given.get(kind), str):
        return str(given[kind])
    if kind in {"thinking", "reasoning"}:
        return ""
    if kind in _MEDIA:
        raise invalid(place, f"`{place}` is of type {kind}: this server reads text only. Leave images and audio out.")
    raise invalid(place, f'`{place}` must be {{"type": "text", "text": "…"}}.')


def _optional_text(given: JsonValue, place: str) -> str | None:
    if given is None or isinstance(given, str):
        return given
    raise invalid(place, f"`{place}` must be a string.")


def _reasoning(given: Mapping[str, JsonValue]) -> str | None:
    """Both names that clients send back; `reasoning_content` is the more common one."""
    for key in ("reasoning_content", "reasoning"):
        if isinstance(given.get(key), str):
            return str(given[key])
    return None


def _tool_calls(given: JsonValue, place: str) -> tuple[ToolCall, ...]:
    if given is None:
        return ()
    if not isinstance(given, list):
        raise invalid(f"{place}.tool_calls", f"`{place}.tool_calls` must be a list.")
    return tuple(_tool_call(call, f"{place}.tool_calls[{index}]", index) for index, call in enumerate(given))


def _tool_call(given: JsonValue, place: str, index: int) -> ToolCall:
    function = given.get("function") if isinstance(given, dict) else None
    if not isinstance(function, dict) or given.get("type") not in (None, "function"):
        raise invalid(place, f'`{place}` must be {{"id": "…", "type": "function", "function": {{"name": "…", …}}}}.')
    name, arguments = function.get("name"), function.get("arguments", "{}")
    if not isinstance(name, str) or not name:
        raise invalid(f"{place}.function.name", f"`{place}.function.name` must be a string.")
    if isinstance(arguments, dict):
        arguments = json.dumps(arguments, ensure_ascii=False)
    if arguments is not None and not isinstance(arguments, str):
        raise invalid(f"{place}.function.arguments", f"`{place}.function.arguments` must be JSON text.")
    call_id = _optional_text(given.get("id"), f"{place}.id")
    return ToolCall(id=call_id or f"call_{index}", name=name, arguments=_object_text(arguments or "{}", place))


def _object_text(arguments: str, place: str) -> str:
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise invalid(f"{place}.function.arguments", f"`{place}.function.arguments` must be the text of a JSON object.")
    return arguments


def _tools(given: list[dict[str, Any]]) -> tuple[Tool, ...]:
    if len(given) > MAX_TOOLS:
        raise invalid("tools", f"`tools` has {len(given)} entries; at most {MAX_TOOLS} are taken.")
    tools = tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(given))
    if len({tool.name for tool in tools}) != len(tools):
        raise invalid("tools", "`tools` names a function twice.")
    return tools


def _tool(given: Mapping[str, JsonValue], place: str) -> Tool:
    function = given.get("function")
    if given.get("type") != "function" or not isinstance(function, dict):
        raise invalid(
            place, f'`{place}` must be {{"type": "function", "function": {{…}}}}; other kinds do not run here.'
        )
    name, description = function.get("name"), function.get("description")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise invalid(f"{place}.function.name", f"`{place}.function.name` must be 1 to 64 of a-z, A-Z, 0-9, _ and -.")
    return Tool(
        name=name,
        description=_optional_text(description, f"{place}.function.description") or "",
        parameters=_parameters(function.get("parameters"), f"{place}.function.parameters"),
        strict=function.get("strict") is True,
    )


def _parameters(given: JsonValue, place: str) -> dict[str, JsonValue]:
    """Absent, null and empty parameters are a function without any; PHP clients write an empty map as []."""
    if given is None or given == []:
        return {}
    if not isinstance(given, dict):
        raise invalid(place, f"`{place}` must be a JSON Schema object.")
    schema = {key: value for key, value in given.items() if not (key == "required" and value is None)}
    if schema.get("properties") == []:
        schema["properties"] = {}
    if not isinstance(schema.get("properties", {}), dict):
        raise invalid(f"{place}.properties", f"`{place}.properties` must be an object.")
    return schema


def _tool_choice(body: Body, tools: tuple[Tool, ...]) -> ToolChoice:
    parallel = body.parallel_tool_calls is not False
    given = body.tool_choice
    if given is None or given in ("auto", "none"):
        return ToolChoice(mode=ToolMode(given or "auto"), parallel=parallel)
    if not tools:
        raise invalid("tool_choice", "`tool_choice` asks for a call, but `tools` is empty.")
    if given == "required":
        return ToolChoice(mode=ToolMode.REQUIRED, parallel=parallel)
    function = given.get("function") if isinstance(given, dict) and given.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise invalid("tool_choice", "`tool_choice` must be none, auto, required, or name one function.")
    if name not in {tool.name for tool in tools}:
        raise invalid("tool_choice", f"`tool_choice` names {name!r}, which is not among `tools`.")
    return ToolChoice(mode=ToolMode.REQUIRED, name=name, parallel=False)


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
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise invalid(f"{place}.name", f"`{place}.name` must be 1 to 64 of a-z, A-Z, 0-9, _ and -.")
    if not isinstance(schema, dict):
        raise invalid(f"{place}.schema", f"`{place}.schema` must be a JSON Schema object.")
    return JsonSchema(schema=schema, strict=given.get("strict") is True)


def tools_refusal() -> Refusal:
    """For an engine whose model cannot express calls."""
    return Refusal(
        Code.TOOLS_UNSUPPORTED,
        "The loaded model's chat template cannot express tool calls. Leave `tools` out, or load a model that can.",
        param="tools",
    )
