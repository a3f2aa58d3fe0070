"""`POST /v1/messages` and `/v1/messages/count_tokens`, the body: from Anthropic's fields to a GenerationRequest.

Source: the Anthropic API reference, "Create a Message" and "Count tokens in a Message". `null` means absent; a field
that is not read is named to `warn`.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Protocol

import msgspec

from pocketserver.chat import Constraint, GenerationRequest, JsonSchema, JsonValue, Message, Role, Sampling, ToolMode
from pocketserver.wire import anthropic_content, anthropic_tools, json_body
from pocketserver.wire.anthropic_tools import Warn
from pocketserver.wire.json_body import invalid
from pocketserver.wire.openai_sampling import in_range, shown

MAX_STOP_SEQUENCES = 64
_MOST_TOKENS = 2**31 - 1
_EFFORTS = frozenset({"low", "medium", "high", "xhigh", "max"})
_USUAL_EFFORT = "medium"
_HOSTED_FIELDS = ("container", "mcp_servers")


class Body(msgspec.Struct, frozen=True):
    """The fields that are read."""

    messages: list[dict[str, Any]]
    model: str | None = None
    max_tokens: int | None = None
    system: str | list[dict[str, Any]] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None
    container: Any = None
    mcp_servers: Any = None


class Defaults(msgspec.Struct, frozen=True, kw_only=True):
    """What a field means that the client left out: the server's settings."""

    temperature: float
    top_p: float
    stop: tuple[str, ...]


class Display(Enum):
    """What becomes of the model's thinking: no block at all, a block, or a block without its text."""

    NONE = "none"
    SHOWN = "shown"
    OMITTED = "omitted"


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed request. `model` is the name as the client wrote it."""

    model: str | None
    request: GenerationRequest
    stream: bool
    display: Display


class Parse(Protocol):
    """How a body is read: `parse` or `parse_count`."""

    def __call__(self, data: bytes, *, request_id: str, defaults: Defaults, drop_hosted: bool, warn: Warn) -> Asked: ...


class _Thinking(msgspec.Struct, frozen=True, kw_only=True):
    display: Display = Display.NONE
    budget: int | None = None


def parse(data: bytes, *, request_id: str, defaults: Defaults, drop_hosted: bool, warn: Warn) -> Asked:
    """Read and check the body of a message to be answered. Raises Refusal with the code and the field at fault."""
    body = json_body.decode(data, Body, required="messages")
    json_body.tell_unread(data, Body, warn)
    if body.max_tokens is None:
        raise invalid("max_tokens", "max_tokens: Field required. Say how many tokens the answer may have.")
    if body.max_tokens < 1:
        raise invalid("max_tokens", f"`max_tokens` must be 1 or more, not {shown(body.max_tokens)}.")
    return _asked(body, request_id=request_id, defaults=defaults, drop_hosted=drop_hosted, warn=warn)


def parse_count(data: bytes, *, request_id: str, defaults: Defaults, drop_hosted: bool, warn: Warn) -> Asked:
    """Read and check a body whose tokens are to be counted: the same without `max_tokens`."""
    body = json_body.decode(data, Body, required="messages")
    json_body.tell_unread(data, Body, warn)
    return _asked(body, request_id=request_id, defaults=defaults, drop_hosted=drop_hosted, warn=warn)


def _asked(body: Body, *, request_id: str, defaults: Defaults, drop_hosted: bool, warn: Warn) -> Asked:
    _refuse_hosted(body)
    tools = anthropic_tools.tools(body.tools or [], drop_hosted=drop_hosted, warn=warn)
    choice = anthropic_tools.tool_choice(body.tool_choice, tools, offered=bool(body.tools))
    thinking = _thinking(body.thinking)
    if choice.mode is ToolMode.REQUIRED and thinking.display is not Display.NONE:
        warn("thinking", "off, because tool_choice forces a call")
        thinking = _Thinking()
    request = GenerationRequest(
        id=request_id,
        model="",
        messages=_messages(body, warn),
        sampling=_sampling(body, defaults),
        max_tokens=min(body.max_tokens or 1, _MOST_TOKENS),
        stop=_stop(body.stop_sequences, defaults),
        tools=tools,
        tool_choice=choice,
        constraint=_constraint(body, warn),
        reasoning_effort=_effort(body.output_config, thinking, warn),
        reasoning_budget=thinking.budget,
    )
    return Asked(model=body.model, request=request, stream=bool(body.stream), display=thinking.display)


def _refuse_hosted(body: Body) -> None:
    for name in _HOSTED_FIELDS:
        if getattr(body, name):
            raise invalid(name, f"`{name}` needs Anthropic's own servers; nothing of that runs here. Leave it out.")


def _messages(body: Body, warn: Warn) -> tuple[Message, ...]:
    system = anthropic_content.system_text(body.system, warn)
    turns = anthropic_content.messages(body.messages, warn)
    return (Message(role=Role.SYSTEM, content=system), *turns) if system else turns


def _sampling(body: Body, defaults: Defaults) -> Sampling:
    return Sampling(
        temperature=in_range("temperature", body.temperature, 0, 1, defaults.temperature),
        top_p=in_range("top_p", body.top_p, 0, 1, defaults.top_p),
        top_k=int(in_range("top_k", body.top_k, 0, 10_000_000, 0)),
    )


def _stop(given: list[str] | None, defaults: Defaults) -> tuple[str, ...]:
    if given is None:
        return defaults.stop
    if len(given) > MAX_STOP_SEQUENCES or any(len(text) > 1000 for text in given):
        raise invalid(
            "stop_sequences",
            f"`stop_sequences` takes at most {MAX_STOP_SEQUENCES} texts of at most 1000 characters.",
        )
    for index, text in enumerate(given):
        if not text.strip():
            place = f"stop_sequences.{index}"
            raise invalid(place, f"`{place}` must hold more than white space.")
    return tuple(given)


def _thinking(given: Mapping[str, JsonValue] | None) -> _Thinking:
    """Absent is off. A model that cannot think answers without it."""
    kind = "disabled" if given is None else given.get("type")
    if kind not in ("disabled", "enabled", "adaptive", "between_tools"):
        raise invalid("thinking.type", "`thinking.type` must be enabled, adaptive, between_tools or disabled.")
    if given is None or kind == "disabled":
        return _Thinking()
    display = given.get("display") or "summarized"
    if display not in ("summarized", "omitted"):
        raise invalid("thinking.display", "`thinking.display` must be summarized or omitted.")
    return _Thinking(
        display=Display.OMITTED if display == "omitted" else Display.SHOWN,
        budget=_budget(given.get("budget_tokens")) if kind == "enabled" else None,
    )


def _budget(given: JsonValue) -> int:
    """Small budgets suit small models: no least is asked for, and one beyond `max_tokens` never ends the thinking."""
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise invalid("thinking.budget_tokens", "`thinking.budget_tokens` must be an integer of 1 or more.")
    return min(given, _MOST_TOKENS)


def _effort(given: Mapping[str, JsonValue] | None, thinking: _Thinking, warn: Warn) -> str:
    effort = (given or {}).get("effort")
    if effort is not None and (not isinstance(effort, str) or effort not in _EFFORTS):
        raise invalid("output_config.effort", f"`output_config.effort` must be one of {', '.join(sorted(_EFFORTS))}.")
    if thinking.display is Display.NONE:
        if effort is not None:
            warn("output_config.effort", "ignored without thinking")
        return "none"
    return effort or _USUAL_EFFORT


def _constraint(body: Body, warn: Warn) -> Constraint | None:
    """`output_format` is the older name of `output_config.format`."""
    newer = (body.output_config or {}).get("format")
    if newer is not None and body.output_format is not None:
        warn("output_format", "ignored beside output_config.format")
    place, given = ("output_config.format", newer) if newer is not None else ("output_format", body.output_format)
    if given is None:
        return None
    if not isinstance(given, dict) or given.get("type") != "json_schema":
        raise invalid(place, f'`{place}` must be {{"type": "json_schema", "schema": {{…}}}}.')
    if not isinstance(given.get("schema"), dict):
        raise invalid(f"{place}.schema", f"`{place}.schema` must be a JSON Schema object.")
    return JsonSchema(schema=given["schema"], strict=True)
