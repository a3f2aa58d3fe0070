"""Items become the turns that a model reads; what cannot be read is a 400 that names its place."""

import json
from typing import Any

import pytest

from pocketserver.chat import Message, Role, ToolCall
from pocketserver.errors import Code, Refusal
from pocketserver.wire.openai_responses_items import Item, items, sealed
from pocketserver.wire.openai_responses_turns import turns

STORED: Item = {
    "id": "msg_9", "type": "message", "status": "completed", "role": "user",
    "content": [{"type": "input_text", "text": "before"}],
}  # fmt: skip


def read(given: Any, warnings: list[str] | None = None) -> tuple[Item, ...]:
    count = iter(range(100))
    heard = [] if warnings is None else warnings
    return items(
        given,
        mint=lambda prefix: f"{prefix}{next(count)}",
        resolve={"msg_9": STORED}.get,
        warn=lambda param, what: heard.append(f"{param}:{what}"),
    )


def said(given: Any, instructions: str | None = None) -> tuple[Message, ...]:
    return turns(read(given), instructions=instructions)


def refused(item: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        read([item])
    assert caught.value.code is Code.INVALID_PARAMETER
    return caught.value


def user(text: str) -> Message:
    return Message(role=Role.USER, content=text)


CALL: Item = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a":1}'}
CALLED = ToolCall(id="c1", name="add", arguments='{"a":1}')
OUTPUT: Item = {"type": "function_call_output", "call_id": "c1", "output": "2"}
RESULT = Message(role=Role.TOOL, content="2", tool_call_id="c1", name="add")


def test_a_string_is_one_message_of_the_user() -> None:
    assert said("hi") == (user("hi"),)
    assert read("hi") == (
        {
            "id": "msg_0", "type": "message", "status": "completed", "role": "user",
            "content": [{"type": "input_text", "text": "hi"}],
        },
    )  # fmt: skip


def test_instructions_come_first() -> None:
    assert said("hi", instructions="Be brief.") == (Message(role=Role.SYSTEM, content="Be brief."), user("hi"))


@pytest.mark.parametrize("role", ["user", "system", "developer", "assistant"])
def test_string_content_is_legal_for_all_roles(role: str) -> None:
    [message] = said([{"role": role, "content": "x"}])

    assert message.role is {"developer": Role.SYSTEM}.get(role, Role(role) if role != "developer" else Role.SYSTEM)
    assert message.content == "x"


@pytest.mark.parametrize(
    ("role", "part", "text"),
    [
        ("user", {"type": "input_text", "text": "x"}, "x"),
        ("user", {"type": "text", "text": "x"}, "x"),
        ("system", {"type": "input_text", "text": "x"}, "x"),
        ("assistant", {"type": "output_text", "text": "x", "annotations": [], "logprobs": []}, "x"),
        ("assistant", {"type": "output_text", "text": "x"}, "x"),
        ("assistant", {"type": "input_text", "text": "x"}, "x"),
        ("assistant", {"type": "text", "text": "x"}, "x"),
        ("assistant", {"type": "refusal", "refusal": "no"}, "no"),
    ],
)
def test_every_form_of_a_text_part_is_read(role: str, part: Item, text: str) -> None:
    [message] = said([{"type": "message", "role": role, "content": [part]}])

    assert message.content == text


@pytest.mark.parametrize("kind", ["input_image", "input_file", "input_audio", "input_video"])
def test_media_is_refused_in_messages_and_in_results(kind: str) -> None:
    part = {"type": kind, "image_url": "data:image/png;base64,AA=="}
    in_message = refused({"role": "user", "content": [{"type": "input_text", "text": "x"}, part]})
    in_result = refused({"type": "function_call_output", "call_id": "c", "output": [part]})

    assert in_message.param == "input[0].content[1]"
    assert in_result.param == "input[0].output[0]"
    assert kind in in_message.message
    assert "text only" in in_message.message


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"role": "user"}, "input[0].content"),
        ({"role": "user", "content": 5}, "input[0].content"),
        ({"role": "user", "content": ["x"]}, "input[0].content[0]"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[0].content[0].text"),
        ({"role": "tool", "content": "x"}, "input[0].role"),
        ({"content": "x"}, "input[0].role"),
        ({"type": "function_call", "name": "a", "arguments": "{}"}, "input[0].call_id"),
        ({"type": "function_call", "call_id": "c", "arguments": "{}"}, "input[0].name"),
        ({"type": "function_call", "call_id": "c", "name": "a"}, "input[0].arguments"),
        ({"type": "function_call", "call_id": "c", "name": "a", "arguments": "[1]"}, "input[0].arguments"),
        ({"type": "function_call_output", "call_id": "c"}, "input[0].output"),
        ({"type": "function_call_output", "output": "x"}, "input[0].call_id"),
        ({"type": "custom_tool_call", "call_id": "c", "name": "a"}, "input[0].input"),
        ({"type": "item_reference", "id": "msg_404"}, "input[0].id"),
        ({"type": "item_reference"}, "input[0].id"),
        ({"type": "computer_call"}, "input[0].type"),
        ({"type": "compaction"}, "input[0].type"),
        ({"type": 7}, "input[0].type"),
    ],
)
def test_what_cannot_be_read_names_its_place(item: Item, param: str) -> None:
    assert refused(item).param == param


def test_too_many_items_are_refused() -> None:
    with pytest.raises(Refusal, match="10000"):
        read([{"role": "user", "content": "x"}] * 10_001)


def test_ids_of_the_client_stay_and_are_never_looked_up() -> None:
    given = [{"id": "msg_foreign", "role": "user", "content": "x"}, {"id": None, "role": "user", "content": "y"}]

    assert [item["id"] for item in read(given)] == ["msg_foreign", "msg_0"]


def test_calls_in_a_row_are_one_turn_with_their_results_behind_it() -> None:
    second = {**CALL, "call_id": "c2"}
    results = [{**OUTPUT, "call_id": "c2", "output": [{"type": "input_text", "text": "3"}]}, OUTPUT]
    messages = said([{"role": "user", "content": "go"}, CALL, second, *results])

    assert [message.role for message in messages] == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.TOOL]
    assert [call.id for call in messages[1].tool_calls] == ["c1", "c2"]
    assert [message.tool_call_id for message in messages[2:]] == ["c2", "c1"]
    assert [message.content for message in messages[2:]] == ["3", "2"]


def test_a_call_joins_the_text_before_it() -> None:
    messages = said([{"role": "assistant", "content": "Let me add."}, CALL, OUTPUT])

    assert messages == (Message(role=Role.ASSISTANT, content="Let me add.", tool_calls=(CALLED,)), RESULT)


def test_text_between_a_call_and_its_result_joins_the_calls_turn() -> None:
    messages = said([CALL, {"role": "assistant", "content": "Adding."}, OUTPUT])

    assert messages == (Message(role=Role.ASSISTANT, content="Adding.", tool_calls=(CALLED,)), RESULT)


def test_text_behind_a_result_is_a_turn_of_its_own() -> None:
    messages = said([CALL, OUTPUT, {"role": "assistant", "content": "2."}, {"role": "user", "content": "Thanks"}])

    assert messages[2:] == (Message(role=Role.ASSISTANT, content="2."), user("Thanks"))


def test_a_custom_call_goes_back_as_a_function_of_one_text() -> None:
    call = {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": 'a "b"\n'}
    output = {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"}
    asked, result = said([call, output])

    assert json.loads(asked.tool_calls[0].arguments) == {"input": 'a "b"\n'}
    assert (result.content, result.name) == ("ok", "patch")


def test_a_call_that_was_cut_is_left_out() -> None:
    cut = {**CALL, "arguments": '{"a', "status": "incomplete"}

    assert said([{"role": "user", "content": "go"}, cut]) == (user("go"),)


def test_a_namespace_is_part_of_the_name() -> None:
    [message] = said([{**CALL, "namespace": "math"}])

    assert message.tool_calls[0].name == "math.add"


@pytest.mark.parametrize(
    ("item", "thought"),
    [
        ({"summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}, "hm"),
        ({"summary": [{"type": "summary_text", "text": "hm"}]}, "hm"),
        ({"summary": [], "encrypted_content": sealed("hm")}, "hm"),
        ({"summary": [], "content": None, "encrypted_content": None}, None),
        ({"summary": [], "content": [], "encrypted_content": "gAAAA-of-somebody-else"}, None),
        ({"summary": [], "encrypted_content": "pocketserver-reasoning-1:%%%"}, None),
        ({}, None),
    ],
)
def test_reasoning_goes_to_the_answer_that_follows_and_is_never_refused(item: Item, thought: str | None) -> None:
    messages = said([{"type": "reasoning", **item}, {"role": "assistant", "content": "x"}])

    assert messages == (Message(role=Role.ASSISTANT, content="x", reasoning=thought),)


def test_reasoning_before_a_call_stays_with_the_call() -> None:
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    [message, _] = said([thought, CALL, OUTPUT])

    assert (message.reasoning, message.tool_calls) == ("hm", (CALLED,))


def test_reasoning_that_no_answer_follows_is_dropped() -> None:
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}

    assert said([thought, {"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}])[1].reasoning is None


@pytest.mark.parametrize("reference", [{"type": "item_reference", "id": "msg_9"}, {"type": None, "id": "msg_9"}])
def test_a_reference_stands_for_the_stored_item(reference: Item) -> None:
    assert said([reference]) == (user("before"),)


def test_a_search_in_the_history_is_left_out_aloud() -> None:
    warnings: list[str] = []

    assert read([{"type": "web_search_call", "id": "ws_1", "status": "completed"}], warnings) == ()
    assert warnings == ["input[0]:web_search_call was left out"]


def test_the_phase_of_a_message_is_kept() -> None:
    assert read([{"role": "assistant", "content": "x", "phase": "commentary"}])[0]["phase"] == "commentary"
