"""Whatever the model says and wherever it is cut, its stream keeps the rules, and the document is the same answer."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketserver.chat import (
    Event,
    Finished,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    TokenScore,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)
from pocketserver.errors import Code, Refusal
from pocketserver.wire.openai_responses_answer import InputText, Output, ResponseObject, collected
from pocketserver.wire.openai_responses_events import Events, failure_code
from pocketserver.wire.openai_responses_items import unsealed
from pocketserver.wire.openai_responses_request import parse
from pocketserver.wire.openai_responses_tools import Toolbox, toolbox
from tests.wire.responses_stream import Walked, walk
from tests.wire.test_openai_responses_request import DEFAULTS, unheard

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": "add", "parameters": {"type": "object"}},
    {"type": "custom", "name": "patch"},
    {"type": "namespace", "name": "git", "description": "", "tools": [{"type": "function", "name": "log"}]},
]
BOX = toolbox(TOOLS, None, parallel=True, drop_hosted=False, warn=unheard)
USAGE = Usage(prompt_tokens=9, completion_tokens=5, cached_tokens=4, reasoning_tokens=2)


def finished(reason: FinishReason = FinishReason.STOP) -> Finished:
    return Finished(reason=reason, usage=USAGE)


def echo() -> Any:
    body = json.dumps({"input": "hi", "tools": TOOLS}).encode()
    return parse(body, request_id="r1", defaults=DEFAULTS, drop_hosted=False, warn=unheard).echo


def events_of(*, encrypts: bool = False, box: Toolbox = BOX) -> Events:
    output = Output(request_id="r1", toolbox=box, encrypts=encrypts)
    response = ResponseObject(response_id="resp_r1", created=100, model="m", echo=echo())
    return Events(response, output, now=lambda: 103.5)


def streamed(said: Sequence[Event], *, encrypts: bool = False) -> Walked:
    events = events_of(encrypts=encrypts)
    return walk(events.first + b"".join(map(events.render, said)) + events.last)


def collect(said: Sequence[Event], *, encrypts: bool = False) -> dict[str, Any]:
    output = Output(request_id="r1", toolbox=BOX, encrypts=encrypts)
    for event in said:
        collected(output, event)
    response = ResponseObject(response_id="resp_r1", created=100, model="m", echo=echo())
    return json.loads(json.dumps(response.finished(output, 103)))


def call(name: str, *arguments: str, index: int = 0) -> list[Event]:
    started = ToolCallStarted(index=index, id=f"call_{index}", name=name)
    return [started, *(ToolCallDelta(index=index, arguments=piece) for piece in arguments)]


TEXT = [TextDelta(text="Hel"), TextDelta(text="lo 😀")]
THOUGHT = [ReasoningDelta(text="Let me "), ReasoningDelta(text="see.")]
ANSWERS: dict[str, list[Event]] = {
    "text": [*TEXT, finished()],
    "text and call": [*TEXT, *call("add", '{"a"', ":1}"), finished(FinishReason.TOOL_CALLS)],
    "two calls": [*call("add", '{"a":1}'), *call("add", "{}", index=1), finished(FinishReason.TOOL_CALLS)],
    "reasoning and text": [*THOUGHT, *TEXT, finished()],
    "everything": [*THOUGHT, *TEXT, *call("add", "{}"), *call("patch", '{"input": "a\\nb"}', index=1), finished()],
    "empty text": [finished()],
    "cut text": [*TEXT, finished(FinishReason.LENGTH)],
    "cut thought": [*THOUGHT, finished(FinishReason.LENGTH)],
    "cut call": [*TEXT, *call("add", '{"a"'), finished(FinishReason.LENGTH)],
    "cut before anything": [finished(FinishReason.LENGTH)],
    "a call without arguments": [*call("add"), finished(FinishReason.TOOL_CALLS)],
    "custom": [*call("patch", '{"inp', 'ut": "*** Beg', 'in\\n+x\\u00e9"', "}"), finished(FinishReason.TOOL_CALLS)],
    "custom in plain text": [*call("patch", "*** Beg", "in"), finished(FinishReason.TOOL_CALLS)],
    "cut custom": [*call("patch", '{"input": "abc\\'), finished(FinishReason.LENGTH)],
    "namespace": [*call("git.log", "{}"), finished(FinishReason.TOOL_CALLS)],
    "text behind a call": [*call("add", "{}"), *TEXT, finished()],
}


@pytest.mark.parametrize("name", ANSWERS)
def test_every_answer_keeps_the_rules_and_is_the_same_document(name: str) -> None:
    walked = streamed(ANSWERS[name])

    document = collect(ANSWERS[name])
    assert walked.done
    assert walked.response == document


def test_items_come_as_they_were_generated() -> None:
    kinds = [item["type"] for item in collect(ANSWERS["everything"])["output"]]

    assert kinds == ["reasoning", "message", "function_call", "custom_tool_call"]


@pytest.mark.parametrize(
    ("name", "status", "last"),
    [
        ("text", "completed", "completed"),
        ("two calls", "completed", "completed"),
        ("cut text", "incomplete", "incomplete"),
        ("cut call", "incomplete", "incomplete"),
        ("cut before anything", "incomplete", "incomplete"),
    ],
)
def test_the_end_of_the_answer_is_the_status(name: str, status: str, last: str) -> None:
    document = collect(ANSWERS[name])

    assert (document["status"], document["output"][-1]["status"]) == (status, last)
    assert document["usage"] == {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 14,
    }


def test_an_answer_of_calls_has_no_message() -> None:
    assert [item["type"] for item in collect(ANSWERS["two calls"])["output"]] == ["function_call", "function_call"]


def test_a_call_has_at_least_one_delta() -> None:
    [delta] = streamed(ANSWERS["a call without arguments"]).of("response.function_call_arguments.delta")

    assert delta["delta"] == "{}"


def test_a_custom_call_streams_its_text_unescaped() -> None:
    walked = streamed(ANSWERS["custom"])

    deltas = [event["delta"] for event in walked.of("response.custom_tool_call_input.delta")]
    assert deltas == ["*** Beg", "in\n+xé"]
    [item] = walked.response["output"]
    assert (item["type"], item["call_id"], item["name"]) == ("custom_tool_call", "call_0", "patch")
    assert item["id"].startswith("ctc_")


def test_a_call_in_a_namespace_says_which() -> None:
    [item] = collect(ANSWERS["namespace"])["output"]

    assert (item["name"], item["namespace"]) == ("log", "git")


def test_reasoning_can_be_asked_for_in_a_form_that_comes_back() -> None:
    [item, _] = collect([*THOUGHT, *TEXT, finished()], encrypts=True)["output"]

    assert unsealed(item["encrypted_content"]) == "Let me see."
    assert "encrypted_content" not in collect(ANSWERS["reasoning and text"])["output"][0]


def test_scores_go_out_with_their_text() -> None:
    score = TokenScore(token="Hi", logprob=-0.5, bytes=b"Hi", top=(TokenScore(token="Ho", logprob=-1, bytes=b"Ho"),))
    walked = streamed([TextDelta(text="Hi", scores=(score,)), finished()])

    [delta] = walked.of("response.output_text.delta")
    assert delta["logprobs"][0]["token"] == "Hi"
    assert delta["logprobs"][0]["top_logprobs"] == [{"token": "Ho", "logprob": -1.0, "bytes": [72, 111]}]
    assert walked.response["output"][0]["content"][0]["logprobs"] == delta["logprobs"]


def test_a_pause_is_filled_with_an_event_that_says_nothing_new() -> None:
    events = events_of()
    assert events.keep_alive.startswith(b":"), "before the first event only a comment can be said"
    said = events.first + events.render(TEXT[0]) + events.keep_alive + events.render(TEXT[1]) + events.keep_alive
    walked = walk(said + events.render(finished()) + events.last)

    assert walked.types.count("response.in_progress") == 3


@pytest.mark.parametrize("said", [[], TEXT, THOUGHT, [*TEXT, *call("add", '{"a"')], call("patch", '{"input": "x')])
def test_a_broken_answer_fails_with_what_there_is_and_has_no_end_mark(said: list[Event]) -> None:
    events = events_of()
    before = events.first + b"".join(map(events.render, said))
    walked = walk(before + events.failed(Refusal(Code.WORKER_LOST, "The model process ended.")))

    assert not walked.done
    assert walked.response["error"] == {"code": "server_error", "message": "The model process ended."}


def test_an_answer_that_fails_before_it_began_begins_all_the_same() -> None:
    walked = walk(events_of().failed(Refusal(Code.QUEUE_FULL, "Too many.")))

    assert walked.types == ["response.created", "response.in_progress", "response.failed"]
    assert walked.response["error"]["code"] == "rate_limit_exceeded"


def test_every_failure_has_a_word_that_clients_know() -> None:
    known = {"server_error", "rate_limit_exceeded", "invalid_prompt", "context_length_exceeded"}

    assert {failure_code(code) for code in Code} == known


@given(st.text(max_size=40), st.data())
def test_a_custom_text_is_read_whole_however_its_json_is_cut(text: str, data: st.DataObject) -> None:
    ascii_only = data.draw(st.booleans())
    written = json.dumps({"input": text}, ensure_ascii=ascii_only)
    if data.draw(st.booleans()):
        written = written.replace('{"input": ', ' { "input" : ', 1)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=8)))
    reader = InputText()
    pieces = [written[start:end] for start, end in zip([0, *cuts], [*cuts, len(written)], strict=True)]

    assert "".join(map(reader.feed, pieces)) == text


@given(st.lists(st.sampled_from(["t", "r", "a", "p"]), max_size=8), st.sampled_from(FinishReason))
def test_any_order_of_events_keeps_the_rules(order: list[str], reason: FinishReason) -> None:
    said: list[Event] = []
    for index, what in enumerate(order):
        match what:
            case "t":
                said.append(TextDelta(text="x"))
            case "r":
                said.append(ReasoningDelta(text="y"))
            case "a":
                said += call("add", "{", "}", index=index)
            case _:
                said += call("patch", '{"input": "', 'z"}', index=index)
    said.append(finished(reason))

    assert streamed(said).response == collect(said)
