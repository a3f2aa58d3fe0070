"""Answers of a real model: repeatable, whole, honest about their ends, and quick to begin again."""

import math

import pytest

from pocketserver.chat import FinishReason, Grammar, Sampling, Tool
from pocketserver.engines.llama.process import LlamaEngine
from pocketserver.errors import Code, Refusal
from tests.engines.llama.asking import answered, asking, completing

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.real_model]

STORY = "Tell me a short story about a lighthouse."


async def test_a_greedy_answer_is_the_same_each_time(engine: LlamaEngine) -> None:
    first = await answered(engine, asking(STORY, max_tokens=24))
    again = await answered(engine, asking(STORY, max_tokens=24))
    assert first.text == again.text
    assert first.finished.usage.completion_tokens == 24
    assert first.finished.reason is FinishReason.LENGTH


async def test_the_same_seed_gives_the_same_answer_and_another_seed_another(engine: LlamaEngine) -> None:
    texts = [
        (await answered(engine, asking(STORY, max_tokens=24, sampling=Sampling(temperature=1.2, seed=seed)))).text
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.0, top_p=0.0),
        Sampling(temperature=1e-30, seed=3),
        Sampling(temperature=1.0, top_p=1e-9, seed=3),
        Sampling(temperature=2.0, top_k=1, seed=3),
        Sampling(temperature=1.0, min_p=1.0, seed=3),
    ],
)
async def test_temperatures_and_filters_at_their_edge_are_greedy(engine: LlamaEngine, sampling: Sampling) -> None:
    greedy = await answered(engine, asking(STORY, max_tokens=12))
    edge = await answered(engine, asking(STORY, max_tokens=12, sampling=sampling))
    assert edge.text == greedy.text


async def test_every_token_is_streamed_by_itself_and_counted(engine: LlamaEngine) -> None:
    answer = await answered(engine, asking(STORY, max_tokens=20))
    assert len(answer.deltas) > 10
    assert sum(delta.tokens for delta in answer.deltas) == answer.finished.usage.completion_tokens == 20
    assert answer.finished.timings.generation_seconds > 0
    assert answer.finished.timings.load_seconds > 0


async def test_a_stop_string_over_several_tokens_ends_the_answer_and_never_shows(engine: LlamaEngine) -> None:
    whole = (await answered(engine, asking(STORY, max_tokens=24))).text
    stop = whole[len(whole) // 2 - 6 : len(whole) // 2 + 6]
    answer = await answered(engine, asking(STORY, max_tokens=24, stop=("no such text", stop)))
    assert answer.text == whole[: whole.index(stop)]
    assert answer.finished.reason is FinishReason.STOP
    assert answer.finished.stop_sequence == stop


async def test_characters_of_several_tokens_come_whole(engine: LlamaEngine) -> None:
    wanted = "\U0001f469\u200d\U0001f4bb \u65e5\u672c\u8a9e \u00e9\u00e8"
    answer = await answered(
        engine, asking("Emoji", max_tokens=60, constraint=Grammar(syntax="regex", definition=wanted))
    )
    assert answer.text == wanted
    assert all("\ufffd" not in delta.text for delta in answer.deltas)
    assert answer.finished.reason is FinishReason.STOP


async def test_what_the_context_holds_already_is_not_read_again(engine: LlamaEngine) -> None:
    first = await answered(engine, asking(STORY, max_tokens=4))
    again = await answered(engine, asking(STORY, max_tokens=4))
    usage = again.finished.usage
    assert usage.cached_tokens == usage.prompt_tokens - 1
    assert again.text == first.text
    other = await answered(engine, asking("Something else entirely?", max_tokens=4))
    assert 0 < other.finished.usage.cached_tokens < other.finished.usage.prompt_tokens


async def test_scores_are_probabilities_and_belong_to_the_shown_text(engine: LlamaEngine) -> None:
    answer = await answered(engine, asking(STORY, max_tokens=8, top_logprobs=3))
    assert b"".join(score.bytes for score in answer.scores).decode() == answer.text
    for score in answer.scores:
        assert score.token == score.top[0].token  # greedy takes the best
        assert len(score.top) == 3
        assert 0 < sum(math.exp(top.logprob) for top in score.top) <= 1.0001


async def test_scores_do_not_change_the_answer(engine: LlamaEngine) -> None:
    plain = await answered(engine, asking(STORY, max_tokens=8))
    scored = await answered(engine, asking(STORY, max_tokens=8, top_logprobs=0))
    assert scored.text == plain.text
    assert all(score.top == () for score in scored.scores)


async def test_bias_and_penalties_change_what_is_chosen(engine: LlamaEngine) -> None:
    ones = "1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,"
    plain = await answered(engine, completing(ones, max_tokens=6))
    punished = Sampling(temperature=0, repeat_penalty=2.0, presence_penalty=2.0)
    varied = await answered(engine, completing(ones, max_tokens=6, sampling=punished))
    dry = Sampling(temperature=0, dry_multiplier=5.0)
    dried = await answered(engine, completing(ones, max_tokens=6, sampling=dry))
    assert plain.text.split() == ["1,", "1,"]
    assert varied.text != plain.text
    assert dried.text != plain.text


async def test_a_count_is_what_the_answer_reports_and_needs_no_lane(engine: LlamaEngine) -> None:
    async with engine.generate(asking(STORY, max_tokens=200)) as stream:
        await anext(stream)
        counted = await engine.count(asking("How many tokens is this?"))
    answer = await answered(engine, asking("How many tokens is this?", max_tokens=1))
    assert counted == answer.finished.usage.prompt_tokens


async def test_no_begin_token_is_added_to_a_model_that_wants_none(engine: LlamaEngine) -> None:
    assert await engine.count(completing("hi")) == 1


async def test_a_cancel_inside_a_long_prompt_frees_the_model(engine: LlamaEngine) -> None:
    words = [f"word{number}" for number in range(1200)]
    worker = engine.status.worker_pid
    async with engine.generate(completing(" ".join(words))):
        pass
    begin = await answered(engine, completing(" ".join(words[:200]), max_tokens=1))
    assert engine.status.worker_pid == worker
    assert begin.finished.usage.cached_tokens < 520 < begin.finished.usage.prompt_tokens
    assert begin.finished.usage.completion_tokens == 1


async def test_a_cancelled_prompt_leaves_a_truthful_context(engine: LlamaEngine) -> None:
    prompt = " ".join(f"item {number}," for number in range(30))
    fresh = await answered(engine, completing(prompt, max_tokens=8))
    await answered(engine, completing("Another text", max_tokens=1))
    async with engine.generate(completing(prompt, max_tokens=8)):
        pass
    again = await answered(engine, completing(prompt, max_tokens=8))
    assert again.text == fresh.text


async def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(engine: LlamaEngine) -> None:
    size = engine.status.context_size
    assert size is not None
    request = completing("word " * (size + 100))
    counted = await engine.count(request)
    with pytest.raises(Refusal, match=f"maximum context length is {size} tokens.*{counted} tokens") as caught:
        async with engine.generate(request):
            pass
    assert caught.value.code is Code.CONTEXT_LENGTH_EXCEEDED
    assert caught.value.details == {"prompt_tokens": counted, "context_size": size}


async def test_tools_are_refused_on_a_template_without_them(engine: LlamaEngine) -> None:
    with pytest.raises(Refusal) as caught:
        async with engine.generate(asking("Weather?", tools=(Tool(name="weather"),))):
            pass
    assert caught.value.code is Code.TOOLS_UNSUPPORTED
    assert not engine.status.supports_tools
