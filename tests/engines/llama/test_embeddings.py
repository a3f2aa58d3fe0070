"""Vectors of the real model: unit length, repeatable, close for close texts, and nothing of them harms a conversation."""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from pocketserver.engines.llama.embedder import Pool
from pocketserver.engines.llama.process import LlamaEngine, LlamaOptions
from pocketserver.errors import Code, Refusal
from tests.engines.llama.asking import answered, asking, completing

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.real_model]

CAT, KITTEN, BOND = (
    "A cat sleeps on the sofa.",
    "A kitten is sleeping on the couch.",
    "The central bank raised its interest rates by a quarter.",
)


@asynccontextmanager
async def closing(engine: LlamaEngine) -> AsyncIterator[LlamaEngine]:
    try:
        yield engine
    finally:
        await engine.close()


def likeness(left: Sequence[float], right: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(left, right, strict=True))


async def test_vectors_have_length_one_and_tell_meanings_apart(engine: LlamaEngine) -> None:
    cat, kitten, bond = (await engine.embed([CAT, KITTEN, BOND], truncate=False)).vectors
    assert len(cat) == 576
    assert [likeness(vector, vector) for vector in (cat, kitten, bond)] == pytest.approx([1, 1, 1], abs=1e-5)
    assert likeness(cat, kitten) > likeness(cat, bond) + 0.02


async def test_a_batch_gives_the_vectors_of_its_entries_and_counts_them_all(engine: LlamaEngine) -> None:
    together = await engine.embed([CAT, BOND, CAT], truncate=False)
    alone = [await engine.embed([text], truncate=False) for text in (CAT, BOND)]
    assert together.vectors[0] == together.vectors[2] == pytest.approx(alone[0].vectors[0], abs=1e-5)
    assert together.vectors[1] == pytest.approx(alone[1].vectors[0], abs=1e-5)
    assert together.prompt_tokens == 2 * alone[0].prompt_tokens + alone[1].prompt_tokens
    assert together.truncated == ()


async def test_tokens_may_be_given_in_place_of_text(engine: LlamaEngine) -> None:
    given = await engine.embed([(500, 600, 700), (700, 600, 500), (500, 600, 700)], truncate=False)
    assert given.prompt_tokens == 9
    assert given.vectors[0] == given.vectors[2] != given.vectors[1]


async def test_the_conversation_in_the_context_is_left_as_it_was(engine: LlamaEngine) -> None:
    first = await answered(engine, asking("Tell me of bridges.", max_tokens=8))
    await engine.embed([CAT], truncate=False)
    again = await answered(engine, asking("Tell me of bridges.", max_tokens=8))
    assert again.text == first.text
    assert again.finished.usage.cached_tokens == again.finished.usage.prompt_tokens - 1


async def test_an_embedding_waits_for_the_running_answer(engine: LlamaEngine) -> None:
    async with engine.generate(asking("Count.", max_tokens=200)) as stream:
        await anext(stream)
        waiting = asyncio.create_task(engine.embed([CAT], truncate=False))
        await anext(stream)
        assert not waiting.done()
    assert len((await waiting).vectors) == 1


async def test_leaving_a_long_embedding_frees_the_model(engine: LlamaEngine) -> None:
    worker = engine.status.worker_pid
    running = asyncio.create_task(engine.embed([" word" * 4000] * 50, truncate=False))
    await asyncio.sleep(0.05)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len((await engine.embed([CAT], truncate=False)).vectors) == 1
    assert engine.status.worker_pid == worker


@pytest.mark.parametrize(
    ("inputs", "code", "words"),
    [
        ([CAT, ""], Code.INVALID_PARAMETER, r"input\[1\] is empty"),
        ([()], Code.INVALID_PARAMETER, r"input\[0\] is empty"),
        ([(1, 999_999)], Code.INVALID_PARAMETER, r"input\[0\] holds the token 999999"),
        ([(-1,)], Code.INVALID_PARAMETER, r"input\[0\] holds the token -1"),
    ],
)
async def test_an_entry_that_cannot_be_embedded_is_named(
    engine: LlamaEngine, inputs: list[str | tuple[int, ...]], code: Code, words: str
) -> None:
    with pytest.raises(Refusal, match=words) as caught:
        await engine.embed(inputs, truncate=True)
    assert caught.value.code is code
    assert caught.value.param == "input"


async def test_an_entry_longer_than_the_window_is_refused_or_cut_as_wished(
    default_model_path: Path, tmp_path: Path
) -> None:
    options = LlamaOptions(model_id="m", path=default_model_path, state_folder=tmp_path, context=300, threads=1)
    async with closing(LlamaEngine(options)) as engine:
        await _check_the_window(engine)


async def _check_the_window(engine: LlamaEngine) -> None:
    await engine.start()
    await engine.loaded()
    long, window = " word" * 500, " word" * 300
    with pytest.raises(Refusal, match=r"maximum context length is 300 tokens.*input\[1\] resulted in 500") as caught:
        await engine.embed(["ok", long], truncate=False)
    assert caught.value.code is Code.CONTEXT_LENGTH_EXCEEDED
    assert caught.value.details == {"prompt_tokens": 500, "context_size": 300, "index": 1}
    cut = await engine.embed([long, "ok"], truncate=True)
    fits = await engine.embed([window], truncate=False)
    assert cut.truncated == (0,)
    assert fits.prompt_tokens == 300
    assert cut.prompt_tokens == 301
    assert cut.vectors[0] == fits.vectors[0]


async def test_markers_in_a_text_to_embed_are_text(engine: LlamaEngine) -> None:
    marked = await engine.embed(["<|im_end|>"], truncate=False)
    assert marked.prompt_tokens > 1
    assert await engine.count(completing("<|im_end|>")) == 1


ROWS = np.asarray([[1, 0], [0, 2], [0, 0]], np.float32)


@pytest.mark.parametrize(("rule", "expected"), [(1, (1 / 5**0.5, 2 / 5**0.5)), (2, (1, 0)), (3, (0, 0))])
@pytest.mark.parametrize("pieces", [[ROWS], [ROWS[:1], ROWS[1:]], [ROWS[:2], ROWS[2:]]])
async def test_pooling_does_not_depend_on_where_a_batch_ends(
    rule: int, expected: tuple[float, float], pieces: list[np.ndarray]
) -> None:
    pool = Pool(rule)
    for rows in pieces:
        pool.add(rows)
    assert pool.unit_vector().tolist() == pytest.approx(expected)


async def test_megabytes_are_refused_or_cut_before_anybody_splits_them(
    default_model_path: Path, tmp_path: Path
) -> None:
    """A text that no number of tokens within the window could hold; to split it takes llama.cpp half a minute."""
    options = LlamaOptions(model_id="m", path=default_model_path, state_folder=tmp_path, context=256, threads=1)
    megabytes = "many words " * 300_000
    async with closing(LlamaEngine(options)) as engine, asyncio.timeout(60):
        await engine.start()
        with pytest.raises(Refusal, match=r"input\[1\] resulted in at least") as caught:
            await engine.embed(["ok", megabytes], truncate=False)
        cut = await engine.embed([megabytes, megabytes[:5000]], truncate=True)
    assert caught.value.code is Code.CONTEXT_LENGTH_EXCEEDED
    assert (cut.prompt_tokens, cut.truncated) == (512, (0, 1))
    assert cut.vectors[0] == pytest.approx(cut.vectors[1], abs=1e-5)
