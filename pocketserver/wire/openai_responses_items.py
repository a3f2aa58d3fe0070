"""Input items of the Responses API: checked and brought to one form, in which they are also kept and listed.

Source: the OpenAI API reference, "Create a model response", `input`, and the Open Responses specification. The turns
that a model reads are made of these items by `openai_responses_turns`.
"""

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from pocketserver.chat import JsonValue, Role
from pocketserver.wire.json_body import invalid

MAX_ITEMS = 10_000
ROLES: Mapping[str, Role] = {
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
}
_MEDIA = frozenset(
    {"input_image", "input_file", "input_audio", "input_video", "image", "image_url", "file", "audio", "video"}
)
_TEXTS = frozenset({"input_text", "output_text", "text"})
_SEALED = "pocketserver-reasoning-1:"

Item: TypeAlias = dict[str, JsonValue]
Mint: TypeAlias = Callable[[str], str]
"""Makes an id that begins with this prefix."""
Resolve: TypeAlias = Callable[[str], Item | None]
"""Finds a stored item by its id."""
Warn: TypeAlias = Callable[[str, str], None]


def sealed(text: str) -> str:
    """Reasoning as the opaque string that clients send back (`encrypted_content`). It hides nothing."""
    return _SEALED + base64.urlsafe_b64encode(text.encode()).decode()


def unsealed(given: JsonValue) -> str:
    """The reasoning in a string of `sealed`; empty for anybody else's."""
    if not isinstance(given, str) or not given.startswith(_SEALED):
        return ""
    try:
        return base64.urlsafe_b64decode(given.removeprefix(_SEALED)).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""


def items(given: str | list[dict[str, Any]], *, mint: Mint, resolve: Resolve, warn: Warn) -> tuple[Item, ...]:
    """Every item in the form in which the API lists items. Raises Refusal at the first that cannot be read."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if len(given) > MAX_ITEMS:
        raise invalid("input", f"`input` has {len(given)} items; at most {MAX_ITEMS} are taken.")
    reader = _Reader(mint=mint, resolve=resolve, warn=warn)
    read = (reader.read(item, f"input[{index}]") for index, item in enumerate(given))
    return tuple(item for item in read if item is not None)


class _Reader:
    def __init__(self, *, mint: Mint, resolve: Resolve, warn: Warn) -> None:
        self._mint = mint
        self._resolve = resolve
        self._warn = warn

    def read(self, given: Item, place: str) -> Item | None:
        """The item, or None for one that says nothing to this model."""
        kind = given.get("type")
        if kind is None:
            kind = "message" if "role" in given or "content" in given else "item_reference"
        read = _KINDS.get(kind) if isinstance(kind, str) else None
        if read is None:
            raise invalid(f"{place}.type", f"`{place}` is of type {str(kind)[:40]!r}, which this server cannot read.")
        return read(self, given, place)

    def message(self, given: Item, place: str) -> Item:
        role = given.get("role")
        if not isinstance(role, str) or role not in ROLES:
            raise invalid(f"{place}.role", f"`{place}.role` must be one of {', '.join(ROLES)}.")
        kept: Item = {"id": self._id(given, "msg_"), "type": "message", "status": _status(given), "role": role}
        kept["content"] = _message_parts(given.get("content"), role, f"{place}.content")
        if isinstance(given.get("phase"), str):
            kept["phase"] = given["phase"]
        return kept

    def function_call(self, given: Item, place: str) -> Item:
        kept = self._call(given, place, "function_call", "fc_")
        arguments = given.get("arguments")
        if not isinstance(arguments, str):
            raise invalid(f"{place}.arguments", f"`{place}.arguments` must be JSON text.")
        kept["arguments"] = arguments
        if kept["status"] == "completed" and not _is_object(arguments or "{}"):
            raise invalid(f"{place}.arguments", f"`{place}.arguments` must be the text of a JSON object.")
        return kept

    def custom_tool_call(self, given: Item, place: str) -> Item:
        kept = self._call(given, place, "custom_tool_call", "ctc_")
        kept["input"] = _string(given.get("input"), f"{place}.input")
        return kept

    def call_output(self, given: Item, place: str) -> Item:
        kept: Item = {"id": self._id(given, "fco_"), "type": given["type"], "status": _status(given)}
        kept["call_id"] = _name(given.get("call_id"), f"{place}.call_id")
        kept["output"] = _output(given.get("output"), f"{place}.output")
        if isinstance(given.get("name"), str):
            kept["name"] = given["name"]
        return kept

    def reasoning(self, given: Item, _place: str) -> Item:
        """Whatever a client sends back of it is taken: it may be another server's, with nothing to read in it."""
        kept: Item = {"id": self._id(given, "rs_"), "type": "reasoning", "status": _status(given)}
        kept["summary"] = _texts_of(given.get("summary"), "summary_text")
        content = _texts_of(given.get("content"), "reasoning_text")
        if content:
            kept["content"] = content
        if isinstance(given.get("encrypted_content"), str):
            kept["encrypted_content"] = given["encrypted_content"]
        return kept

    def reference(self, given: Item, place: str) -> Item:
        wanted = _name(given.get("id"), f"{place}.id")
        found = self._resolve(wanted)
        if found is None:
            raise invalid(
                f"{place}.id", f"Item with id {wanted[:80]!r} not found. Send the item itself instead of a reference."
            )
        return found

    def skipped(self, given: Item, place: str) -> None:
        self._warn(place, f"{given['type']} was left out")

    def _call(self, given: Item, place: str, kind: str, prefix: str) -> Item:
        kept: Item = {"id": self._id(given, prefix), "type": kind, "status": _status(given)}
        kept["call_id"] = _name(given.get("call_id"), f"{place}.call_id")
        kept["name"] = _name(given.get("name"), f"{place}.name")
        if isinstance(given.get("namespace"), str):
            kept["namespace"] = given["namespace"]
        return kept

    def _id(self, given: Item, prefix: str) -> str:
        """The client's own id, known to this server or not; a new one where there is none."""
        own = given.get("id")
        return own if isinstance(own, str) and own else self._mint(prefix)


_KINDS: Mapping[str, Callable[[_Reader, Item, str], Item | None]] = {
    "message": _Reader.message,
    "function_call": _Reader.function_call,
    "function_call_output": _Reader.call_output,
    "custom_tool_call": _Reader.custom_tool_call,
    "custom_tool_call_output": _Reader.call_output,
    "reasoning": _Reader.reasoning,
    "item_reference": _Reader.reference,
    "web_search_call": _Reader.skipped,
}


def _status(given: Item) -> str:
    return "incomplete" if given.get("status") == "incomplete" else "completed"


def _message_parts(given: JsonValue, role: str, place: str) -> list[Item]:
    """A message's content as parts; a string is one part, and an assistant may have said nothing."""
    if given is None and role == "assistant":
        return []
    if isinstance(given, str):
        given = [{"type": "text", "text": given}]
    if not isinstance(given, list):
        raise invalid(place, f"`{place}` must be a string or a list of text parts.")
    return [_message_part(part, role, f"{place}[{index}]") for index, part in enumerate(given)]


def _message_part(given: JsonValue, role: str, place: str) -> Item:
    if role == "assistant" and isinstance(given, dict) and given.get("type") == "refusal":
        return {"type": "refusal", "refusal": _string(given.get("refusal"), f"{place}.refusal")}
    text = _text(given, place)
    if role != "assistant":
        return {"type": "input_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _output(given: JsonValue, place: str) -> str | list[Item]:
    if isinstance(given, str):
        return given
    if not isinstance(given, list):
        raise invalid(place, f"`{place}` must be a string or a list of input_text parts.")
    return [{"type": "input_text", "text": _text(part, f"{place}[{index}]")} for index, part in enumerate(given)]


def _text(given: JsonValue, place: str) -> str:
    kind = given.get("type") if isinstance(given, dict) else None
    if isinstance(kind, str) and kind in _MEDIA:
        raise invalid(
            place, f"`{place}` is of type {kind}: this server reads text only. Leave images, audio and files out."
        )
    if not isinstance(kind, str) or kind not in _TEXTS:
        raise invalid(place, f'`{place}` must be {{"type": "input_text", "text": "…"}}.')
    return _string(given.get("text"), f"{place}.text")


def _texts_of(given: JsonValue, kind: str) -> list[Item]:
    parts = given if isinstance(given, list) else []
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return [{"type": kind, "text": text} for text in texts if isinstance(text, str)]


def _string(given: JsonValue, place: str) -> str:
    if not isinstance(given, str):
        raise invalid(place, f"`{place}` must be a string.")
    return given


def _name(given: JsonValue, place: str) -> str:
    if not isinstance(given, str) or not given:
        raise invalid(place, f"`{place}` must be a string that is not empty.")
    return given


def _is_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, RecursionError):
        return False
