"""`POST /v1/responses`, the body: from the fields of the Responses API to a GenerationRequest.

Source: the OpenAI API reference, "Create a model response"; the Open Responses specification. `null` means absent.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from pocketserver.chat import AnyJsonObject, Constraint, GenerationRequest, JsonSchema, JsonValue, Sampling
from pocketserver.errors import Code, Refusal
from pocketserver.wire import json_body
from pocketserver.wire.json_body import invalid
from pocketserver.wire.openai_responses_items import Warn
from pocketserver.wire.openai_responses_tools import FUNCTION_NAME, Toolbox, toolbox
from pocketserver.wire.openai_sampling import in_range, shown

_MOST_TOKENS = 2**31 - 1
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_SUMMARIES = ("auto", "concise", "detailed")
ENCRYPTED = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"
_INCLUDED = frozenset(
    {
        ENCRYPTED,
        LOGPROBS,
        "web_search_call.results",
        "web_search_call.action.sources",
        "file_search_call.results",
        "message.input_image.image_url",
        "computer_call_output.output.image_url",
        "code_interpreter_call.outputs",
    }
)
_REFUSED: Mapping[str, str] = {
    "background": "this server answers while you wait; leave it out",
    "conversation": "send `input` with the history, or `previous_response_id`",
    "prompt": "prompt templates are kept by OpenAI only; send `instructions` and `input`",
    "context_management": "use `truncation`",
    "moderation": "this server does not moderate",
    "background_options": "this server answers while you wait",
    "access_programs": "this server has none",
    "image": "this server writes text only",
    "response_format": "this API takes `text.format`",
    "functions": "use `tools`",
}
_IGNORED: Mapping[str, str] = {
    "max_tool_calls": "counts tools that servers run themselves, of which there are none here",
    "prompt_cache_retention": "the cache is kept as long as there is room",
    "prompt_cache_options": "the cache needs none",
    "max_tokens": "ignored, this API takes max_output_tokens",
    "max_completion_tokens": "ignored, this API takes max_output_tokens",
    "reasoning_effort": "ignored, this API takes reasoning.effort",
    "messages": "ignored, this API takes input",
    "stop": "ignored, this API has no stop texts",
    "n": "ignored, this API gives one answer",
}


class StreamOptions(msgspec.Struct, frozen=True):
    include_obfuscation: bool | None = None


class Text(msgspec.Struct, frozen=True):
    format: dict[str, Any] | None = None
    verbosity: str | None = None


class Reasoning(msgspec.Struct, frozen=True):
    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None
    context: Any = None
    mode: Any = None


class Body(msgspec.Struct, frozen=True):
    """The fields that are read. Of all others only the names are told back to the client."""

    model: str | None = None
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    text: Text | None = None
    reasoning: Reasoning | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    truncation: str | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    client_metadata: Any = None
    prompt_cache_retention: Any = None
    prompt_cache_options: Any = None
    service_tier: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    background: bool | None = None
    conversation: Any = None
    prompt: Any = None
    context_management: Any = None
    moderation: Any = None
    background_options: Any = None
    access_programs: Any = None
    image: Any = None
    response_format: Any = None
    functions: Any = None


class Defaults(Protocol):
    """What a field means that the client left out: the server's settings, not OpenAI's values."""

    @property
    def max_tokens(self) -> int: ...
    @property
    def temperature(self) -> float: ...
    @property
    def top_p(self) -> float: ...
    @property
    def stop(self) -> tuple[str, ...]: ...


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed request, before its conversation is put together.

    `request` has neither model nor messages yet. `model` is the name as the client wrote it; `input` its items as they
    came. `echo` is what the response object repeats of the request.
    """

    model: str | None
    request: GenerationRequest
    toolbox: Toolbox
    input: str | list[dict[str, Any]]
    instructions: str | None
    previous_response_id: str | None
    store: bool | None
    stream: bool
    truncates: bool
    encrypts: bool
    echo: Mapping[str, JsonValue]


def parse(data: bytes, *, request_id: str, defaults: Defaults, drop_hosted: bool, warn: Warn) -> Asked:
    """Read and check a whole body. Raises Refusal with the code and the field at fault.

    `warn` is told of each field that is not honoured as asked. With `drop_hosted`, tools that cannot run here and
    grammars that cannot be held are among them; without it they are refused.
    """
    body = json_body.decode(data, Body, required="input")
    _check_input(body)
    _refuse_unsupported(body)
    json_body.tell_unread(data, Body, warn, words=_IGNORED)
    _tell_ignored(body, warn)
    box = toolbox(
        body.tools or [],
        body.tool_choice,
        parallel=body.parallel_tool_calls is not False,
        drop_hosted=drop_hosted,
        warn=warn,
    )
    include = _include(body.include or [])
    request = GenerationRequest(
        id=request_id,
        model="",
        sampling=_sampling(body, defaults),
        max_tokens=_max_tokens(body.max_output_tokens, defaults),
        stop=defaults.stop,
        tools=box.tools,
        tool_choice=box.choice,
        constraint=_constraint(body.text),
        top_logprobs=_top_logprobs(body.top_logprobs) if LOGPROBS in include else None,
        reasoning_effort=_reasoning(body.reasoning)["effort"],
        template_arguments=body.chat_template_kwargs or {},
    )
    return Asked(
        model=body.model,
        request=request,
        toolbox=box,
        input=[] if body.input is None else body.input,
        instructions=body.instructions,
        previous_response_id=body.previous_response_id,
        store=body.store,
        stream=bool(body.stream),
        truncates=_truncates(body.truncation),
        encrypts=ENCRYPTED in include,
        echo=_echo(body, box, request),
    )


def _check_input(body: Body) -> None:
    if body.previous_response_id is not None:
        return
    if body.input is None:
        raise Refusal(Code.MALFORMED_REQUEST, "The field `input` is missing.", param="input")
    if not body.input:
        raise invalid("input", "`input` is empty. Send a text or at least one item.")


def _refuse_unsupported(body: Body) -> None:
    """Refuse what would change the answer and cannot be done. Nothing of this kind is dropped silently."""
    for name, hint in _REFUSED.items():
        if getattr(body, name):
            raise invalid(name, f"`{name}` is not supported; {hint}.")


def _tell_ignored(body: Body, warn: Warn) -> None:
    if body.text is not None and body.text.verbosity is not None:
        if body.text.verbosity not in ("low", "medium", "high"):
            raise invalid("text.verbosity", "`text.verbosity` must be low, medium or high.")
        warn("text.verbosity", "ignored")
    if body.service_tier not in (None, "auto", "default"):
        warn("service_tier", "default is used")
    for name in ("context", "mode"):
        if body.reasoning is not None and getattr(body.reasoning, name) is not None:
            warn(f"reasoning.{name}", "ignored")


def _include(given: list[str]) -> frozenset[str]:
    for index, value in enumerate(given):
        if value not in _INCLUDED:
            raise invalid(f"include[{index}]", f"`include[{index}]` must be one of {', '.join(sorted(_INCLUDED))}.")
    return frozenset(given)


def _sampling(body: Body, defaults: Defaults) -> Sampling:
    return Sampling(
        temperature=in_range("temperature", body.temperature, 0, 2, defaults.temperature),
        top_p=in_range("top_p", body.top_p, 0, 1, defaults.top_p),
        top_k=int(in_range("top_k", body.top_k, -1, 10_000_000, 0)),
        min_p=in_range("min_p", body.min_p, 0, 1, 0.0),
        frequency_penalty=in_range("frequency_penalty", body.frequency_penalty, -2, 2, 0.0),
        presence_penalty=in_range("presence_penalty", body.presence_penalty, -2, 2, 0.0),
        seed=None if body.seed is None else body.seed & 0xFFFFFFFF,
    )


def _max_tokens(given: int | None, defaults: Defaults) -> int:
    if given is not None and given < 1:
        raise invalid("max_output_tokens", f"`max_output_tokens` must be 1 or more, not {shown(given)}.")
    return min(given or defaults.max_tokens, _MOST_TOKENS)


def _top_logprobs(given: int | None) -> int:
    return int(in_range("top_logprobs", given, 0, 20, 0))


def _reasoning(given: Reasoning | None) -> dict[str, str | None]:
    """The response object's `reasoning`."""
    given = given or Reasoning()
    if given.effort is not None and given.effort not in _EFFORTS:
        raise invalid("reasoning.effort", f"`reasoning.effort` must be one of {', '.join(_EFFORTS)}.")
    summary = given.summary or given.generate_summary
    if summary is not None and summary not in _SUMMARIES:
        raise invalid("reasoning.summary", f"`reasoning.summary` must be one of {', '.join(_SUMMARIES)}.")
    return {"effort": given.effort, "summary": summary}


def _truncates(given: str | None) -> bool:
    if given not in (None, "auto", "disabled"):
        raise invalid("truncation", "`truncation` must be auto or disabled.")
    return given == "auto"


def _metadata(given: dict[str, str] | None) -> dict[str, str]:
    given = given or {}
    if len(given) > 16 or any(len(key) > 64 or len(value) > 512 for key, value in given.items()):
        raise invalid("metadata", "`metadata` takes 16 pairs, keys of 64 characters and values of 512.")
    return given


def _constraint(text: Text | None) -> Constraint | None:
    given = None if text is None else text.format
    if given is None or given.get("type") == "text":
        return None
    match given.get("type"):
        case "json_object":
            return _json_object(given.get("schema"))
        case "json_schema":
            return _json_schema(given)
        case _:
            raise invalid("text.format.type", "`text.format.type` must be text, json_object or json_schema.")


def _json_object(schema: JsonValue) -> Constraint:
    """`schema` beside json_object is llama-server's form: it is applied, never ignored."""
    if schema is None:
        return AnyJsonObject()
    if not isinstance(schema, dict):
        raise invalid("text.format.schema", "`text.format.schema` must be a JSON Schema object.")
    return JsonSchema(schema=schema, strict=True)


def _json_schema(given: Mapping[str, JsonValue]) -> Constraint:
    name, schema = given.get("name"), given.get("schema")
    if not isinstance(name, str) or not FUNCTION_NAME.fullmatch(name):
        flat = " The form is flat here: `name` and `schema` stand beside `type`." if "json_schema" in given else ""
        raise invalid("text.format.name", f"`text.format.name` must be 1 to 64 of a-z, A-Z, 0-9, _ and -.{flat}")
    if not isinstance(schema, dict):
        raise invalid("text.format.schema", "`text.format.schema` must be a JSON Schema object.")
    return JsonSchema(schema=schema, strict=given.get("strict") is True)


def _echo(body: Body, box: Toolbox, request: GenerationRequest) -> dict[str, JsonValue]:
    """Every key of the response object that repeats the request; Open Responses wants all of them."""
    sampling = request.sampling
    return {
        "background": False,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": _metadata(body.metadata),
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": _reasoning(body.reasoning),
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": body.store is not False,
        "temperature": sampling.temperature,
        "text": _echoed_text(body.text),
        "tool_choice": box.echoed_choice,
        "tools": box.echo,
        "top_logprobs": _top_logprobs(body.top_logprobs),
        "top_p": sampling.top_p,
        "truncation": body.truncation or "disabled",
        "user": body.user,
    }


def _echoed_text(text: Text | None) -> dict[str, JsonValue]:
    given = {"type": "text"} if text is None or text.format is None else text.format
    shown: JsonValue = {"type": given["type"]}
    if given["type"] == "json_schema":
        shown |= {
            "name": given["name"],
            "description": given.get("description"),
            "schema": given["schema"],
            "strict": given.get("strict") is True,
        }
    verbosity = None if text is None else text.verbosity
    return {"format": shown} if verbosity is None else {"format": shown, "verbosity": verbosity}
