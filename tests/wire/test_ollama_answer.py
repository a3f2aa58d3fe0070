"""Ollama's answers, from events to bytes."""

import json
import time
from collections.abc import Sequence
from typing import Any

import pytest

from pocketserver.chat import (
    Event,
    Finished,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    Timings,
    TokenScore,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)
from pocketserver.wire.ollama_answer import Document, Heading, Lines, Shape, chat_shape, generate_shape, rfc3339

USAGE = Usage(prompt_tokens=5, completion_tokens=2)
TIMINGS = Timings(prompt_seconds=0.25, generation_seconds=0.5, load_seconds=2.0)
END = Finished(reason=FinishReason.STOP, usage=USAGE, timings=TIMINGS)
CALLS: list[Event] = [
    ToolCallStarted(index=0, id="call_a", name="add"),
    ToolCallDelta(index=0, arguments='{"b": 1,\n "a"'),
    ToolCallDelta(index=0, arguments=": 2e2}"),
    ToolCallStarted(index=1, id="call_b", name="now"),
]


def heading(shape: Shape = chat_shape, **fields: Any) -> Heading:
    return Heading(shape=shape, model="Tiny", created=1_700_000_000.0, arrived=time.monotonic(), **fields)


def lines(events: Sequence[Event], head: Heading) -> list[dict[str, Any]]:
    """Each line of the bytes as JSON; an empty one would fail."""
    rendered = b"".join(map(Lines(head).render, events))
    assert rendered.endswith(b"\n")
    return [json.loads(line) for line in rendered.decode().removesuffix("\n").split("\n")]


def document(events: Sequence[Event], head: Heading) -> dict[str, Any]:
    collected = Document(head)
    for event in events:
        collected.add(event)
    found: dict[str, Any] = json.loads(collected.encode())
    return found


def test_time_is_written_as_go_writes_it() -> None:
    assert rfc3339(1_700_000_000.25) == "2023-11-14T22:13:20.250000000Z"


def test_chat_lines_have_the_role_on_each_and_the_measures_on_the_last() -> None:
    found = lines([ReasoningDelta(text="hm"), TextDelta(text="Hi"), END], heading())

    stamp = {"model": "Tiny", "created_at": "2023-11-14T22:13:20.000000000Z"}
    assert found[0] == {**stamp, "message": {"role": "assistant", "content": "", "thinking": "hm"}, "done": False}
    assert found[1] == {**stamp, "message": {"role": "assistant", "content": "Hi"}, "done": False}
    assert found[2].pop("total_duration") > 0
    assert found[2] == {
        **stamp,
        "message": {"role": "assistant", "content": ""},
        "done": True,
        "done_reason": "stop",
        "load_duration": 0,
        "prompt_eval_count": 5,
        "prompt_eval_duration": 250_000_000,
        "eval_count": 2,
        "eval_duration": 500_000_000,
    }


def test_generate_lines_have_a_response_and_no_message() -> None:
    found = lines(
        [ReasoningDelta(text="hm"), TextDelta(text="Hi"), END],
        heading(generate_shape, context=lambda said: [len(said)]),
    )

    assert [(line["response"], line.get("thinking")) for line in found] == [("", "hm"), ("Hi", None), ("", None)]
    assert [line.get("context") for line in found] == [None, None, [2]]
    assert not any("message" in line for line in found)


def test_the_time_of_loading_is_told_to_those_who_waited_for_it() -> None:
    assert lines([END], heading(was_loaded=False))[0]["load_duration"] == 2_000_000_000


def test_calls_are_whole_objects_one_line_each() -> None:
    found = lines([*CALLS, END], heading())

    calls = [line["message"]["tool_calls"] for line in found[:-1]]
    assert calls == [
        [{"id": "call_a", "function": {"index": 0, "name": "add", "arguments": {"b": 1, "a": 200.0}}}],
        [{"id": "call_b", "function": {"index": 1, "name": "now", "arguments": {}}}],
    ]
    assert [*calls[0][0]["function"]["arguments"]] == ["b", "a"]
    assert found[-1]["done_reason"] == "stop"


@pytest.mark.parametrize("arguments", ['{"a": 1', "[1]", "nonsense"])
def test_a_call_that_was_cut_off_is_no_call(arguments: str) -> None:
    cut: list[Event] = [
        ToolCallStarted(index=0, id="x", name="add"),
        ToolCallDelta(index=0, arguments=arguments),
        Finished(reason=FinishReason.LENGTH, usage=USAGE),
    ]

    assert [line["done"] for line in lines(cut, heading())] == [True]
    assert "tool_calls" not in document(cut, heading())["message"]
    assert document(cut, heading())["done_reason"] == "length"


@pytest.mark.parametrize("shape", [chat_shape, generate_shape])
def test_the_document_is_the_lines_joined(shape: Shape) -> None:
    events: list[Event] = [
        ReasoningDelta(text="h"),
        ReasoningDelta(text="m"),
        TextDelta(text="é"),
        TextDelta(text="\n"),
    ]
    whole = document([*events, END], heading(shape))

    said = [line.get("message", line) for line in lines([*events, END], heading(shape))]
    key = "content" if shape is chat_shape else "response"
    found = whole.get("message", whole)
    assert found[key] == "".join(line[key] for line in said) == "é\n"
    assert found["thinking"] == "hm"
    assert whole["done"] is True
    assert whole["eval_count"] == 2


def test_scores_stand_beside_the_message_on_the_line_of_their_token() -> None:
    score = TokenScore(token="Hi", logprob=-0.5, bytes=b"Hi", top=(TokenScore(token="Ho", logprob=-1.5, bytes=b"Ho"),))
    events: list[Event] = [TextDelta(text="Hi", scores=(score,)), END]

    expected = [
        {
            "token": "Hi",
            "logprob": -0.5,
            "bytes": [72, 105],
            "top_logprobs": [{"token": "Ho", "logprob": -1.5, "bytes": [72, 111]}],
        }
    ]
    found = lines(events, heading(scored=True))
    assert found[0]["logprobs"] == expected
    assert "logprobs" not in found[1]
    assert document(events, heading(scored=True))["logprobs"] == expected


def test_warnings_stand_in_the_document_alone() -> None:
    head = heading(extra={"warnings": ["options.mirostat:ignored"]})

    assert document([END], head)["warnings"] == ["options.mirostat:ignored"]
    assert "warnings" not in lines([END], head)[0]
