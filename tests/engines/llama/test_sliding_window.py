"""A model whose layers look back over a window only: answers with the prefix cache are those without it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from pocketserver.engines.llama.process import LlamaEngine, LlamaOptions
from pocketserver.engines.llama.runtime import KvType
from pocketserver.models.gguf import read_metadata
from tests.conftest import CACHE
from tests.engines.llama.asking import Answer, answered, completing
from tests.engines.llama.sliding_model import sliding_model

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.real_model]

MICRO_BATCH = 256
TIE = 0.3
"""The shape of a batch moves this model's logits by so much, with and without a cache."""
DAYS = (
    f"On day {day} the keeper of house {day * 7 % 31} counted {day * 13 % 101} birds above the "
    f"{('river', 'hill', 'wood')[day % 3]}."
    for day in range(60)
)
TEXT = " ".join(DAYS)


@pytest.fixture(scope="module")
def path() -> Path:
    return sliding_model(CACHE / "models")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sliding(path: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LlamaEngine]:
    options = LlamaOptions(
        model_id="sliding",
        path=path,
        state_folder=tmp_path_factory.mktemp("sliding"),
        context=2048,
        threads=1,
        kv_type=KvType.Q8_0,
        micro_batch=MICRO_BATCH,
        cache_disk_bytes=256 * 1024 * 1024,
    )
    engine = LlamaEngine(options)
    await engine.start()
    await engine.loaded()
    yield engine
    await engine.close()


async def scored(engine: LlamaEngine, prompt: str) -> Answer:
    return await answered(engine, completing(prompt, max_tokens=8, top_logprobs=2))


async def beginning(engine: LlamaEngine, tokens: int) -> str:
    """So many tokens of the text: whole micro-batches, so that reading on has the shape of reading anew."""
    length = tokens * 2
    while await engine.count(completing(TEXT[:length])) < tokens:
        length += 1
    return TEXT[:length]


def same_but_for_ties(left: Answer, right: Answer) -> bool:
    pairs = zip(left.scores, right.scores, strict=False)
    departure = next((one for one, two in pairs if one.token != two.token), None)
    return departure is None or departure.top[0].logprob - departure.top[1].logprob < TIE


async def test_answers_beyond_the_window_are_the_same_with_and_without_the_cache(
    sliding: LlamaEngine, path: Path
) -> None:
    window = read_metadata(path).sliding_window
    prompt = await beginning(sliding, 3 * MICRO_BATCH) + " Then came"
    assert window is not None
    anew = await scored(sliding, prompt)
    assert anew.finished.usage.cached_tokens == 0
    assert anew.finished.usage.prompt_tokens > window

    await scored(sliding, TEXT)
    cut = await scored(sliding, prompt)
    assert 3 * MICRO_BATCH - 1 <= cut.finished.usage.cached_tokens < cut.finished.usage.prompt_tokens - 1
    assert same_but_for_ties(anew, cut)

    await scored(sliding, "Bread is made of flour, water and salt. " * 4)
    restored = await scored(sliding, prompt)
    assert restored.finished.usage.cached_tokens >= 3 * MICRO_BATCH - 1
    assert same_but_for_ties(anew, restored)
