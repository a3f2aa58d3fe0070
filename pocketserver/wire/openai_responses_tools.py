"""The tools of a Responses body: what the model is offered of them, and what a call of each becomes in the answer.

A custom tool takes free text. The model is offered a function with one text, `input`; a grammar of a regular language
becomes that text's pattern, so that whatever holds schemas holds it too.

Source: the OpenAI API reference, "Create a model response", `tools` and `tool_choice`; the Open Responses specification
for `allowed_tools`.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pocketserver.chat import JsonValue, Tool, ToolChoice, ToolMode
from pocketserver.errors import Refusal
from pocketserver.wire.json_body import invalid
from pocketserver.wire.lark_pattern import NotRegular, pattern_of
from pocketserver.wire.openai_responses_items import Warn
from pocketserver.wire.openai_responses_turns import flat_name
from pocketserver.wire.openai_tools import parameters_schema

MAX_TOOLS = 128
FUNCTION_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
HOSTED = frozenset(
    {
        "web_search", "web_search_preview", "file_search", "computer", "computer_use_preview", "code_interpreter",
        "image_generation", "mcp", "local_shell", "shell", "apply_patch", "tool_search", "programmatic_tool_calling",
    }
)  # fmt: skip
"""What only OpenAI's own servers run. Dated names (`web_search_2025_08_26`) begin like one of these."""
_PLACE = re.compile(r"tools\[(\d+)\]\.function\.parameters")


class Offered(msgspec.Struct, frozen=True, kw_only=True):
    """One tool: as the model sees it, what it is to the client, and where in the body it stands."""

    tool: Tool
    name: str
    namespace: str | None = None
    custom: bool = False
    place: str


class Toolbox(msgspec.Struct, frozen=True, kw_only=True):
    """The tools of one request. `echo` and `echoed_choice` are what the response object repeats."""

    offered: tuple[Offered, ...] = ()
    choice: ToolChoice = ToolChoice()
    echo: tuple[JsonValue, ...] = ()
    echoed_choice: JsonValue = "auto"

    @property
    def tools(self) -> tuple[Tool, ...]:
        return tuple(offered.tool for offered in self.offered)

    def called(self, name: str) -> Offered | None:
        """The tool that a call of the model means."""
        return next((offered for offered in self.offered if offered.tool.name == name), None)

    def place_of(self, param: str) -> str:
        """The client's own place for one that an engine named by the list that it was given."""
        found = _PLACE.match(param)
        if found is None or int(found[1]) >= len(self.offered):
            return param
        offered = self.offered[int(found[1])]
        return f"{offered.place}.{'format' if offered.custom else 'parameters'}"


def toolbox(
    given: list[dict[str, Any]],
    choice: JsonValue,
    *,
    parallel: bool,
    drop_hosted: bool,
    warn: Warn,
) -> Toolbox:
    """Read `tools` and `tool_choice`. With `drop_hosted`, what cannot run here is left out with a warning."""
    reader = _Reader(drop_hosted=drop_hosted, warn=warn)
    reader.read_all(given, "tools", namespace=None)
    offered = reader.offered
    if len(offered) > MAX_TOOLS:
        raise invalid("tools", f"`tools` has {len(offered)} entries; at most {MAX_TOOLS} are taken.")
    if len({one.tool.name for one in offered}) != len(offered):
        raise invalid("tools", "`tools` names a tool twice.")
    if drop_hosted:
        choice = _without_hosted(choice, warn)
    chosen, allowed = _choice(choice, offered, parallel=parallel)
    return Toolbox(
        offered=tuple(allowed),
        choice=chosen,
        echo=tuple(reader.echo),
        echoed_choice="auto" if choice is None else choice,
    )


class _Reader:
    def __init__(self, *, drop_hosted: bool, warn: Warn) -> None:
        self.offered: list[Offered] = []
        self.echo: list[JsonValue] = []
        self._drop_hosted = drop_hosted
        self._warn = warn

    def read_all(self, given: Sequence[JsonValue], place: str, *, namespace: str | None) -> None:
        for index, tool in enumerate(given):
            self._read(tool, f"{place}[{index}]", namespace)

    def _read(self, given: JsonValue, place: str, namespace: str | None) -> None:
        if not isinstance(given, dict) or not isinstance(given.get("type"), str):
            raise invalid(place, f'`{place}` must be {{"type": "function", "name": "…", "parameters": {{…}}}}.')
        match given["type"]:
            case "function":
                self._function(given, place, namespace)
            case "custom":
                self._custom(given, place, namespace)
            case "namespace" if namespace is None:
                self._namespace(given, place)
            case kind:
                self._not_here(kind, place)

    def _function(self, given: Mapping[str, JsonValue], place: str, namespace: str | None) -> None:
        if "function" in given and "name" not in given:
            raise invalid(f"{place}.name", f"`{place}` is flat in this API: put `name` and `parameters` beside `type`.")
        name = _tool_name(given, place)
        parameters = parameters_schema(given.get("parameters"), f"{place}.parameters")
        strict = given.get("strict")
        description = _description(given, place)
        tool = Tool(
            name=flat_name(name, namespace),
            description=description or "",
            parameters=parameters,
            strict=strict is not False,
        )
        self.offered.append(Offered(tool=tool, name=name, namespace=namespace, place=place))
        self._echo(
            namespace,
            {
                "type": "function",
                "name": name,
                "description": description,
                "parameters": given.get("parameters"),
                "strict": strict if isinstance(strict, bool) else True,
            },
        )

    def _custom(self, given: Mapping[str, JsonValue], place: str, namespace: str | None) -> None:
        name, description = _tool_name(given, place), _description(given, place)
        wanted = given.get("format") or {"type": "text"}
        text, told = self._input(wanted, f"{place}.format")
        tool = Tool(
            name=flat_name(name, namespace),
            description="\n".join(part for part in (description, told) if part),
            parameters={
                "type": "object",
                "properties": {"input": text},
                "required": ["input"],
                "additionalProperties": False,
            },
            strict=True,
        )
        self.offered.append(Offered(tool=tool, name=name, namespace=namespace, custom=True, place=place))
        self._echo(namespace, {"type": "custom", "name": name, "description": description, "format": wanted})

    def _input(self, wanted: JsonValue, place: str) -> tuple[JsonValue, str]:
        """The schema of a custom tool's text, and what the model is told of its form."""
        kind = wanted.get("type") if isinstance(wanted, dict) else None
        if kind == "text":
            return {"type": "string"}, ""
        if kind != "grammar":
            raise invalid(f"{place}.type", f"`{place}.type` must be text or grammar.")
        syntax, definition = wanted.get("syntax"), wanted.get("definition")
        if not isinstance(definition, str) or not definition:
            raise invalid(f"{place}.definition", f"`{place}.definition` must be the text of a grammar.")
        if syntax == "regex":
            return {"type": "string", "pattern": f"^(?:{definition})$"}, ""
        if syntax != "lark":
            raise invalid(f"{place}.syntax", f"`{place}.syntax` must be lark or regex.")
        return self._lark(definition, place), f"The input must follow this lark grammar:\n{definition}"

    def _lark(self, definition: str, place: str) -> JsonValue:
        try:
            return {"type": "string", "pattern": f"^(?:{pattern_of(definition)})$"}
        except NotRegular as reason:
            if not self._drop_hosted:
                raise invalid(
                    f"{place}.definition",
                    f"This server cannot hold a tool's input to this grammar: it {reason}. Use a grammar without it, or"
                    " leave `format` out.",
                ) from reason
            self._warn(place, f"the model is told of the grammar but not held to it: it {reason}")
        return {"type": "string"}

    def _namespace(self, given: Mapping[str, JsonValue], place: str) -> None:
        name, tools = _tool_name(given, place), given.get("tools")
        if not isinstance(tools, list):
            raise invalid(f"{place}.tools", f"`{place}.tools` must be a list of function and custom tools.")
        self.echo.append({"type": "namespace", "name": name, "description": _description(given, place), "tools": []})
        self.read_all(tools, f"{place}.tools", namespace=name)

    def _not_here(self, kind: str, place: str) -> None:
        known = any(kind == hosted or kind.startswith(hosted + "_") for hosted in HOSTED)
        reason = "runs only on its provider's own servers" if known else "is not known to this server"
        if not self._drop_hosted:
            raise invalid(
                f"{place}.type", f"`{place}`: a tool of type {kind[:60]!r} {reason}. Use function or custom tools."
            )
        self._warn(place, f"{kind[:60]} was dropped")

    def _echo(self, namespace: str | None, tool: JsonValue) -> None:
        (self.echo if namespace is None else self.echo[-1]["tools"]).append(tool)


def _without_hosted(choice: JsonValue, warn: Warn) -> JsonValue:
    """The subset that a choice allows, without the tools that were dropped."""
    tools = choice.get("tools") if isinstance(choice, dict) and choice.get("type") == "allowed_tools" else None
    if not isinstance(tools, list):
        return choice
    left = [tool for tool in tools if not isinstance(tool, dict) or tool.get("type") in ("function", "custom")]
    if len(left) < len(tools):
        warn("tool_choice.tools", "tools that do not run here were dropped")
    return {**choice, "tools": left}


def _choice(given: JsonValue, offered: list[Offered], *, parallel: bool) -> tuple[ToolChoice, list[Offered]]:
    """How freely the model may call, and which tools it is shown: those outside a subset it never hears of."""
    if given is None or given in ("auto", "none"):
        return ToolChoice(mode=ToolMode(given or "auto"), parallel=parallel), offered
    if given == "required":
        return _required(offered, parallel=parallel), offered
    kind = given.get("type") if isinstance(given, dict) else None
    if kind in ("function", "custom"):
        [one] = _named(given, offered, "tool_choice")
        return ToolChoice(mode=ToolMode.REQUIRED, name=one.tool.name, parallel=False), offered
    if kind == "allowed_tools":
        return _allowed(given, offered, parallel=parallel)
    if isinstance(kind, str):
        raise invalid("tool_choice", f"`tool_choice` asks for {kind[:60]!r}, which does not run here.")
    raise invalid("tool_choice", "`tool_choice` must be none, auto, required, or name a tool or allowed tools.")


def _required(offered: list[Offered], *, parallel: bool) -> ToolChoice:
    if not offered:
        raise invalid("tool_choice", "`tool_choice` asks for a call, but there is no tool that can be called here.")
    return ToolChoice(mode=ToolMode.REQUIRED, parallel=parallel)


def _allowed(
    given: Mapping[str, JsonValue], offered: list[Offered], *, parallel: bool
) -> tuple[ToolChoice, list[Offered]]:
    mode, tools = given.get("mode", "auto"), given.get("tools")
    if mode not in ("auto", "required"):
        raise invalid("tool_choice.mode", "`tool_choice.mode` must be auto or required.")
    if not isinstance(tools, list) or not 1 <= len(tools) <= MAX_TOOLS:
        raise invalid("tool_choice.tools", f"`tool_choice.tools` must be a list of 1 to {MAX_TOOLS} tools.")
    wanted = [one for index, tool in enumerate(tools) for one in _named(tool, offered, f"tool_choice.tools[{index}]")]
    allowed = [one for one in offered if one in wanted]
    return ToolChoice(mode=ToolMode(mode), parallel=parallel), allowed


def _named(given: JsonValue, offered: list[Offered], place: str) -> list[Offered]:
    """The one tool that has this type and name."""
    name = given.get("name") if isinstance(given, dict) else None
    namespace = given.get("namespace") if isinstance(given, dict) else None
    if not isinstance(name, str):
        raise invalid(place, f'`{place}` must be {{"type": "function", "name": "…"}}.')
    custom = given.get("type") == "custom"
    for one in offered:
        if one.custom == custom and (name == one.tool.name or (name, namespace) == (one.name, one.namespace)):
            return [one]
    raise invalid(place, f"`{place}` names {name[:80]!r}, which is not among `tools`.")


def _tool_name(given: Mapping[str, JsonValue], place: str) -> str:
    name = given.get("name")
    if not isinstance(name, str) or not FUNCTION_NAME.fullmatch(name):
        raise invalid(f"{place}.name", f"`{place}.name` must be 1 to 64 of a-z, A-Z, 0-9, _ and -.")
    return name


def _description(given: Mapping[str, JsonValue], place: str) -> str | None:
    description = given.get("description")
    if description is None or isinstance(description, str):
        return description
    raise invalid(f"{place}.description", f"`{place}.description` must be a string.")


def refused_here(refusal: Refusal, box: Toolbox) -> Refusal:
    """A refusal of the engine with the place at fault in this API's words."""
    param = refusal.param
    for engines, ours in (("messages", "input"), ("response_format.json_schema.schema", "text.format.schema")):
        if param is not None and param.startswith(engines):
            param = ours
    return Refusal(
        refusal.code,
        refusal.message,
        param=None if param is None else box.place_of(param),
        retry_after=refusal.retry_after,
        details=refusal.details,
        allow=refusal.allow,
    )
