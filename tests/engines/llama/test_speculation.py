"""Drafts come from the text itself, and change nothing but the time that an answer takes."""

import asyncio
from collections.abc import Sequence

import pytest

from pocketserver.chat import FinishReason, GenerationRequest, Sampling
from pocketserver.engines.llama.runtime import Drafts, KvType
from pocketserver.engines.llama.speculation import Drafter
from tests.engines.llama.asking import Answer, answered, asking
from tests.engines.llama.conftest import MakeEngine

END = 99
PASSAGE = (
    "The old mill stands by the river. In spring the water turns its wheel, and in autumn the miller grinds the corn"
    " that the farmers bring from the hills on their carts."
)
REPEAT = f"Repeat this text exactly:\n\n{PASSAGE}"


def drafter(text: Sequence[int], longest: int = 4) -> Drafter:
    return Drafter(text, Drafts(tokens=longest), {END})


def test_the_text_goes_on_as_it_did_before() -> None:
    assert drafter([1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4], longest=4).draft(10) == [5, 6]  # a short match, half a draft
    long = list(range(1, 30))
    assert drafter([*long, *long[:10]]).draft(10) == [11, 12, 13, 14]
    assert drafter([*long, *long[:10]]).draft(2) == [11, 12]
    assert drafter([*long, *long[:10]]).draft(0) == []


def test_without_a_precedent_there_is_no_draft() -> None:
    assert drafter([]).draft(4) == []
    assert drafter([1, 2, 3]).draft(4) == []
    assert drafter([1, 2, 3, 4, 5, 9, 2, 3]).draft(4) == []


def test_the_longest_precedent_counts() -> None:
    text = [1, 2, 3, 4, 5, 50, 51, 8, 2, 3, 4, 5, 60, 61, 1, 2, 3, 4, 5]
    assert drafter(text).draft(2) == [50, 51]


def test_no_draft_goes_past_the_end_of_a_text() -> None:
    assert drafter([1, 2, 3, 4, END, 7, 1, 2, 3, 4]).draft(4) == []


def test_wrong_drafts_make_it_ask_for_longer_precedents_and_right_ones_for_shorter() -> None:
    found = drafter([1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4])
    found.learn(4, 0)
    assert found.draft(4) == []
    found.learn(4, 4)
    assert found.draft(4) == [5, 6]


async def told(make_engine: MakeEngine, requests: Sequence[GenerationRequest], **options: object) -> list[Answer]:
    engine = make_engine(**options)
    await engine.start()
    await engine.loaded()
    return [await answered(engine, request) for request in requests]


@pytest.mark.real_model
@pytest.mark.parametrize("kv_type", [KvType.BF16, KvType.Q8_0])
async def test_answers_are_the_same_with_drafts_and_without(make_engine: MakeEngine, kv_type: KvType) -> None:
    seeded = Sampling(temperature=0.8, top_p=0.95, seed=3, frequency_penalty=0.1)
    requests = [
        asking(REPEAT, max_tokens=48),
        asking(REPEAT, max_tokens=48, sampling=seeded),
        asking(REPEAT, max_tokens=30, stop=("water",)),
        asking(REPEAT, max_tokens=13, top_logprobs=2),
    ]
    plain = await told(make_engine, requests, kv_type=kv_type, draft_tokens=0)
    drafted = await told(make_engine, requests, kv_type=kv_type, draft_tokens=15)
    for without, with_drafts in zip(plain, drafted, strict=True):
        assert with_drafts.text == without.text
        assert with_drafts.finished.reason == without.finished.reason
        assert with_drafts.finished.usage.completion_tokens == without.finished.usage.completion_tokens
        assert with_drafts.scores == without.scores
    assert any(len(answer.deltas) < answer.finished.usage.completion_tokens for answer in drafted[:2])
    assert drafted[3].finished.reason is FinishReason.LENGTH


@pytest.mark.real_model
async def test_a_cancelled_draft_leaves_a_usable_context(make_engine: MakeEngine) -> None:
    engine = make_engine(kv_type=KvType.BF16, draft_tokens=15)
    await engine.start()
    await engine.loaded()
    request = asking(REPEAT, max_tokens=40)
    whole = await answered(engine, request)
    async with asyncio.timeout(60), engine.generate(asking(REPEAT, max_tokens=40)) as stream:
        await anext(stream)
    assert (await answered(engine, asking(REPEAT, max_tokens=40))).text == whole.text
