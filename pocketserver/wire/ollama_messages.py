"""The conversation and the tools of an Ollama chat body.

Tool results of old clients carry no name: they belong to the calls before them, in order.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pocketserver.chat import JsonValue, Message, Role, Tool, ToolCall
from pocketserver.errors import Refusal
from pocketserver.wire.json_body import invalid

MAX_MESSAGES = 10_000
MAX_TOOLS = 128
_LONGEST_TOOL_NAME = 128
_ROLES: Mapping[str, Role] = {**{role.value: role for role in Role}, "developer": Role.SYSTEM}


def messages(given: Sequence[Mapping[str, JsonValue]]) -> tuple[Message, ...]:
    """Raises Refusal that names the message and its field."""
    if len(given) > MAX_MESSAGES:
        raise invalid("messages", f"messages has {len(given)} entries; at most {MAX_MESSAGES} are taken")
    reader = _Conversation()
    return tuple(reader.message(message, f"messages[{index}]") for index, message in enumerate(given))


def no_images(given: JsonValue, place: str = "images") -> None:
    if given:
        raise invalid(place, f"{place}: this server reads text only, it cannot look at images. Leave `images` out.")


class _Conversation:
    """Gives calls without an id one, and results the id of the call that they answer."""

    def __init__(self) -> None:
        self._calls = 0
        self._open: list[ToolCall] = []

    def message(self, given: Mapping[str, JsonValue], place: str) -> Message:
        role = _role(given.get("role"), place)
        no_images(given.get("images"), f"{place}.images")
        content = _text(given.get("content"), f"{place}.content") or ""
        if role is Role.TOOL:
            return self._result(given, content, place)
        if role is not Role.ASSISTANT:
            return Message(role=role, content=content)
        calls = self._tool_calls(given.get("tool_calls"), place)
        self._open = list(calls)
        thinking = _text(given.get("thinking"), f"{place}.thinking")
        return Message(role=role, content=content, tool_calls=calls, reasoning=thinking or None)

    def _result(self, given: Mapping[str, JsonValue], content: str, place: str) -> Message:
        name = _text(given.get("tool_name"), f"{place}.tool_name") or _text(given.get("name"), f"{place}.name")
        call_id = _text(given.get("tool_call_id"), f"{place}.tool_call_id")
        call = self._answered(name, call_id)
        if call is not None:
            self._open.remove(call)
            name, call_id = name or call.name, call_id or call.id
        return Message(role=Role.TOOL, content=content, name=name or None, tool_call_id=call_id or None)

    def _answered(self, name: str | None, call_id: str | None) -> ToolCall | None:
        for call in self._open:
            if call_id:
                if call.id == call_id:
                    return call
            elif not name or call.name == name:
                return call
        return None

    def _tool_calls(self, given: JsonValue, place: str) -> tuple[ToolCall, ...]:
        if given is None:
            return ()
        if not isinstance(given, list):
            raise invalid(f"{place}.tool_calls", f"{place}.tool_calls must be a list")
        return tuple(self._tool_call(call, f"{place}.tool_calls[{index}]") for index, call in enumerate(given))

    def _tool_call(self, given: JsonValue, place: str) -> ToolCall:
        function = given.get("function") if isinstance(given, dict) else None
        if not isinstance(function, dict):
            raise invalid(place, f'{place} must be {{"function": {{"name": "…", "arguments": {{…}}}}}}')
        name = _text(function.get("name"), f"{place}.function.name")
        if not name:
            raise invalid(f"{place}.function.name", f"{place}.function.name is missing")
        self._calls += 1
        return ToolCall(
            id=_text(given.get("id"), f"{place}.id") or f"call_{self._calls}",
            name=name,
            arguments=_arguments(function.get("arguments"), f"{place}.function.arguments"),
        )


def _role(given: JsonValue, place: str) -> Role:
    role = _ROLES.get(given.lower()) if isinstance(given, str) else None
    if role is None:
        raise invalid(f"{place}.role", f"{place}.role must be one of {', '.join(sorted(_ROLES))}")
    return role


def _text(given: JsonValue, place: str) -> str | None:
    if given is None or isinstance(given, str):
        return given
    raise invalid(place, f"{place} must be a string")


def _arguments(given: JsonValue, place: str) -> str:
    """Objects are the rule; clients that carry histories over from OpenAI's API send the text of one."""
    if given is None or given == "":
        return "{}"
    if isinstance(given, dict):
        return json.dumps(given, ensure_ascii=False)
    try:
        value = msgspec.json.decode(given) if isinstance(given, str) else None
    except (msgspec.DecodeError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise invalid(place, f"{place} must be a JSON object")
    return str(given)


def tools(given: Sequence[Mapping[str, JsonValue]]) -> tuple[Tool, ...]:
    """The functions that the model may call. Raises Refusal that names the tool and its field."""
    if len(given) > MAX_TOOLS:
        raise invalid("tools", f"tools has {len(given)} entries; at most {MAX_TOOLS} are taken")
    found = tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(given))
    if len({tool.name for tool in found}) != len(found):
        raise invalid("tools", "tools names a function twice")
    return found


def _tool(given: Mapping[str, JsonValue], place: str) -> Tool:
    function = given.get("function")
    if given.get("type", "function") != "function" or not isinstance(function, dict):
        raise invalid(place, f'{place} must be {{"type": "function", "function": {{…}}}}')
    name = _text(function.get("name"), f"{place}.function.name")
    if not name or len(name) > _LONGEST_TOOL_NAME or not name.isprintable():
        raise invalid(f"{place}.function.name", f"{place}.function.name must be 1 to {_LONGEST_TOOL_NAME} characters")
    return Tool(
        name=name,
        description=_text(function.get("description"), f"{place}.function.description") or "",
        parameters=_parameters(function.get("parameters"), f"{place}.function.parameters"),
    )


def _parameters(given: JsonValue, place: str) -> dict[str, Any]:
    """Absent, null and empty parameters are a function without any; PHP clients write an empty map as []."""
    if given is None or given == []:
        return {}
    if not isinstance(given, dict):
        raise _not_object(place)
    schema = {key: value for key, value in given.items() if not (key == "required" and value is None)}
    if schema.get("properties") in ([], None):
        schema.pop("properties", None)
    if not isinstance(schema.get("properties", {}), dict):
        raise _not_object(f"{place}.properties")
    return schema


def _not_object(place: str) -> Refusal:
    return invalid(place, f"{place} must be an object")
