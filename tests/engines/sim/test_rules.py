"""Scripted replies: what matches, in which order, and every kind of thing that a reply can say."""

from typing import Any

import msgspec
import pytest

from pocketserver.chat import (
    Event,
    Finished,
    FinishReason,
    GenerationRequest,
    Message,
    ReasoningDelta,
    Role,
    TextDelta,
    Tool,
    ToolCall,
    ToolCallDelta,
    ToolCallStarted,
    ToolChoice,
    ToolMode,
)
from pocketserver.engines.sim.engine import SimEngine, SimOptions
from pocketserver.engines.sim.prose import token_count, tokens_of
from pocketserver.engines.sim.rules import NewRule
from pocketserver.errors import Code, Refusal
from tests.engines.sim.test_sim_engine import FAST, question

WEATHER = Tool(
    name="weather",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
        "required": ["city", "days"],
    },
)
CLOCK = Tool(name="clock")


async def events(engine: SimEngine, request: GenerationRequest) -> list[Event]:
    async with engine.generate(request) as stream:
        return [event async for batch in stream for event in batch]


def text(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def calls(events: list[Event]) -> list[tuple[str, Any]]:
    started = [event for event in events if isinstance(event, ToolCallStarted)]
    pieces = [event for event in events if isinstance(event, ToolCallDelta)]
    return [
        (call.name, msgspec.json.decode("".join(piece.arguments for piece in pieces if piece.index == call.index)))
        for call in started
    ]


def finished(events: list[Event]) -> Finished:
    *_, last = events
    assert isinstance(last, Finished)
    return last


def ruled(*rules: dict[str, Any]) -> SimEngine:
    engine = SimEngine(FAST)
    for rule in rules:
        engine.rules.add(msgspec.convert(rule, NewRule))
    return engine


async def test_counted_rules_come_first_in_their_order_then_the_newest() -> None:
    engine = ruled(
        {"reply": {"text": "old"}},
        {"reply": {"text": "new"}},
        {"reply": {"text": "first"}, "times": 1},
        {"reply": {"text": "second"}, "times": 2},
    )
    said = [text(await events(engine, question())) for _ in range(5)]

    assert said == ["first", "second", "second", "new", "new"]


async def test_a_rule_that_is_taken_away_gives_way_to_the_next() -> None:
    engine = ruled({"reply": {"text": "old"}})
    newer = engine.rules.add(msgspec.convert({"reply": {"text": "new"}}, NewRule))
    before = text(await events(engine, question()))

    assert engine.rules.remove(newer)
    assert not engine.rules.remove(newer)
    after = text(await events(engine, question()))
    engine.rules.clear()

    assert (before, after) == ("new", "old")
    assert text(await events(engine, question())) not in (before, after)


@pytest.mark.parametrize(
    ("match", "fits"),
    [
        ({}, True),
        ({"model": "sim-1b"}, True),
        ({"model": "other"}, False),
        ({"last_message": "ello"}, True),
        ({"last_message": "bye"}, False),
        ({"regex": "^[Hh]ello"}, True),
        ({"regex": "^there"}, False),
        ({"has_tools": False}, True),
        ({"has_tools": True}, False),
        ({"last_message": "hello", "has_tools": True}, False),
    ],
)
async def test_a_rule_fits_by_everything_that_it_names(match: dict[str, Any], fits: bool) -> None:
    engine = ruled({"match": match, "reply": {"text": "RULE"}})
    request = question("hello there")

    assert (text(await events(engine, request)) == "RULE") is fits


async def test_a_reminder_behind_what_was_said_does_not_hide_it_from_rules() -> None:
    engine = ruled({"match": {"regex": "^hello$"}, "reply": {"text": "RULE"}})
    reminder = Message(role=Role.SYSTEM, content="Tokens left: 1000.")
    asked = question("hello")
    reminded = msgspec.structs.replace(asked, messages=(*asked.messages, reminder))

    assert text(await events(engine, reminded)) == "RULE"


async def test_tools_and_calls_count_in_the_prompt() -> None:
    engine = SimEngine(FAST)
    asked = question("hello")
    call = Message(role=Role.ASSISTANT, tool_calls=(ToolCall(id="1", name="clock", arguments='{"zone": "CET"}'),))
    with_tool = msgspec.structs.replace(asked, tools=(CLOCK,))
    with_call = msgspec.structs.replace(asked, messages=(*asked.messages, call))
    definition = '{"name": "clock", "description": "", "parameters": {}}'
    alone = await engine.count(asked)

    assert await engine.count(with_tool) == alone + token_count(definition) + 4
    assert await engine.count(with_call) == alone + 4 + token_count('clock{"zone": "CET"}') + 4


async def test_reasoning_comes_before_the_text_and_is_counted() -> None:
    engine = ruled({"reply": {"reasoning": "let me see", "text": "yes"}})
    said = await events(engine, question())

    assert "".join(event.text for event in said if isinstance(event, ReasoningDelta)) == "let me see"
    assert text(said) == "yes"
    assert (finished(said).usage.reasoning_tokens, finished(said).usage.completion_tokens) == (3, 4)


async def test_calls_come_in_pieces_that_join_to_their_arguments() -> None:
    call = {"name": "weather", "arguments": {"city": "Zürich am See mit langem Namen", "days": 3}}
    said = await events(ruled({"reply": {"text": "Looking.", "tool_calls": [call, {"name": "clock"}]}}), question())

    assert text(said) == "Looking."
    assert calls(said) == [("weather", call["arguments"]), ("clock", {})]
    assert finished(said).reason is FinishReason.TOOL_CALLS
    assert len({event.id for event in said if isinstance(event, ToolCallStarted)}) == 2


async def test_a_demanded_call_has_arguments_that_the_schema_admits() -> None:
    import jsonschema

    choice = ToolChoice(mode=ToolMode.REQUIRED)
    said = await events(SimEngine(FAST), question(tools=(WEATHER, CLOCK), tool_choice=choice))

    [(name, arguments)] = calls(said)
    assert name == "weather"
    jsonschema.validate(arguments, dict(WEATHER.parameters))


async def test_a_named_tool_is_the_one_that_is_called() -> None:
    choice = ToolChoice(mode=ToolMode.REQUIRED, name="clock")
    said = await events(SimEngine(FAST), question(tools=(WEATHER, CLOCK), tool_choice=choice))

    assert calls(said) == [("clock", {})]


async def test_tool_choice_none_never_calls_even_when_a_rule_says_so() -> None:
    engine = ruled({"reply": {"tool_calls": [{"name": "clock"}]}})
    said = await events(engine, question(tools=(CLOCK,), tool_choice=ToolChoice(mode=ToolMode.NONE)))

    assert calls(said) == []
    assert text(said)


async def test_tools_are_refused_by_a_model_without_them() -> None:
    engine = SimEngine(FAST)
    engine.device.model = msgspec.structs.replace(engine.device.model, tools=False)

    with pytest.raises(Refusal) as caught:
        await events(engine, question(tools=(CLOCK,)))
    assert caught.value.code is Code.TOOLS_UNSUPPORTED


async def test_a_rule_can_refuse_by_code_or_in_words() -> None:
    engine = ruled(
        {"reply": {"refusal": {"code": "model_busy", "retry_after": 3}}, "times": 1},
        {"reply": {"refusal": "I would rather not."}, "times": 1},
    )
    with pytest.raises(Refusal) as caught:
        await events(engine, question())
    assert (caught.value.code, caught.value.retry_after) == (Code.MODEL_BUSY, 3)
    assert text(await events(engine, question())) == "I would rather not."


async def test_a_finish_reason_can_be_a_lie() -> None:
    said = await events(ruled({"reply": {"text": "cut", "finish_reason": "length"}}), question())

    assert finished(said).reason is FinishReason.LENGTH


async def test_a_limit_cuts_a_calls_arguments() -> None:
    engine = ruled({"reply": {"tool_calls": [{"name": "weather", "arguments": {"city": "a b c d e f"}}]}})
    said = await events(engine, question(max_tokens=3))

    assert finished(said).reason is FinishReason.LENGTH
    assert finished(said).usage.completion_tokens == 3


async def test_thinking_grows_with_the_effort_and_comes_only_when_asked_for() -> None:
    counts = [
        finished(await events(SimEngine(FAST), question(reasoning_effort=effort))).usage.reasoning_tokens
        for effort in (None, "none", "low", "medium", "high")
    ]
    assert counts == [0, 0, 8, 16, 32]


async def test_a_million_tokens_pile_up_nowhere() -> None:
    engine = SimEngine(SimOptions(tokens_per_second=None, context_size=2_000_000))
    engine.rules.add(msgspec.convert({"reply": {"prose_tokens": 1_000_000}}, NewRule))
    tokens = most = 0
    async with engine.generate(question(max_tokens=1_000_000)) as stream:
        async for batch in stream:
            tokens += len(batch)
            most = max(most, len(batch))

    assert tokens == 1_000_001
    assert most <= 257


@pytest.mark.parametrize(
    "said", ["", " ", "a", "  two  words ", "x" * 100, "a\n\nb\tc", "日本語のとても長い一つの文章です"]
)
def test_tokens_join_to_the_text_and_are_counted_alike(said: str) -> None:
    tokens = tokens_of(said)

    assert "".join(tokens) == said
    assert len(tokens) == token_count(said)
    assert all(len(token) <= 12 for token in tokens)


async def test_the_same_conversation_in_another_order_of_requests_has_the_same_answer() -> None:
    one, other = SimEngine(FAST), SimEngine(FAST)
    await events(other, question("something else"))

    assert text(await events(one, question())) == text(await events(other, question()))
