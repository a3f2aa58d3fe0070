"""The tools of an Anthropic body, and how freely the model may call them."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from pocketserver.chat import JsonValue, Tool, ToolChoice, ToolMode
from pocketserver.wire.json_body import invalid

MAX_TOOLS = 1024
TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
"""What Anthropic admits as the name of a tool."""
HOSTED = (
    "web_search_", "web_fetch_", "code_execution_", "tool_search_tool_", "mcp_toolset", "advisor_",
    "bash_", "text_editor_", "memory_", "computer_", "browser_toolset_",
)  # fmt: skip
"""How the types of tools begin that run on Anthropic's servers, or whose schema only Anthropic's models know."""
_READ = frozenset({"type", "name", "description", "input_schema", "strict"})

Warn = Callable[[str, str], None]
"""Told of a field and of what became of it, when that is not what was asked."""


def tools(given: list[dict[str, Any]], *, drop_hosted: bool, warn: Warn) -> tuple[Tool, ...]:
    """Client tools. Hosted ones are refused, or left out with a warning where `drop_hosted`."""
    if len(given) > MAX_TOOLS:
        raise invalid("tools", f"`tools` has {len(given)} entries; at most {MAX_TOOLS} are taken.")
    found = tuple(
        _tool(tool, f"tools.{index}", warn)
        for index, tool in enumerate(given)
        if not (_is_hosted(tool.get("type"), f"tools.{index}") and _dropped(tool, index, drop_hosted, warn))
    )
    if len({tool.name for tool in found}) != len(found):
        raise invalid("tools", "`tools` names a tool twice.")
    return found


def _is_hosted(kind: JsonValue, place: str) -> bool:
    if kind is None or kind == "custom":
        return False
    if isinstance(kind, str) and kind.startswith(HOSTED):
        return True
    raise invalid(f"{place}.type", f"`{place}.type` must be custom or absent: this server knows no other kind of tool.")


def _dropped(given: Mapping[str, JsonValue], index: int, drop_hosted: bool, warn: Warn) -> bool:
    kind, place = given["type"][:80], f"tools.{index}"
    if not drop_hosted:
        raise invalid(
            place,
            f"`{place}` is of type {kind}: such tools run on Anthropic's servers or belong to its models, not to this"
            " one. Leave it out, or offer a tool of your own with an input_schema.",
        )
    warn(place, f"{kind} does not run here and was dropped")
    return True


def _tool(given: Mapping[str, JsonValue], place: str, warn: Warn) -> Tool:
    name, description = given.get("name"), given.get("description")
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        raise invalid(f"{place}.name", f"`{place}.name` must be 1 to 128 of a-z, A-Z, 0-9, _ and -.")
    if description is not None and not isinstance(description, str):
        raise invalid(f"{place}.description", f"`{place}.description` must be a string.")
    for field, value in given.items():
        if value and field not in _READ:
            warn(f"tools.{field[:80]}", "ignored")
    return Tool(
        name=name,
        description=description or "",
        parameters=_schema(given.get("input_schema"), f"{place}.input_schema"),
        strict=given.get("strict") is True,
    )


def _schema(given: JsonValue, place: str) -> dict[str, JsonValue]:
    """PHP clients write empty properties as []."""
    if not isinstance(given, dict):
        raise invalid(place, f'`{place}` must be a JSON Schema object, {{"type": "object", …}}.')
    if given.get("type", "object") != "object":
        raise invalid(f"{place}.type", f'`{place}.type` must be "object".')
    schema = {key: value for key, value in given.items() if not (key == "required" and value is None)}
    if schema.get("properties") == []:
        schema["properties"] = {}
    if not isinstance(schema.get("properties", {}), dict):
        raise invalid(f"{place}.properties", f"`{place}.properties` must be an object.")
    return schema


def tool_choice(given: Mapping[str, JsonValue] | None, tools: tuple[Tool, ...], *, offered: bool) -> ToolChoice:
    """`offered` is whether the body had tools, even if none was kept."""
    if given is None:
        return ToolChoice()
    if not offered:
        raise invalid("tool_choice", "`tool_choice` may only be sent together with `tools`.")
    kind, parallel = given.get("type"), given.get("disable_parallel_tool_use") is not True
    if kind in ("auto", "none"):
        return ToolChoice(mode=ToolMode(kind), parallel=parallel)
    if kind not in ("any", "tool"):
        raise invalid("tool_choice.type", "`tool_choice.type` must be auto, any, tool or none.")
    if not tools:
        raise invalid("tool_choice", "`tool_choice` asks for a call, but none of `tools` can be called here.")
    return ToolChoice(mode=ToolMode.REQUIRED, parallel=parallel) if kind == "any" else _named(given.get("name"), tools)


def _named(name: JsonValue, tools: tuple[Tool, ...]) -> ToolChoice:
    if not isinstance(name, str):
        raise invalid("tool_choice.name", "`tool_choice.name` must name one of `tools`.")
    if name not in {tool.name for tool in tools}:
        raise invalid("tool_choice.name", f"`tool_choice` names {name[:128]!a}, which is not among `tools`.")
    return ToolChoice(mode=ToolMode.REQUIRED, name=name, parallel=False)
