"""Reads a stream of the Responses API as its clients do, and holds it to every rule of the Open Responses page."""

import json
from dataclasses import dataclass, field
from typing import Any

KEYS = {
    "id", "object", "created_at", "completed_at", "status", "incomplete_details", "model", "previous_response_id",
    "instructions", "output", "error", "tools", "tool_choice", "truncation", "parallel_tool_calls", "text", "top_p",
    "temperature", "presence_penalty", "frequency_penalty", "top_logprobs", "reasoning", "usage", "max_output_tokens",
    "max_tool_calls", "store", "background", "service_tier", "metadata", "safety_identifier", "prompt_cache_key", "user",
}  # fmt: skip
NUMBERS = ("top_p", "temperature", "presence_penalty", "frequency_penalty", "top_logprobs", "created_at")
LAST = {"completed": "response.completed", "incomplete": "response.incomplete", "failed": "response.failed"}
OPEN_RESPONSES = {
    "response.created", "response.queued", "response.in_progress", "response.completed", "response.incomplete",
    "response.failed", "response.output_item.added", "response.output_item.done", "response.content_part.added",
    "response.content_part.done", "response.output_text.delta", "response.output_text.done", "response.refusal.delta",
    "response.refusal.done", "response.function_call_arguments.delta", "response.function_call_arguments.done",
    "response.reasoning_summary_part.added", "response.reasoning_summary_part.done",
    "response.reasoning_summary_text.delta", "response.reasoning_summary_text.done",
}  # fmt: skip
CUSTOM = {"response.custom_tool_call_input.delta", "response.custom_tool_call_input.done"}
CONTENT = {
    "message": ("content_index", "response.content_part", "response.output_text", "text"),
    "reasoning": ("summary_index", "response.reasoning_summary_part", "response.reasoning_summary_text", "text"),
    "function_call": (None, None, "response.function_call_arguments", "arguments"),
    "custom_tool_call": (None, None, "response.custom_tool_call_input", "input"),
}


@dataclass
class Walked:
    """A stream that kept the rules: its events, the last response object, and whether the end mark came."""

    events: list[dict[str, Any]] = field(default_factory=list)
    done: bool = False

    @property
    def response(self) -> dict[str, Any]:
        return self.events[-1]["response"]

    @property
    def types(self) -> list[str]:
        return [event["type"] for event in self.events]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]


def walk(data: bytes) -> Walked:
    """Check a whole stream. Keep-alive comments may stand between events."""
    walked = parsed(data)
    check_order(walked.events)
    check_response(walked.response)
    assert walked.done == (walked.response["status"] != "failed")
    return walked


def parsed(data: bytes) -> Walked:
    """Framing: an `event:` line that repeats the type, one `data:` line, a blank line; nothing else but comments."""
    walked = Walked()
    assert data.endswith(b"\n\n")
    for block in data.decode().removesuffix("\n\n").split("\n\n"):
        lines = [line for line in block.split("\n") if not line.startswith(":")]
        if not lines:
            continue
        assert not walked.done, "nothing follows the end mark"
        if lines == ["data: [DONE]"]:
            walked.done = True
            continue
        name, content = lines
        event = json.loads(content.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == len(walked.events)
        assert event["type"] in OPEN_RESPONSES | CUSTOM
        walked.events.append(event)
    return walked


def check_order(events: list[dict[str, Any]]) -> None:
    """Lifecycle first and last; between them items, strictly one after another."""
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    first, last = events[0]["response"], events[-1]["response"]
    assert (first["status"], first["output"], first["usage"]) == ("in_progress", [], None)
    assert {event["response"]["id"] for event in events if "response" in event} == {first["id"]}
    assert events[-1]["type"] == LAST[last["status"]]
    between = [event for event in events[2:-1] if event["type"] != "response.in_progress"]
    items: list[dict[str, Any]] = []
    while between:
        between, item = check_item(between, len(items), broken=last["status"] == "failed")
        items.append(item)
    assert items == last["output"]


def check_item(
    events: list[dict[str, Any]], index: int, *, broken: bool
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """One item from `added` to `done`; returns the events that follow, and the item."""
    added = events.pop(0)
    assert added["type"] == "response.output_item.added"
    assert added["output_index"] == index
    item = added["item"]
    assert item["status"] == "in_progress"
    place, part, content, name = CONTENT[item["type"]]
    where = {"output_index": index, "item_id": item["id"], **({place: 0} if place else {})}
    if part is not None:
        opened = take(events, f"{part}.added", where)
        assert opened["part"]["text"] == ""
    text = ""
    while events and events[0]["type"] == f"{content}.delta":
        text += take(events, f"{content}.delta", where)["delta"]
    if broken and not events:
        return [], {**item, **whole(item["type"], text), "status": "incomplete"}
    assert take(events, f"{content}.done", where)[name] == text
    if part is not None:
        assert take(events, f"{part}.done", where)["part"]["text"] == text
    done = take(events, "response.output_item.done", {"output_index": index})["item"]
    assert {key: done[key] for key in item if key not in {"status", "content", "summary", name}} == {
        key: item[key] for key in item if key not in {"status", "content", "summary", name}
    }
    check_done(done, text)
    return events, done


def take(events: list[dict[str, Any]], kind: str, where: dict[str, Any]) -> dict[str, Any]:
    event = events.pop(0)
    assert event["type"] == kind
    assert {key: event.get(key) for key in where} == where
    return event


def check_done(item: dict[str, Any], text: str) -> None:
    """What an item is in the end: id, type and status, and its text in its own place."""
    assert {"id", "type", "status"} <= item.keys()
    assert None not in item.values()
    for key, value in whole(item["type"], text).items():
        shown = [{**part, "logprobs": []} if "logprobs" in part else part for part in item[key]]
        assert (shown if isinstance(value, list) else item[key]) == value
    if "call" in item["type"]:
        assert item["call_id"]
        assert item["call_id"] != item["id"]


def whole(kind: str, text: str) -> dict[str, Any]:
    match kind:
        case "message":
            return {"content": [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]}
        case "reasoning":
            return {"summary": [{"type": "summary_text", "text": text}]}
        case "function_call":
            return {"arguments": text}
        case _:
            return {"input": text}


def check_response(response: dict[str, Any]) -> None:
    """The object as section 7 has it: every key there, numbers no null, one end that fits the last item."""
    assert response.keys() >= KEYS
    assert response["object"] == "response"
    assert all(isinstance(response[name], int | float) for name in NUMBERS)
    assert isinstance(response["metadata"], dict)
    assert (response["completed_at"] is not None) == (response["status"] == "completed")
    assert "output_text" not in response
    for tool in response["tools"]:
        if tool["type"] == "function":
            assert tool.keys() >= {"type", "name", "description", "parameters", "strict"}
    statuses = [item["status"] for item in response["output"]]
    assert "incomplete" not in statuses[:-1]
    if response["status"] == "completed":
        assert set(statuses) <= {"completed"}
        assert response["output"]
    if response["status"] == "incomplete":
        assert statuses[-1] == "incomplete"
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    if response["status"] == "failed":
        assert response["error"].keys() == {"code", "message"}
        assert response["usage"] is None
        return
    usage = response["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert isinstance(usage["input_tokens_details"]["cached_tokens"], int)
    assert isinstance(usage["output_tokens_details"]["reasoning_tokens"], int)
