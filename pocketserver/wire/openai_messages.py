"""The conversation of an OpenAI chat body: roles, content parts, earlier tool calls and their results."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from pocketserver.chat import JsonValue, Message, Role, ToolCall
from pocketserver.wire.json_body import invalid

MAX_MESSAGES = 10_000
_ROLES: Mapping[str, Role] = {**{role.value: role for role in Role}, "developer": Role.SYSTEM}
_MEDIA = frozenset(
    {"image_url", "input_audio", "file", "video_url", "input_video", "audio_url", "input_image", "image"}
)


def messages(given: list[dict[str, Any]]) -> tuple[Message, ...]:
    if not given:
        raise invalid("messages", "`messages` is empty. Send at least one message.")
    if len(given) > MAX_MESSAGES:
        raise invalid("messages", f"`messages` has {len(given)} entries; at most {MAX_MESSAGES} are taken.")
    return tuple([_message(message, f"messages[{index}]") for index, message in enumerate(given)])


def _message(given: Mapping[str, JsonValue], place: str) -> Message:
    role = _role(given.get("role"), place)
    calls = _tool_calls(given.get("tool_calls"), place) if role is Role.ASSISTANT else ()
    return Message(
        role=role,
        content=_content(given.get("content"), role, place),
        name=optional_text(given.get("name"), f"{place}.name"),
        tool_calls=calls,
        tool_call_id=optional_text(given.get("tool_call_id"), f"{place}.tool_call_id"),
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


def optional_text(given: JsonValue, place: str) -> str | None:
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
    call_id = optional_text(given.get("id"), f"{place}.id")
    return ToolCall(id=call_id or f"call_{index}", name=name, arguments=_object_text(arguments or "{}", place))


def _object_text(arguments: str, place: str) -> str:
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise invalid(f"{place}.function.arguments", f"`{place}.function.arguments` must be the text of a JSON object.")
    return arguments
