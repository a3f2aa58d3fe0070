"""The conversation of an Anthropic body: system text, turns, and the blocks within a turn.

Source: the Anthropic API reference, "Create a Message". Places are written as Anthropic does: `messages.0.content.1`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pocketserver.chat import JsonValue, Message, Role, ToolCall
from pocketserver.wire.anthropic_tools import Warn
from pocketserver.wire.json_body import invalid

MAX_MESSAGES = 10_000
_ROLES = frozenset({"user", "assistant", "system"})
_MEDIA = frozenset({"image", "document"})
_BILLING = "x-anthropic-billing-header:"


def system_text(given: str | list[dict[str, Any]] | None, warn: Warn) -> str:
    """The system prompt, blocks joined in order.

    A billing line that coding agents put first differs in every request, so it is left out: it says nothing to the
    model, and no two prompts would begin alike.
    """
    if given is None:
        return ""
    blocks = [given] if isinstance(given, str) else list(_texts(given, "system", warn))
    if blocks and blocks[0].startswith(_BILLING):
        warn("system", "the billing line was left out")
        blocks[0] = blocks[0].partition("\n")[2]
    return "\n".join(block for block in blocks if block)


def messages(given: Sequence[Mapping[str, JsonValue]], warn: Warn) -> tuple[Message, ...]:
    """The turns, neighbours of one role joined, tool results as messages of their own before the user's text."""
    if not given:
        raise invalid("messages", "`messages` is empty. Send at least one message.")
    if len(given) > MAX_MESSAGES:
        raise invalid("messages", f"`messages` has {len(given)} entries; at most {MAX_MESSAGES} are taken.")
    made: list[Message] = []
    for index, message in enumerate(given):
        for turn in _turns(message, f"messages.{index}", warn):
            if made and _belong_together(made[-1], turn):
                made[-1] = _joined(made[-1], turn)
            else:
                made.append(turn)
    return tuple(made)


def _turns(given: Mapping[str, JsonValue], place: str, warn: Warn) -> Iterator[Message]:
    role = given.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise invalid(f"{place}.role", f"`{place}.role` must be user, assistant or system.")
    content = given.get("content")
    if role == "system":
        yield Message(role=Role.SYSTEM, content="\n".join(_texts(content, f"{place}.content", warn)))
        return
    turn = _Turn(role=Role(role), warn=warn)
    if isinstance(content, str):
        turn.text.append(content)
    else:
        for block, block_place in _blocks(content, f"{place}.content"):
            turn.add(block, block_place)
    yield from turn.messages()


@dataclass(slots=True)
class _Turn:
    """One message's blocks, sorted by what they become."""

    role: Role
    warn: Warn
    text: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    results: list[Message] = field(default_factory=list)

    def add(self, block: Mapping[str, JsonValue], place: str) -> None:
        """Blocks that Anthropic's own servers made, and kinds of a later day, are refused by name."""
        kind = block.get("type")
        _note_marks(block, self.warn)
        match kind, self.role:
            case "text" | "search_result", _:
                self.text.append(_text_of(block, place))
            case "tool_use", Role.ASSISTANT:
                self.calls.append(_call(block, place))
            case "tool_result", Role.USER:
                self.results.append(_result(block, place, self.warn))
            case "thinking", Role.ASSISTANT:
                self.thoughts.append(_string(block.get("thinking", ""), f"{place}.thinking"))
            case "redacted_thinking", Role.ASSISTANT:
                self.warn("messages.redacted_thinking", "dropped")
            case (("tool_use" | "tool_result" | "thinking" | "redacted_thinking"), _):
                raise invalid(place, f"{place}: a {kind} block cannot stand in a message of role {self.role}.")
            case _:
                raise _unknown(kind, place)

    def messages(self) -> Iterator[Message]:
        yield from self.results
        text = "\n".join(self.text)
        if text or self.calls or self.thoughts or not self.results:
            reasoning = "\n".join(self.thoughts) or None
            yield Message(role=self.role, content=text, tool_calls=tuple(self.calls), reasoning=reasoning)


def _belong_together(last: Message, turn: Message) -> bool:
    """Whether two messages are one turn of the same speaker; a system message stays where it stands."""
    return last.role is turn.role and turn.role in (Role.USER, Role.ASSISTANT)


def _joined(last: Message, turn: Message) -> Message:
    return msgspec.structs.replace(
        last,
        content="\n".join(text for text in (last.content, turn.content) if text),
        tool_calls=last.tool_calls + turn.tool_calls,
        reasoning="\n".join(text for text in (last.reasoning, turn.reasoning) if text) or None,
    )


def _blocks(given: JsonValue, place: str) -> Iterator[tuple[Mapping[str, JsonValue], str]]:
    if not isinstance(given, list):
        raise invalid(place, f"`{place}` must be a string or a list of content blocks.")
    for index, block in enumerate(given):
        if not isinstance(block, dict):
            raise invalid(f"{place}.{index}", f'{place}.{index}: a block must be {{"type": "text", "text": "…"}}.')
        yield block, f"{place}.{index}"


def _texts(given: JsonValue, place: str, warn: Warn) -> Iterator[str]:
    """The text of content that may hold nothing else."""
    if isinstance(given, str):
        yield given
        return
    for block, block_place in _blocks(given, place):
        _note_marks(block, warn)
        yield _text_of(block, block_place)


def _text_of(block: Mapping[str, JsonValue], place: str) -> str:
    match block.get("type"):
        case "text":
            return _string(block.get("text"), f"{place}.text")
        case "search_result":
            return _found(block, place)
        case kind:
            raise _unknown(kind, place)


def _found(block: Mapping[str, JsonValue], place: str) -> str:
    """A search result as text: its title, where it is from, and what it says."""
    lines = [str(block[name]) for name in ("title", "source") if isinstance(block.get(name), str)]
    for part, part_place in _blocks(block.get("content"), f"{place}.content"):
        if part.get("type") != "text":
            raise _unknown(part.get("type"), part_place)
        lines.append(_string(part.get("text"), f"{part_place}.text"))
    return "\n".join(lines)


def _unknown(kind: JsonValue, place: str) -> Exception:
    shown = kind[:80] if isinstance(kind, str) else "(none)"
    if shown in _MEDIA:
        return invalid(place, f"{place}: this server reads text only. Leave the {shown} block out, or send its text.")
    return invalid(
        place, f"{place}: unknown block type {shown!a}. Known here are text, tool_use, tool_result and thinking."
    )


def _call(block: Mapping[str, JsonValue], place: str) -> ToolCall:
    call_id, name, given = (block.get(key) for key in ("id", "name", "input"))
    if not isinstance(given, dict):
        raise invalid(f"{place}.input", f"`{place}.input` must be an object.")
    return ToolCall(
        id=_string(call_id, f"{place}.id"),
        name=_string(name, f"{place}.name"),
        arguments=msgspec.json.encode(given).decode(),
    )


def _result(block: Mapping[str, JsonValue], place: str, warn: Warn) -> Message:
    """An error is marked in its text: no template has a field for it."""
    content = block.get("content")
    text = "" if content is None else "\n".join(_texts(content, f"{place}.content", warn))
    failed = block.get("is_error") is True
    return Message(
        role=Role.TOOL,
        content=f"Error: {text}" if failed else text,
        tool_call_id=_string(block.get("tool_use_id"), f"{place}.tool_use_id"),
    )


def _note_marks(block: Mapping[str, JsonValue], warn: Warn) -> None:
    """What a block carries beside its content. Marks for caching move from turn to turn and are never part of it."""
    for name in ("cache_control", "citations"):
        if block.get(name):
            warn(name, "ignored")


def _string(given: JsonValue, place: str) -> str:
    if not isinstance(given, str):
        raise invalid(place, f"`{place}` must be a string.")
    return given
