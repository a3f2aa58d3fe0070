"""Events become Anthropic's blocks: in order, one open at a time, the same streamed and collected."""

import json
from typing import Any

import pytest

from pocketserver.chat import (
    Event,
    Finished,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)
from pocketserver.wire.anthropic_answer import SIGNATURE, Document, Events
from pocketserver.wire.anthropic_request import Display

USAGE = Usage(prompt_tokens=12, completion_tokens=7, cached_tokens=4, reasoning_tokens=2)


def finished(reason: FinishReason = FinishReason.STOP, stop_sequence: str | None = None) -> Finished:
    return Finished(reason=reason, usage=USAGE, stop_sequence=stop_sequence)


def text(value: str) -> TextDelta:
    return TextDelta(text=value)


def call(index: int, *pieces: str, name: str = "add") -> list[Event]:
    started = ToolCallStarted(index=index, id="call_9", name=name)
    return [started, *(ToolCallDelta(index=index, arguments=piece) for piece in pieces)]


def streamed(*events: Event, display: Display = Display.SHOWN) -> list[dict[str, Any]]:
    """The data of each event, its name compared with the type inside."""
    renderer = Events(request_id="r1", model="tiny", display=display)
    renderer.prompt_tokens = 12
    data = renderer.first + b"".join(map(renderer.render, events)) + renderer.last
    found = []
    for part in data.decode().removesuffix("\n\n").split("\n\n"):
        name, _, payload = part.partition("\n")
        found.append(json.loads(payload.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def collected(*events: Event, display: Display = Display.SHOWN, **extra: Any) -> dict[str, Any]:
    document = Document(request_id="r1", model="tiny", display=display, extra=extra)
    for event in events:
        document.add(event)
    message: dict[str, Any] = json.loads(document.encode())
    return message


def accumulated(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The content that a client puts together; fails on two open blocks or a gap in the numbers."""
    blocks: list[dict[str, Any]] = []
    is_open = False
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert not is_open
                assert event["index"] == len(blocks)
                is_open = True
                blocks.append({**event["content_block"], "json": ""})
            case "content_block_delta":
                assert is_open
                assert event["index"] == len(blocks) - 1
                [(_, kind), (field, value)] = event["delta"].items()
                key = "json" if kind == "input_json_delta" else field
                blocks[-1][key] = blocks[-1][key] + value
            case "content_block_stop":
                assert is_open
                assert event["index"] == len(blocks) - 1
                is_open = False
    assert not is_open
    for block in blocks:
        arguments = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(arguments or "{}")
    return blocks


def test_the_stream_of_a_text_is_the_documented_one() -> None:
    usage = {"cache_creation_input_tokens": 0, "service_tier": "standard"}
    assert streamed(text("Hel"), text("lo"), finished()) == [
        {
            "type": "message_start",
            "message": {
                "id": "msg_r1",
                "type": "message",
                "role": "assistant",
                "model": "tiny",
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": {
                    **usage,
                    "input_tokens": 12,
                    "output_tokens": 0,
                    "cache_read_input_tokens": 0,
                    "output_tokens_details": {"thinking_tokens": 0},
                },
            },
        },
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "lo"}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {
                "input_tokens": 8,
                "output_tokens": 7,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 4,
                "output_tokens_details": {"thinking_tokens": 2},
            },
        },
        {"type": "message_stop"},
    ]


def test_a_message_has_every_required_member_and_no_foreign_one() -> None:
    assert collected(text("Hi"), finished()) == {
        "id": "msg_r1",
        "type": "message",
        "role": "assistant",
        "model": "tiny",
        "content": [{"type": "text", "text": "Hi"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 8,
            "output_tokens": 7,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 4,
            "output_tokens_details": {"thinking_tokens": 2},
            "service_tier": "standard",
        },
    }
    assert collected(text("Hi"), finished(), warnings=["a:b"])["warnings"] == ["a:b"]


def test_thinking_text_and_calls_are_blocks_in_the_order_they_came() -> None:
    events = [ReasoningDelta(text="h"), ReasoningDelta(text="m"), text("I add."), *call(0, '{"a"', ":1}"), *call(1)]
    end = finished(FinishReason.TOOL_CALLS)
    content = [
        {"type": "thinking", "thinking": "hm", "signature": SIGNATURE},
        {"type": "text", "text": "I add."},
        {"type": "tool_use", "id": "toolu_r1_0", "name": "add", "input": {"a": 1}},
        {"type": "tool_use", "id": "toolu_r1_1", "name": "add", "input": {}},
    ]
    message = collected(*events, end)

    assert message["content"] == content
    assert message["stop_reason"] == "tool_use"
    assert accumulated(streamed(*events, end)) == content


def test_the_signature_comes_once_and_last_in_a_thinking_block() -> None:
    deltas = [
        event["delta"]["type"]
        for event in streamed(ReasoningDelta(text="a"), ReasoningDelta(text="b"), text("c"), finished())
        if event["type"] == "content_block_delta"
    ]
    assert deltas == ["thinking_delta", "thinking_delta", "signature_delta", "text_delta"]


def test_thinking_that_nobody_asked_for_is_not_shown() -> None:
    events = [ReasoningDelta(text="hm"), text("4"), finished()]
    assert collected(*events, display=Display.NONE)["content"] == [{"type": "text", "text": "4"}]
    assert accumulated(streamed(*events, display=Display.NONE)) == [{"type": "text", "text": "4"}]


def test_omitted_thinking_is_an_empty_block_with_a_signature() -> None:
    events = [ReasoningDelta(text="hm"), text("4"), finished()]
    empty = {"type": "thinking", "thinking": "", "signature": SIGNATURE}
    assert collected(*events, display=Display.OMITTED)["content"][0] == empty
    assert accumulated(streamed(*events, display=Display.OMITTED))[0] == empty


@pytest.mark.parametrize(
    ("events", "content"),
    [
        ([], [{"type": "text", "text": ""}]),
        ([text("\n")], [{"type": "text", "text": "\n"}]),
        ([text("\n"), text("\n"), text("a")], [{"type": "text", "text": "\n\na"}]),
        ([text("a"), text("\n\n")], [{"type": "text", "text": "a\n\n"}]),
        (
            [text("\n"), *call(0), text("\n"), *call(1)],
            [
                {"type": "tool_use", "id": f"toolu_r1_{index}", "name": "add", "input": {}}
                for index in (0, 1)
            ],
        ),
        (
            [ReasoningDelta(text="x"), text("\n\n"), *call(0)],
            [
                {"type": "thinking", "thinking": "x", "signature": SIGNATURE},
                {"type": "tool_use", "id": "toolu_r1_0", "name": "add", "input": {}},
            ],
        ),
    ],
)  # fmt: skip
def test_no_block_is_blank_beside_another(events: list[Event], content: list[dict[str, Any]]) -> None:
    assert collected(*events, finished())["content"] == content
    assert accumulated(streamed(*events, finished())) == content


@pytest.mark.parametrize(
    ("end", "reason", "sequence"),
    [
        (finished(), "end_turn", None),
        (finished(stop_sequence="END"), "stop_sequence", "END"),
        (finished(FinishReason.LENGTH), "max_tokens", None),
        (finished(FinishReason.TOOL_CALLS), "tool_use", None),
    ],
)
def test_the_reason_of_the_end_is_told(end: Finished, reason: str, sequence: str | None) -> None:
    told = {"stop_reason": reason, "stop_sequence": sequence}
    assert collected(text("a"), end).items() >= told.items()
    assert streamed(text("a"), end)[-2]["delta"] == told


def test_a_call_that_was_cut_off_is_no_block_of_a_collected_message() -> None:
    events = [text("a"), *call(0, '{"a":"lon')]
    assert collected(*events, finished(FinishReason.LENGTH))["content"] == [{"type": "text", "text": "a"}]
    last = streamed(*events, finished(FinishReason.LENGTH))
    assert [event["type"] for event in last[-3:]] == ["content_block_stop", "message_delta", "message_stop"]


def test_a_pause_is_a_comment_before_the_message_and_a_ping_in_it() -> None:
    renderer = Events(request_id="r1", model="tiny", display=Display.NONE)
    assert renderer.keep_alive.startswith(b":")
    assert renderer.first
    assert renderer.keep_alive == b'event: ping\ndata: {"type":"ping"}\n\n'


@pytest.mark.parametrize(("context", "reason"), [(20, "max_tokens"), (19, "model_context_window_exceeded")])
def test_a_full_context_is_another_end_than_the_clients_limit(context: int, reason: str) -> None:
    document = Document(request_id="r1", model="tiny", display=Display.NONE, context_size=lambda: context)
    events = Events(request_id="r1", model="tiny", display=Display.NONE, context_size=lambda: context)
    document.add(finished(FinishReason.LENGTH))
    assert json.loads(document.encode())["stop_reason"] == reason
    assert reason in events.render(finished(FinishReason.LENGTH)).decode()
    document.add(finished())
    assert json.loads(document.encode())["stop_reason"] == "end_turn"
