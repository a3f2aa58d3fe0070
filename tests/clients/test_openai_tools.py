"""Tool calls through the official `openai` package: the simulator, and the real model under two ways to write calls."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from tests.clients.engines import make_calling_engine
from tests.serving import Running, running

TEMPLATES = Path(__file__).resolve().parent.parent / "templates"
ENGINES = [
    "sim",
    pytest.param("tags", marks=pytest.mark.real_model),
    pytest.param("arguments", marks=pytest.mark.real_model),
]
ASK: Any = [{"role": "user", "content": "What is the weather in Oslo in the next three days?"}]
PLACE: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome", "Lima"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER: Any = {"type": "function", "function": {"name": "get_weather", "description": "", "parameters": PLACE}}
NOW: Any = {"type": "function", "function": {"name": "now", "description": "The time"}}
SCHEMAS: dict[str, Any] = {"get_weather": PLACE, "now": {"type": "object", "maxProperties": 0}}
NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(params=ENGINES, scope="module", loop_scope="module")
async def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """One server a module and way to call; the model is loaded once for each."""
    home = tmp_path_factory.mktemp("home")
    async with running(home, await make_calling_engine(request, home)) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module")
async def client(served: Running) -> AsyncIterator[AsyncOpenAI]:
    async with served.openai() as sdk:
        yield sdk


def asking(**fields: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {"model": "default", "messages": ASK, "max_tokens": 120, "temperature": 0}
    return {**asked, "tools": [WEATHER, NOW], **fields}


def check_calls(calls: list[Any]) -> None:
    """Each call is a declared function with arguments that follow its schema, and has an id of its own."""
    assert len({call.id for call in calls}) == len(calls)
    for call in calls:
        assert call.id
        assert call.type == "function"
        jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])


async def streamed(client: AsyncOpenAI, **fields: Any) -> tuple[list[Any], str, dict[int, Any], str]:
    """The tool fragments as they came, the text, the collected calls by index, and the finish reason."""
    stream = await client.chat.completions.create(**asking(**fields), stream=True)
    fragments: list[Any] = []
    text, reasons = "", []
    calls: dict[int, Any] = {}
    async for chunk in stream:
        [choice] = chunk.choices
        text += choice.delta.content or ""
        reasons += [choice.finish_reason] if choice.finish_reason else []
        for fragment in choice.delta.tool_calls or []:
            fragments.append(fragment.to_dict())
            if fragment.index not in calls:
                calls[fragment.index] = fragment
            else:
                calls[fragment.index].function.arguments += fragment.function.arguments
    [reason] = reasons
    return fragments, text, calls, reason


async def test_a_named_function_is_called_once_and_its_schema_holds(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(**asking(tool_choice=NAMED))
    [choice] = answer.choices

    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert [call.function.name for call in choice.message.tool_calls] == ["get_weather"]
    check_calls(choice.message.tool_calls)


async def test_a_streamed_call_says_id_and_name_once_and_then_only_arguments(client: AsyncOpenAI) -> None:
    fragments, text, calls, reason = await streamed(client, tool_choice=NAMED)

    first, *rest = fragments
    assert first["index"] == 0
    assert first["id"]
    assert first["type"] == "function"
    assert first["function"] == {"name": "get_weather", "arguments": ""}
    assert all(set(fragment) == {"index", "function"} for fragment in rest)
    assert all(set(fragment["function"]) == {"arguments"} for fragment in rest)
    assert "<" not in text
    assert reason == "tool_calls"
    check_calls(list(calls.values()))


async def test_streamed_and_collected_calls_are_the_same(client: AsyncOpenAI) -> None:
    whole = (await client.chat.completions.create(**asking(tool_choice=NAMED))).choices[0].message.tool_calls[0]
    _, _, calls, _ = await streamed(client, tool_choice=NAMED)
    assert json.loads(calls[0].function.arguments) == json.loads(whole.function.arguments)


@pytest.mark.parametrize("parallel", [True, False])
async def test_required_calls_at_least_one_function_and_one_alone_without_parallel(
    client: AsyncOpenAI, parallel: bool
) -> None:
    answer = await client.chat.completions.create(**asking(tool_choice="required", parallel_tool_calls=parallel))
    [choice] = answer.choices
    calls = choice.message.tool_calls
    if choice.finish_reason == "length":  # a small model may not find an end of several calls
        assert parallel
        calls = calls[:-1]
    else:
        assert choice.finish_reason == "tool_calls"
        assert calls
    check_calls(calls)
    if not parallel:
        assert len(calls) == 1


async def test_auto_gives_text_or_whole_calls_and_never_a_mark(client: AsyncOpenAI) -> None:
    for seed in range(3):
        _, text, calls, reason = await streamed(client, temperature=1.0, seed=seed, max_tokens=40)
        assert "tool_call>" not in text
        assert "<function" not in text
        if calls and reason != "length":
            assert reason == "tool_calls"
            check_calls(list(calls.values()))
        elif not calls:
            assert reason in {"stop", "length"}


async def test_none_writes_text_and_no_calls(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(**asking(tool_choice="none", max_tokens=8))
    [choice] = answer.choices

    assert choice.finish_reason in {"stop", "length"}
    assert "tool_calls" not in choice.message.to_dict()
    assert choice.message.content


async def test_a_call_cut_by_the_token_limit_is_no_call_to_run(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(**asking(tool_choice=NAMED, max_tokens=1))
    assert answer.choices[0].finish_reason == "length"
    _, text, _, reason = await streamed(client, tool_choice=NAMED, max_tokens=1)
    assert (reason, text) == ("length", "")


@pytest.mark.parametrize(
    "function",
    [
        {},
        {"parameters": {}},
        {"parameters": {"type": "object"}},
        {"parameters": {"type": "object", "properties": {}}},
        {"parameters": {"type": "object", "properties": {}, "required": None}},
        {"parameters": {"type": "object", "properties": [], "required": []}},
        {"parameters": None},
    ],
)
async def test_a_function_without_parameters_is_called_with_an_empty_object(
    client: AsyncOpenAI, function: dict[str, Any]
) -> None:
    tool: Any = {"type": "function", "function": {"name": "now", **function}}
    named: Any = {"type": "function", "function": {"name": "now"}}
    answer = await client.chat.completions.create(**asking(tools=[tool], tool_choice=named))
    [call] = answer.choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {}
    assert answer.choices[0].finish_reason == "tool_calls"


async def test_calls_and_their_results_go_back_to_the_model(client: AsyncOpenAI) -> None:
    first = await client.chat.completions.create(**asking(tool_choice=NAMED))
    message = first.choices[0].message
    history: list[Any] = [*ASK, message.to_dict()]
    history.append({"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "4 degrees, rain"})

    second = await client.chat.completions.create(**asking(messages=history, max_tokens=8))

    assert first.usage.prompt_tokens < second.usage.prompt_tokens
    assert second.choices[0].finish_reason in {"stop", "length", "tool_calls"}


async def test_results_of_parallel_calls_are_taken_in_any_order(client: AsyncOpenAI) -> None:
    called = [
        {
            "id": f"call_{city}",
            "type": "function",
            "function": {"name": "get_weather", "arguments": f'{{"city":"{city}"}}'},
        }
        for city in ("Oslo", "Rome")
    ]
    results = [{"role": "tool", "tool_call_id": f"call_{city}", "content": city} for city in ("Rome", "Oslo")]
    history: Any = [*ASK, {"role": "assistant", "content": None, "tool_calls": called}, *results]
    answer = await client.chat.completions.create(**asking(messages=history, max_tokens=4))
    assert answer.choices[0].message.role == "assistant"


async def test_a_history_without_ids_is_matched_by_order(client: AsyncOpenAI) -> None:
    call = {"id": None, "type": None, "function": {"name": "now", "arguments": "{}"}}
    history: Any = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": None, "content": "ok"},
    ]
    answer = await client.chat.completions.create(model="default", messages=history, max_tokens=4)
    assert answer.choices[0].message.role == "assistant"


async def test_a_schema_that_cannot_be_held_names_the_tool_and_the_keyword(
    served: Running, client: AsyncOpenAI
) -> None:
    if served.server.engine.name == "sim":
        pytest.skip("the simulator reads more of JSON Schema than a grammar can hold")
    odd: Any = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^a(?=b)"}}, "required": ["a"]}
    tools: Any = [NOW, {"type": "function", "function": {"name": "odd", "parameters": odd}}]
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(**asking(tools=tools, tool_choice="required"), stream=stream)
        assert caught.value.code == "invalid_parameter"
        assert caught.value.param == "tools[1].function.parameters"
        assert "pattern" in caught.value.message


async def test_scores_belong_to_visible_text_alone(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(**asking(tool_choice=NAMED, logprobs=True, top_logprobs=1))
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.logprobs is None or choice.logprobs.content == []


async def test_an_answer_format_leaves_calls_possible(served: Running, client: AsyncOpenAI) -> None:
    if served.server.engine.name == "sim":
        pytest.skip("the simulator writes what its rules say")
    form: Any = {"type": "json_schema", "json_schema": {"name": "out", "schema": {"enum": ["yes", "no"]}}}
    answer = await client.chat.completions.create(**asking(response_format=form))
    [choice] = answer.choices
    if choice.message.tool_calls:
        check_calls(choice.message.tool_calls)
    else:
        assert json.loads(choice.message.content or "") in ("yes", "no")
