"""Tool use through the official `anthropic` package: the simulator, and the real model under two ways to write calls."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import jsonschema
import pytest
import pytest_asyncio
from anthropic import AsyncAnthropic

from tests.clients.anthropic_serving import client_of, serving_messages
from tests.clients.engines import make_calling_engine
from tests.serving import Running

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
WEATHER: Any = {"name": "get_weather", "input_schema": PLACE}
NOW: Any = {"name": "now", "description": "The time", "input_schema": {"type": "object", "properties": {}}}
SCHEMAS: dict[str, Any] = {"get_weather": PLACE, "now": {"type": "object", "maxProperties": 0}}
NAMED: Any = {"type": "tool", "name": "get_weather"}

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(params=ENGINES, scope="module", loop_scope="module")
async def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """One server a module and way to call; the model is loaded once for each."""
    home = tmp_path_factory.mktemp("home")
    async with serving_messages(home, await make_calling_engine(request, home)) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module")
async def client(served: Running) -> AsyncIterator[AsyncAnthropic]:
    async with client_of(served) as sdk:
        yield sdk


def asking(**fields: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {"model": "default", "messages": ASK, "max_tokens": 120, "extra_body": {"temperature": 0}}
    return {**asked, "tools": [WEATHER, NOW], **fields}


async def answer(client: AsyncAnthropic, *, stream: bool, **fields: Any) -> Any:
    """The message, put together by the SDK where it is streamed."""
    if not stream:
        return await client.messages.create(**asking(**fields))
    async with client.messages.stream(**asking(**fields)) as events:
        return await events.get_final_message()


def calls_of(message: Any) -> list[Any]:
    """The calls, each checked: a declared tool, arguments that follow its schema, an id of its own."""
    calls = [block for block in message.content if block.type == "tool_use"]
    assert len({call.id for call in calls}) == len(calls)
    for call in calls:
        assert call.id.startswith("toolu_")
        jsonschema.validate(call.input, SCHEMAS[call.name])
    return calls


@pytest.mark.parametrize("stream", [False, True])
async def test_a_named_tool_is_called_once_and_its_schema_holds(client: AsyncAnthropic, stream: bool) -> None:
    message = await answer(client, stream=stream, tool_choice=NAMED)

    assert message.stop_reason == "tool_use"
    assert [block.type for block in message.content] == ["tool_use"]
    assert [call.name for call in calls_of(message)] == ["get_weather"]


async def test_fragments_of_the_input_join_to_its_json_text(client: AsyncAnthropic) -> None:
    stream = await client.messages.create(**asking(tool_choice=NAMED), stream=True)
    events = [event async for event in stream]

    [start] = [event for event in events if event.type == "content_block_start"]
    assert (start.content_block.type, start.content_block.input) == ("tool_use", {})
    deltas = [event.delta for event in events if event.type == "content_block_delta"]
    assert {delta.type for delta in deltas} == {"input_json_delta"}
    jsonschema.validate(json.loads("".join(delta.partial_json for delta in deltas)), PLACE)


@pytest.mark.parametrize("single", [True, False])
async def test_any_calls_at_least_one_tool_and_one_alone_without_parallel(client: AsyncAnthropic, single: bool) -> None:
    message = await answer(client, stream=False, tool_choice={"type": "any", "disable_parallel_tool_use": single})
    calls = calls_of(message)
    if message.stop_reason == "max_tokens":  # a small model may not find an end of several calls
        assert not single
    else:
        assert message.stop_reason == "tool_use"
        assert calls
    assert len(calls) == 1 or not single


@pytest.mark.parametrize("stream", [False, True])
async def test_auto_gives_text_or_whole_calls_and_never_a_mark(client: AsyncAnthropic, stream: bool) -> None:
    message = await answer(client, stream=stream, max_tokens=40, extra_body={"temperature": 1.0})
    text = "".join(block.text for block in message.content if block.type == "text")
    assert "tool_call>" not in text
    assert "<function" not in text
    if message.stop_reason == "tool_use":
        assert calls_of(message)


async def test_none_writes_text_and_no_calls(client: AsyncAnthropic) -> None:
    message = await answer(client, stream=False, tool_choice={"type": "none"}, max_tokens=8)
    assert [block.type for block in message.content] == ["text"]
    assert message.stop_reason in {"end_turn", "max_tokens"}


async def test_a_tool_without_parameters_is_called_with_an_empty_input(client: AsyncAnthropic) -> None:
    for stream in (False, True):
        message = await answer(client, stream=stream, tools=[NOW], tool_choice={"type": "tool", "name": "now"})
        assert [call.input for call in calls_of(message)] == [{}]


async def test_a_call_cut_by_the_token_limit_is_no_call_to_run(client: AsyncAnthropic) -> None:
    message = await answer(client, stream=False, tool_choice=NAMED, max_tokens=2)
    assert message.stop_reason == "max_tokens"
    assert calls_of(message) == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_and_its_result_go_back_to_the_model(client: AsyncAnthropic, stream: bool) -> None:
    first = await answer(client, stream=stream, tool_choice=NAMED)
    [call] = calls_of(first)
    result = {
        "type": "tool_result",
        "tool_use_id": call.id,
        "content": [{"type": "text", "text": "4 degrees, rain", "cache_control": {"type": "ephemeral"}}],
        "is_error": False,
    }
    history: list[Any] = [*ASK, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]

    second = await answer(client, stream=stream, messages=history, max_tokens=8)

    assert second.stop_reason in {"end_turn", "max_tokens", "tool_use"}
    counted = [
        (await client.messages.count_tokens(model="default", messages=messages, tools=[WEATHER, NOW])).input_tokens
        for messages in (ASK, history)
    ]
    assert counted[0] < counted[1]


async def test_the_helper_that_runs_tools_comes_to_an_end(served: Running, client: AsyncAnthropic) -> None:
    """The SDK's own loop: call, run, send the result, until the model answers in words."""
    if served.server.engine.name != "sim":
        pytest.skip("a model this small may call for ever")
    assert served.server.simulator is not None
    rules = served.server.simulator.engine.rules
    from pocketserver.engines.sim.rules import Match, NewRule, Reply, ScriptedCall

    called = Reply(text="I look.", tool_calls=(ScriptedCall(name="look", arguments={"place": "Oslo"}),))
    rules.add(NewRule(match=Match(regex="^weather"), reply=called))
    rules.add(NewRule(match=Match(last_message="rain in Oslo"), reply=Reply(text="It rains.")))
    asked: list[str] = []

    @anthropic.beta_async_tool
    async def look(place: str) -> str:
        """Look at the sky."""
        asked.append(place)
        return f"rain in {place}"

    runner = client.beta.messages.tool_runner(
        model="default", max_tokens=50, tools=[look], messages=[{"role": "user", "content": "weather?"}]
    )
    last = await runner.until_done()
    rules.clear()

    assert asked == ["Oslo"]
    assert [block.text for block in last.content if block.type == "text"] == ["It rains."]


async def test_a_hosted_tool_is_dropped_with_a_warning_where_the_server_is_set_so(client: AsyncAnthropic) -> None:
    search: Any = {"type": "web_search_20250305", "name": "web_search", "max_uses": 1}
    message = await answer(client, stream=False, tools=[search, NOW], max_tokens=4)
    assert "tools.0:web_search_20250305 does not run here and was dropped" in message.to_dict()["warnings"]


async def test_a_schema_that_cannot_be_held_names_the_keyword(served: Running, client: AsyncAnthropic) -> None:
    if served.server.engine.name == "sim":
        pytest.skip("the simulator reads more of JSON Schema than a grammar can hold")
    odd: Any = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^a(?=b)"}}, "required": ["a"]}
    for stream in (False, True):
        with pytest.raises(anthropic.BadRequestError, match=r"tools\.1\.input_schema: .*pattern"):
            await answer(
                client, stream=stream, tools=[NOW, {"name": "odd", "input_schema": odd}], tool_choice={"type": "any"}
            )
