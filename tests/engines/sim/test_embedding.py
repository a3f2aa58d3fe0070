"""The simulator's vectors: the same everywhere, of length 1, alike for texts that share words; and its refusals."""

import math

import pytest

from pocketserver.engines.sim.embedding import tokens_to_embed, unit_vector
from pocketserver.engines.sim.engine import SimEngine, SimOptions
from pocketserver.errors import Code, Refusal


def likeness(left: tuple[float, ...], right: tuple[float, ...]) -> float:
    return math.fsum(a * b for a, b in zip(left, right, strict=True))


def vector(text: str) -> tuple[float, ...]:
    return unit_vector(tokens_to_embed(text))


def test_a_vector_is_the_same_on_every_machine_and_has_length_one() -> None:
    assert vector("a quiet harbour")[:2] == pytest.approx((-0.038992974457795995, -0.05653318087778619))
    assert likeness(vector("a quiet harbour"), vector("a quiet harbour")) == pytest.approx(1)
    assert vector("a quiet harbour") != vector("harbour quiet a")


def test_texts_that_share_words_are_alike() -> None:
    assert likeness(vector("the old harbour"), vector("The old harbour town")) > 0.6
    assert abs(likeness(vector("the old harbour"), vector("coffee and paper"))) < 0.3


async def test_too_long_is_refused_or_cut_and_what_is_empty_is_named() -> None:
    engine = SimEngine(SimOptions(context_size=16, tokens_per_second=None))
    await engine.start()
    long = " ".join(["word"] * 20)
    with pytest.raises(Refusal, match=r"input\[1\] resulted in 20 tokens") as caught:
        await engine.embed(["ok", long], truncate=False)
    assert caught.value.code is Code.CONTEXT_LENGTH_EXCEEDED
    cut = await engine.embed(["ok", long], truncate=True)
    assert (cut.prompt_tokens, cut.truncated) == (17, (1,))
    assert cut.vectors[1] == vector(" ".join(["word"] * 16))
    with pytest.raises(Refusal, match=r"input\[0\] is empty"):
        await engine.embed([""], truncate=True)


async def test_nothing_is_embedded_without_a_model() -> None:
    engine = SimEngine(SimOptions(tokens_per_second=None))
    await engine.close()
    with pytest.raises(Refusal) as caught:
        await engine.embed(["text"], truncate=False)
    assert caught.value.code is Code.MODEL_NOT_LOADED
