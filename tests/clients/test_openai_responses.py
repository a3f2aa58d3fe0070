"""The Responses API through the official `openai` package: the simulator, and the real model with a way to call."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import jsonschema
import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from pydantic import BaseModel

from pocketserver.wire.lark_pattern import pattern_of
from tests.clients.engines import make_calling_engine
from tests.serving import Running, running
from tests.wire.lark_grammars import PATCH_GRAMMAR

TEMPLATES = Path(__file__).resolve().parent.parent / "templates"
ENGINES = ["sim", pytest.param("llama", marks=pytest.mark.real_model)]
PLACE: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER: Any = {"type": "function", "name": "get_weather", "description": "", "parameters": PLACE, "strict": True}
NOTE: Any = {"type": "custom", "name": "note", "description": "Write a note"}
CODE: Any = {
    "type": "custom",
    "name": "code",
    "format": {"type": "grammar", "syntax": "regex", "definition": "[A-F]{2}-[0-9]{3}"},
}
ASK: dict[str, Any] = {"model": "default", "input": "What is the weather in Oslo?", "temperature": 0}

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Town(BaseModel):
    name: Literal["Oslo", "Rome"]
    people: int


@pytest_asyncio.fixture(params=ENGINES, scope="module", loop_scope="module")
async def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """One server a module and engine."""
    home = tmp_path_factory.mktemp("home")
    async with running(home, await make_calling_engine(request, home, "tags"), profile="hub") as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module")
async def client(served: Running) -> AsyncIterator[AsyncOpenAI]:
    async with served.openai() as sdk:
        yield sdk


async def test_a_text_has_usage_and_an_end(client: AsyncOpenAI) -> None:
    response = await client.responses.create(**ASK, max_output_tokens=40)

    assert response.output_text
    assert response.status in {"completed", "incomplete"}
    assert response.usage is not None
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    assert response.usage.output_tokens <= 40


async def test_a_stream_joins_to_the_same_text(client: AsyncOpenAI) -> None:
    whole = await client.responses.create(**ASK, max_output_tokens=12)
    text, last = "", None
    async with client.responses.stream(**ASK, max_output_tokens=12) as stream:
        async for event in stream:
            text += event.delta if event.type == "response.output_text.delta" else ""
            last = event

    assert text == whole.output_text
    assert last is not None
    assert last.type == "response.incomplete"
    assert last.response.incomplete_details.reason == "max_output_tokens"


async def test_the_sdks_helper_gives_the_final_response(client: AsyncOpenAI) -> None:
    asked: dict[str, Any] = {**ASK, "tools": [WEATHER, NOTE], "tool_choice": "required", "parallel_tool_calls": False}
    async with client.responses.stream(**asked, max_output_tokens=200) as stream:
        final = await stream.get_final_response()

    assert final.status == "completed"
    [call] = final.output
    assert call.type in {"function_call", "custom_tool_call"}


async def test_a_function_call_and_its_result_go_round(client: AsyncOpenAI) -> None:
    named: Any = {"type": "function", "name": "get_weather"}
    first = await client.responses.create(**ASK, tools=[WEATHER], tool_choice=named)
    [call] = first.output
    assert call.type == "function_call"
    jsonschema.validate(json.loads(call.arguments), PLACE)

    history: list[Any] = [{"role": "user", "content": ASK["input"]}, *[item.to_dict() for item in first.output]]
    history.append({"type": "function_call_output", "call_id": call.call_id, "output": "Sunny, 21 degrees."})
    second = await client.responses.create(
        model="default", input=history, tools=[WEATHER], tool_choice="none", max_output_tokens=12
    )

    bare = await client.responses.create(**ASK, max_output_tokens=1)
    assert second.output_text
    assert second.usage is not None
    assert bare.usage is not None
    assert second.usage.input_tokens > bare.usage.input_tokens


async def test_a_streamed_call_is_the_collected_one(client: AsyncOpenAI) -> None:
    named: Any = {"type": "function", "name": "get_weather"}
    whole = await client.responses.create(**ASK, tools=[WEATHER], tool_choice=named)
    async with client.responses.stream(**ASK, tools=[WEATHER], tool_choice=named) as stream:
        final = await stream.get_final_response()

    assert json.loads(final.output[0].arguments) == json.loads(whole.output[0].arguments)
    assert final.output[0].parsed_arguments == json.loads(whole.output[0].arguments)


async def test_a_custom_tool_takes_free_text_and_its_result_goes_back(client: AsyncOpenAI) -> None:
    named: Any = {"type": "custom", "name": "note"}
    text, last = "", None
    async for event in await client.responses.create(
        **ASK, tools=[NOTE], tool_choice=named, stream=True, max_output_tokens=200
    ):
        text += event.delta if event.type == "response.custom_tool_call_input.delta" else ""
        last = event
    assert last is not None
    [call] = last.response.output
    assert call.type == "custom_tool_call"
    assert (call.name, call.input) == ("note", text)

    if last.type == "response.completed":
        result: Any = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "Written."}
        again = await client.responses.create(
            model="default",
            input=[result],
            previous_response_id=last.response.id,
            tools=[NOTE],
            tool_choice="none",
            max_output_tokens=8,
        )
        assert again.output_text


async def test_a_regex_holds_a_custom_tools_text(client: AsyncOpenAI) -> None:
    named: Any = {"type": "custom", "name": "code"}
    response = await client.responses.create(**ASK, tools=[CODE], tool_choice=named, max_output_tokens=60)

    [call] = response.output
    assert call.type == "custom_tool_call"
    assert len(call.input) == 6
    assert call.input[0] in "ABCDEF"
    assert call.input[2] == "-"


async def test_a_lark_grammar_holds_a_custom_tools_text(client: AsyncOpenAI) -> None:
    wanted = {"type": "grammar", "syntax": "lark", "definition": PATCH_GRAMMAR}
    tool: Any = {"type": "custom", "name": "apply_patch", "description": "Edit files", "format": wanted}
    named: Any = {"type": "custom", "name": "apply_patch"}
    response = await client.responses.create(**ASK, tools=[tool], tool_choice=named, max_output_tokens=60)

    [call] = response.output
    assert call.type == "custom_tool_call"
    assert call.input.startswith("*** Begin Patch\n*** ")
    if response.status == "completed":
        assert re.fullmatch(pattern_of(PATCH_GRAMMAR), call.input)


async def test_only_allowed_tools_are_called(client: AsyncOpenAI) -> None:
    allowed: Any = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "code"}]}
    response = await client.responses.create(
        **ASK, tools=[WEATHER, NOTE, CODE], tool_choice=allowed, max_output_tokens=60
    )

    assert {item.name for item in response.output} == {"code"}
    assert len(response.tools) == 3


async def test_a_structured_answer_is_parsed(client: AsyncOpenAI) -> None:
    response = await client.responses.parse(**ASK, text_format=Town, max_output_tokens=80)

    assert response.output_parsed is not None
    assert response.output_parsed.name in {"Oslo", "Rome"}
    assert response.text is not None
    assert response.text.format is not None
    assert response.text.format.type == "json_schema"


async def test_json_mode_is_an_object_although_nobody_says_json(client: AsyncOpenAI) -> None:
    response = await client.responses.create(**ASK, text={"format": {"type": "json_object"}}, max_output_tokens=200)

    if response.status == "completed":
        assert isinstance(json.loads(response.output_text), dict)
    assert response.output_text.startswith("{")


async def test_a_chain_continues_the_conversation_without_its_instructions(client: AsyncOpenAI) -> None:
    first = await client.responses.create(**ASK, instructions="Answer in one word. " * 20, max_output_tokens=6)
    second = await client.responses.create(
        model="default", input="And tomorrow?", previous_response_id=first.id, max_output_tokens=6
    )
    alone = await client.responses.create(model="default", input="And tomorrow?", max_output_tokens=6)
    third = await client.responses.create(
        model="default", input="Why?", previous_response_id=second.id, max_output_tokens=6
    )
    assert first.usage is not None
    assert second.usage is not None
    assert alone.usage is not None
    assert third.usage is not None

    assert second.previous_response_id == first.id
    assert alone.usage.input_tokens < second.usage.input_tokens < third.usage.input_tokens
    assert second.usage.input_tokens < first.usage.input_tokens
    listed = [item async for item in client.responses.input_items.list(third.id, order="asc")]
    assert [item.role for item in listed] == ["user", "assistant", "user", "assistant", "user"]


async def test_a_stored_response_is_read_listed_and_deleted(client: AsyncOpenAI) -> None:
    made = await client.responses.create(**{**ASK, "input": [
        {"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}, {"role": "user", "content": "three"},
    ]}, max_output_tokens=4)  # fmt: skip

    again = await client.responses.retrieve(made.id)
    assert again.output_text == made.output_text
    newest_first = [item.content[0].text async for item in client.responses.input_items.list(made.id, limit=2)]
    assert newest_first == ["three", "two", "one"]
    assert await client.responses.delete(made.id) is None
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.delete(made.id)


async def test_a_streamed_response_is_stored_before_its_end_is_read(client: AsyncOpenAI) -> None:
    async for event in await client.responses.create(**ASK, stream=True, max_output_tokens=4):
        if event.type == "response.incomplete":
            follow = await client.responses.retrieve(event.response.id)
            assert follow.output_text == event.response.output_text
            return
    pytest.fail("the stream did not end as it should")


async def test_what_is_not_to_be_stored_is_not(client: AsyncOpenAI) -> None:
    made = await client.responses.create(**ASK, store=False, max_output_tokens=4)
    assert made.store is False

    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(made.id)
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(model="default", input="x", previous_response_id=made.id)
    assert caught.value.code == "previous_response_not_found"
    assert caught.value.param == "previous_response_id"


async def test_truncation_leaves_the_oldest_out_only_when_it_is_asked_for(client: AsyncOpenAI) -> None:
    long: list[Any] = []
    for number in range(60):
        long.append({"role": "user", "content": f"Question {number}: " + "what about the weather in the north? " * 24})
        long.append({"role": "assistant", "content": "It rains. " * 8})
    long.append({"role": "user", "content": "And now?"})

    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(model="default", input=long, max_output_tokens=4)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "input"
    raw = await client.responses.with_raw_response.create(
        model="default", input=long, max_output_tokens=4, truncation="auto"
    )
    response = raw.parse()
    assert response.truncation == "auto"
    assert response.output_text
    assert "oldest messages were left out" in raw.headers["x-pocketserver-warnings"]


async def test_scores_come_with_the_include_value(client: AsyncOpenAI) -> None:
    response = await client.responses.create(
        **ASK, max_output_tokens=3, top_logprobs=2, include=["message.output_text.logprobs"]
    )

    [message] = response.output
    assert message.content[0].logprobs
    assert "".join(score.token for score in message.content[0].logprobs).strip()


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"model": "no-such-model"}, openai.NotFoundError),
        ({"input": []}, openai.BadRequestError),
        ({"temperature": 3}, openai.BadRequestError),
        ({"background": True}, openai.BadRequestError),
        ({"previous_response_id": "resp_404"}, openai.BadRequestError),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_each_refusal_is_the_sdks_own_exception(
    client: AsyncOpenAI, fields: dict[str, Any], error: type[openai.APIStatusError], stream: bool
) -> None:
    with pytest.raises(error) as caught:
        await client.responses.create(**{**ASK, **fields}, stream=stream)
    assert caught.value.request_id
    assert caught.value.body["message"]


async def test_a_schema_that_cannot_be_held_is_refused_at_its_place(client: AsyncOpenAI) -> None:
    bad: Any = {"format": {"type": "json_schema", "name": "n", "schema": {"type": "string", "pattern": "^(unclosed"}}}
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(**ASK, text=bad, stream=True)
    assert caught.value.param == "text.format.schema"
    assert "pattern" in caught.value.message
