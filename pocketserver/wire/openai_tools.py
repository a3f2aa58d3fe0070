"""The tools of an OpenAI chat body, and how freely the model may call them."""

import re
from collections.abc import Mapping
from typing import Any

from pocketserver.chat import JsonValue, Tool, ToolChoice, ToolMode
from pocketserver.wire.json_body import invalid
from pocketserver.wire.openai_messages import optional_text

MAX_TOOLS = 128
FUNCTION_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""What OpenAI admits as the name of a function or a schema."""


_AUTO = {parallel: ToolChoice(parallel=parallel) for parallel in (True, False)}


def tools(given: list[dict[str, Any]] | None) -> tuple[Tool, ...]:
    if not given:
        return ()
    if len(given) > MAX_TOOLS:
        raise invalid("tools", f"`tools` has {len(given)} entries; at most {MAX_TOOLS} are taken.")
    found = tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(given))
    if len({tool.name for tool in found}) != len(found):
        raise invalid("tools", "`tools` names a function twice.")
    return found


def _tool(given: Mapping[str, JsonValue], place: str) -> Tool:
    function = given.get("function")
    if given.get("type") != "function" or not isinstance(function, dict):
        raise invalid(
            place, f'`{place}` must be {{"type": "function", "function": {{…}}}}; other kinds do not run here.'
        )
    name, description = function.get("name"), function.get("description")
    if not isinstance(name, str) or not FUNCTION_NAME.fullmatch(name):
        raise invalid(f"{place}.function.name", f"`{place}.function.name` must be 1 to 64 of a-z, A-Z, 0-9, _ and -.")
    return Tool(
        name=name,
        description=optional_text(description, f"{place}.function.description") or "",
        parameters=parameters_schema(function.get("parameters"), f"{place}.function.parameters"),
        strict=function.get("strict") is True,
    )


def parameters_schema(given: JsonValue, place: str) -> dict[str, JsonValue]:
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


def tool_choice(given: str | dict[str, Any] | None, tools: tuple[Tool, ...], *, parallel: bool) -> ToolChoice:
    if given is None or given == "auto":
        return _AUTO[parallel]
    if given == "none":
        return ToolChoice(mode=ToolMode.NONE, parallel=parallel)
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
