"""The simulated engine: the same seed gives the same answer, scripted tokens come out as characters, time can be off."""

import asyncio
from collections.abc import Sequence

import pytest

from pocketserver.chat import (
    Event,
    Finished,
    FinishReason,
    GenerationRequest,
    JsonSchema,
    Message,
    Role,
    Sampling,
    TextDelta,
)
from pocketserver.engines.sim.engine import SimEngine, SimOptions
from pocketserver.engines.sim.prose import tokens_of
from pocketserver.errors import Code, Refusal

FAST = SimOptions(tokens_per_second=None)


def question(text: str = "hi", **fields: object) -> GenerationRequest:
    return GenerationRequest(id="r", model="sim-1b", messages=(Message(role=Role.USER, content=text),), **fields)  # type: ignore[arg-type]


async def answer(engine: SimEngine, request: GenerationRequest) -> tuple[str, Finished]:
    events: list[Event] = []
    async with engine.generate(request) as stream:
        async for batch in stream:
            events.extend(batch)
    *_, last = events
    assert isinstance(last, Finished)
    return "".join(event.text for event in events if isinstance(event, TextDelta)), last


async def test_the_default_reply_is_forty_tokens_of_prose() -> None:
    text, finished = await answer(SimEngine(FAST), question())

    assert text == (await answer(SimEngine(FAST), question()))[0]
    assert len(tokens_of(text)) >= 40
    assert finished.usage.completion_tokens == 40
    assert finished.reason is FinishReason.STOP


async def test_another_seed_gives_another_answer() -> None:
    engine = SimEngine(FAST)
    first, _ = await answer(engine, question(sampling=Sampling(seed=1)))

    assert first == (await answer(engine, question(sampling=Sampling(seed=1))))[0]
    assert first != (await answer(engine, question(sampling=Sampling(seed=2))))[0]


async def test_the_token_limit_ends_the_answer_as_length() -> None:
    _, finished = await answer(SimEngine(FAST), question(max_tokens=3))

    assert finished.usage.completion_tokens == 3
    assert finished.reason is FinishReason.LENGTH


async def test_an_answer_of_exactly_the_limit_is_a_stop() -> None:
    _, finished = await answer(SimEngine(FAST), question(max_tokens=40))

    assert finished.reason is FinishReason.STOP


async def test_scripted_bytes_come_out_as_whole_characters() -> None:
    engine = SimEngine(FAST)
    engine.script([b"\xf0\x9f", b"\x91\xa9\xe2", b"\x80\x8d\xf0\x9f\x92\xbb", b"\xe6\x97", b"\xa5\xe6\x9c\xac"])

    text, finished = await answer(engine, question())

    assert text == "\U0001f469\u200d\U0001f4bb\u65e5\u672c"
    assert finished.usage.completion_tokens == 5


async def test_a_stop_string_over_several_tokens_never_shows() -> None:
    engine = SimEngine(FAST)
    engine.script(["ABC", "DE", "F", "GH", "IJK"])

    text, finished = await answer(engine, question(stop=("DEFGHIJ",)))

    assert text == "ABC"
    assert (finished.usage.completion_tokens, finished.stop_sequence) == (5, "DEFGHIJ")


async def test_echo_repeats_the_last_message() -> None:
    engine = SimEngine(SimOptions(tokens_per_second=None, reply="echo"))

    assert (await answer(engine, question("say this  back\n")))[0] == "say this  back\n"


async def test_a_prompt_that_leaves_no_room_is_refused_with_both_numbers() -> None:
    engine = SimEngine(SimOptions(tokens_per_second=None, context_size=16))

    with pytest.raises(Refusal, match="maximum context length is 16 tokens") as caught:
        await answer(engine, question("word " * 50))

    assert caught.value.code is Code.CONTEXT_LENGTH_EXCEEDED
    assert caught.value.details["prompt_tokens"] > 50


async def test_a_schema_is_answered_by_a_value_of_its_shape() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}

    text, _ = await answer(SimEngine(FAST), question(constraint=JsonSchema(schema=schema)))

    assert text in {'{"a": "x"}', '{"a": "y"}'}


async def test_leaving_the_block_ends_the_generation() -> None:
    engine = SimEngine(SimOptions(tokens_per_second=0.001))

    async with engine.generate(question()):
        assert engine.running == 1

    assert engine.running == 0


async def test_a_failure_wakes_the_reader_ahead_of_everything() -> None:
    engine = SimEngine(SimOptions(tokens_per_second=0.001))

    async with engine.generate(question()) as stream:
        asyncio.get_running_loop().call_soon(stream.fail, Refusal(Code.REQUEST_CANCELLED, "stopped"))
        with pytest.raises(Refusal, match="stopped"):
            await anext(stream)


async def test_a_long_reply_does_not_pile_up_for_a_slow_reader() -> None:
    engine = SimEngine(SimOptions(tokens_per_second=None, reply_tokens=100_000, context_size=200_000))
    sizes: list[Sequence[Event]] = []

    async with engine.generate(question(max_tokens=100_000)) as stream:
        async for batch in stream:
            await asyncio.sleep(0)
            assert stream.unread_batches <= 6
            sizes.append(batch)

    assert sum(map(len, sizes)) == 100_001
