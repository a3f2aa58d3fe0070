"""Bodies of `/api/chat` and `/api/generate`, read without a server."""

import json
from typing import Any

import pytest

from pocketserver.chat import GenerationRequest, Message, Role
from pocketserver.errors import Code, Refusal
from pocketserver.models.library import ModelSettings, StoredMessage
from pocketserver.wire import ollama_context
from pocketserver.wire.ollama_request import Asked, generation_request, parse_chat, parse_generate

HI = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
MADE = ModelSettings(system="S", parameters={"temperature": 0.1}, messages=(StoredMessage(role="user", content="a"),))


def chat(**fields: Any) -> Asked:
    return parse_chat(json.dumps({**HI, **fields}).encode())


def generate(**fields: Any) -> Asked:
    return parse_generate(json.dumps({"model": "tiny", **fields}).encode())


NOTHING = ModelSettings()


def request(asked: Asked, settings: ModelSettings = NOTHING) -> GenerationRequest:
    made, _ = generation_request(
        asked, request_id="r1", model="tiny", settings=settings, effort=None, warn=lambda *_: None
    )
    return made


def texts(made: GenerationRequest) -> list[tuple[Role, str]]:
    return [(message.role, message.content) for message in made.messages]


@pytest.mark.parametrize(("given", "streamed"), [({}, True), ({"stream": None}, True), ({"stream": False}, False)])
def test_answers_stream_unless_told_not_to(given: dict[str, Any], streamed: bool) -> None:
    assert chat(**given).stream is streamed


@pytest.mark.parametrize(
    "fields",
    [
        {"stream": "false"}, {"stream": 1}, {"messages": "hi"}, {"messages": {"role": "user"}}, {"model": 7},
        {"tools": {}}, {"options": []}, {"top_logprobs": 21}, {"top_logprobs": -1}, {"truncate": "no"},
    ],
)  # fmt: skip
def test_a_field_of_a_wrong_type_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(Refusal) as found:
        chat(**fields)

    assert found.value.param == next(iter(fields))


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", Code.MALFORMED_REQUEST), (b"  ", Code.MALFORMED_REQUEST), (b"[]", Code.MALFORMED_REQUEST),
        (b"{", Code.INVALID_JSON), (b'{"model":"\xff"}', Code.INVALID_JSON),
        (b'{"model":"m","prompt":"\\udcf0"}', Code.INVALID_JSON),
    ],
)  # fmt: skip
def test_what_is_no_object_in_utf8_is_refused(body: bytes, code: Code) -> None:
    with pytest.raises(Refusal) as found:
        parse_generate(body)

    assert found.value.code is code


def test_an_empty_body_is_told_so() -> None:
    with pytest.raises(Refusal, match=r"^missing request body$"):
        parse_chat(b"\n")


def test_paired_surrogates_are_one_character() -> None:
    assert chat(messages=[{"role": "user", "content": "\U0001f600"}]).messages[0].content == "\U0001f600"


@pytest.mark.parametrize("role", ["user", "User", "ASSISTANT", "System", "developer"])
def test_roles_are_compared_without_case(role: str) -> None:
    assert chat(messages=[{"role": role, "content": "x"}]).messages[0].content == "x"


@pytest.mark.parametrize("message", [{"role": "robot", "content": "x"}, {"content": "x"}, {"role": "", "content": "x"}])
def test_another_role_is_refused_with_those_there_are(message: dict[str, Any]) -> None:
    with pytest.raises(Refusal, match="assistant, developer, system, tool, user") as found:
        chat(messages=[message])

    assert found.value.param == "messages[0].role"


@pytest.mark.parametrize("body", [{"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}])
def test_images_are_refused_in_words(body: dict[str, Any]) -> None:
    with pytest.raises(Refusal, match="reads text only"):
        chat(**body)
    with pytest.raises(Refusal, match="reads text only"):
        generate(prompt="x", images=["aGk="])


def test_no_images_are_no_fault() -> None:
    assert chat(messages=[{"role": "user", "content": "x", "images": []}]).messages
    assert generate(prompt="x", images=None).messages


CALL = {"function": {"name": "weather", "arguments": {"city": "Oslo"}}}


@pytest.mark.parametrize("arguments", [{"city": "Oslo"}, '{"city": "Oslo"}'])
def test_arguments_may_be_an_object_or_the_text_of_one(arguments: Any) -> None:
    call = {"function": {"name": "weather", "arguments": arguments}}
    asked = chat(messages=[{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "4 C"}])

    made, result = asked.messages
    assert json.loads(made.tool_calls[0].arguments) == {"city": "Oslo"}
    assert (result.name, result.tool_call_id) == ("weather", made.tool_calls[0].id)


@pytest.mark.parametrize("arguments", ["{city", "[1]", [1], 3])
def test_arguments_that_are_no_object_are_named_by_their_place(arguments: Any) -> None:
    call = {"function": {"name": "weather", "arguments": arguments}}
    with pytest.raises(Refusal) as found:
        chat(messages=[{"role": "user", "content": "?"}, {"role": "assistant", "tool_calls": [call]}])

    assert found.value.param == "messages[1].tool_calls[0].function.arguments"


def test_results_find_their_calls_by_id_by_name_and_by_order() -> None:
    calls = [{"id": "one", "function": {"name": "a"}}, {"function": {"name": "b"}}, {"function": {"name": "a"}}]
    results = [{"content": "b", "tool_name": "b"}, {"content": "a2"}, {"content": "?", "tool_call_id": "one"}]
    asked = chat(
        messages=[{"role": "assistant", "tool_calls": calls}, *({"role": "tool", **result} for result in results)]
    )

    made, *found = asked.messages
    ids = [call.id for call in made.tool_calls]
    assert [result.tool_call_id for result in found] == [ids[1], ids[0], "one"]


def test_a_tool_without_parameters_is_a_function_without_any() -> None:
    for parameters in ({}, {"parameters": None}, {"parameters": []}, {"parameters": {"properties": []}}):
        (tool,) = chat(tools=[{"type": "function", "function": {"name": "now", **parameters}}]).tools
        assert tool.parameters == {}


def test_thinking_of_earlier_turns_is_kept() -> None:
    asked = chat(messages=[{"role": "assistant", "content": "4", "thinking": "2+2"}])

    assert asked.messages[0].reasoning == "2+2"


def test_an_empty_conversation_only_loads() -> None:
    assert chat(messages=[]).only_loads
    assert chat(messages=None).only_loads
    assert generate().only_loads
    assert generate(prompt="", raw=True).only_loads
    assert not generate(prompt="x").only_loads


def test_what_is_stored_with_a_model_comes_before_the_request() -> None:
    assert texts(request(chat(), MADE)) == [(Role.SYSTEM, "S"), (Role.USER, "a"), (Role.USER, "hi")]
    assert request(chat(), MADE).sampling.temperature == 0.1


def test_a_system_message_of_the_request_replaces_the_models() -> None:
    asked = chat(messages=[{"role": "system", "content": "mine"}, {"role": "user", "content": "hi"}])

    assert texts(request(asked, MADE)) == [(Role.SYSTEM, "mine"), (Role.USER, "a"), (Role.USER, "hi")]


def test_generate_puts_a_system_text_in_the_models_place() -> None:
    assert texts(request(generate(prompt="x", system="mine"), MADE))[0] == (Role.SYSTEM, "mine")
    assert texts(request(generate(prompt="x"), MADE))[0] == (Role.SYSTEM, "S")


def test_raw_is_the_prompt_and_nothing_else() -> None:
    made = request(generate(prompt="once", raw=True), MADE)

    assert (made.prompt, made.messages) == ("once", ())


@pytest.mark.parametrize("fields", [{"template": "x"}, {"system": "x"}, {"context": [1]}])
def test_raw_goes_with_nothing_that_makes_a_prompt(fields: dict[str, Any]) -> None:
    with pytest.raises(Refusal, match=r"^raw mode does not support template, system, or context$"):
        generate(prompt="x", raw=True, **fields)


def test_a_suffix_is_what_follows_the_answer() -> None:
    made = request(generate(prompt="def f(", suffix="return 1"))

    assert (made.prompt, made.suffix) == ("def f(", "return 1")


def test_context_continues_the_conversation() -> None:
    before = [Message(role=Role.SYSTEM, content="S"), Message(role=Role.USER, content="Ich heiße Bo \U0001f600")]
    context = ollama_context.encode([*before, Message(role=Role.ASSISTANT, content="Hallo Bo")])

    asked = generate(prompt="Who am I?", context=context)

    assert texts(request(asked, MADE)) == [
        (Role.SYSTEM, "S"),
        (Role.USER, "Ich heiße Bo \U0001f600"),
        (Role.ASSISTANT, "Hallo Bo"),
        (Role.USER, "Who am I?"),
    ]
    assert all(type(number) is int for number in context)


@pytest.mark.parametrize("context", [[999_999_999], [-1], ["a"], [1.5], [True], [0xD800]])
def test_numbers_that_are_no_context_are_refused(context: list[Any]) -> None:
    with pytest.raises(Refusal) as found:
        generate(prompt="x", context=context)

    assert found.value.param == "context"


def test_context_of_somebody_else_is_text_and_an_empty_one_nothing() -> None:
    assert len(generate(prompt="x", context=[1] * 10_000).messages) == 2
    assert len(generate(prompt="x", context=[]).messages) == 1


def test_a_template_writes_the_prompt() -> None:
    made = request(generate(prompt="x", template="<{{ .System }}>{{ .Prompt }}={{ .Response }}!"), MADE)

    assert (made.prompt, made.messages, made.reasoning_effort) == ("<S>a=!<>x=", (), None)


def test_logprobs_without_alternatives_are_those_of_the_chosen_tokens() -> None:
    assert chat(logprobs=True).top_logprobs == 0
    assert chat(logprobs=True, top_logprobs=3).top_logprobs == 3
    assert chat(top_logprobs=3).top_logprobs is None


def test_shift_is_named_as_what_it_cannot_do() -> None:
    said: list[str] = []
    generation_request(
        chat(shift=True),
        request_id="r",
        model="m",
        settings=NOTHING,
        effort=None,
        warn=lambda field, _: said.append(field),
    )
    assert said == ["shift"]
