"""From the items of the Responses API to the turns that a model reads: calls joined, results right behind them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from pocketserver.chat import Message, Role, ToolCall
from pocketserver.wire.openai_responses_items import ROLES, Item, unsealed


def turns(items: Sequence[Item], *, instructions: str | None) -> tuple[Message, ...]:
    """The conversation, `instructions` first. The items are those of `openai_responses_items.items`."""
    conversation = _Conversation()
    if instructions is not None:
        conversation.turns.append(_Turn(Role.SYSTEM, [instructions]))
    for item in items:
        _HANDLERS[item["type"]](conversation, item)
    return tuple(turn.message() for turn in conversation.turns)


def flat_name(name: str, namespace: str | None) -> str:
    """What the model calls a tool that lies in a namespace."""
    return name if namespace is None else f"{namespace}.{name}"


@dataclass(slots=True)
class _Turn:
    role: Role
    texts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    unanswered: set[str] = field(default_factory=set)
    thoughts: list[str] = field(default_factory=list)
    call_id: str | None = None
    name: str | None = None

    def message(self) -> Message:
        return Message(
            role=self.role,
            content="\n".join(self.texts),
            name=self.name,
            tool_calls=tuple(self.calls),
            tool_call_id=self.call_id,
            reasoning="\n".join(self.thoughts) or None,
        )


class _Conversation:
    """Turns so far. Clients replay an assistant's text between its call and the result: it joins the call's turn."""

    def __init__(self) -> None:
        self.turns: list[_Turn] = []
        self._thoughts: list[str] = []

    def message(self, item: Item) -> None:
        role = ROLES[item["role"]]
        text = "\n".join(str(part.get("text", part.get("refusal"))) for part in item["content"])
        if role is not Role.ASSISTANT:
            self._thoughts = []
            self.turns.append(_Turn(role, [text]))
            return
        turn = self._waiting_turn() or self._new_answer()
        turn.texts.append(text)
        self._take_thoughts(turn)

    def function_call(self, item: Item) -> None:
        if item["status"] == "completed":  # one that was cut by a limit was never run
            self._call(item, item["arguments"] or "{}")

    def custom_tool_call(self, item: Item) -> None:
        if item["status"] == "completed":
            self._call(item, json.dumps({"input": item["input"]}, ensure_ascii=False))

    def output(self, item: Item) -> None:
        call_id, output = item["call_id"], item["output"]
        asked = next((turn for turn in reversed(self.turns) if call_id in turn.unanswered), None)
        names = {call.id: call.name for call in asked.calls} if asked else {}
        if asked is not None:
            asked.unanswered.discard(call_id)
        text = output if isinstance(output, str) else "\n".join(part["text"] for part in output)
        self._thoughts = []
        self.turns.append(_Turn(Role.TOOL, [text], call_id=call_id, name=names.get(call_id) or item.get("name")))

    def reasoning(self, item: Item) -> None:
        """Kept for the answer that follows; thinking that no answer follows is nothing to send."""
        parts = item.get("content") or item["summary"]
        text = unsealed(item.get("encrypted_content")) or "\n".join(part["text"] for part in parts)
        if text:
            self._thoughts.append(text)

    def _call(self, item: Item, arguments: str) -> None:
        last = self.turns[-1] if self.turns else None
        turn = last if last is not None and last.role is Role.ASSISTANT else self._new_answer()
        name = flat_name(item["name"], item.get("namespace"))
        turn.calls.append(ToolCall(id=item["call_id"], name=name, arguments=arguments))
        turn.unanswered.add(item["call_id"])
        self._take_thoughts(turn)

    def _waiting_turn(self) -> _Turn | None:
        """The answer whose calls still wait for their results, if it is the latest one."""
        answers = (turn for turn in reversed(self.turns) if turn.role is not Role.TOOL)
        latest = next(answers, None)
        return latest if latest is not None and latest.unanswered else None

    def _new_answer(self) -> _Turn:
        self.turns.append(_Turn(Role.ASSISTANT))
        return self.turns[-1]

    def _take_thoughts(self, turn: _Turn) -> None:
        turn.thoughts += self._thoughts
        self._thoughts = []


_HANDLERS = {
    "message": _Conversation.message,
    "function_call": _Conversation.function_call,
    "custom_tool_call": _Conversation.custom_tool_call,
    "function_call_output": _Conversation.output,
    "custom_tool_call_output": _Conversation.output,
    "reasoning": _Conversation.reasoning,
}
