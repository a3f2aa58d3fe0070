"""A memory that cannot be cut back: states are used whole or not at all, and answers are as without a cache."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import pytest_asyncio

from pocketserver.chat import Grammar
from pocketserver.engines.llama.process import LlamaEngine
from tests.engines.llama import asking
from tests.engines.llama.asking import Answer, answered, completing
from tests.engines.llama.recurrent_model import write_recurrent_model

pytestmark = [pytest.mark.asyncio(loop_scope="module")]

LETTERS = Grammar(syntax="regex", definition="[a-z ]{20}")
"""Bytes at random are no text that a client could send back."""

FIRST = "The river runs through the old town and under seven bridges. " * 3
OTHER = "Bread is made of flour, water and salt, and of patience above all. " * 3


def loaded(folder: Path, **budgets: int) -> AbstractAsyncContextManager[LlamaEngine]:
    return asking.loaded(write_recurrent_model(folder / "tiny.gguf"), folder, context=2048, **budgets)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def recurrent(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LlamaEngine]:
    async with loaded(tmp_path_factory.mktemp("recurrent"), cache_disk_bytes=64 * 1024 * 1024) as engine:
        yield engine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def forgetful(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LlamaEngine]:
    """The same model with nothing parked."""
    async with loaded(tmp_path_factory.mktemp("forgetful"), cache_memory_bytes=0) as engine:
        yield engine


async def scored(engine: LlamaEngine, prompt: str) -> Answer:
    return await answered(engine, completing(prompt, max_tokens=6, top_logprobs=0, constraint=LETTERS))


def same(left: Answer, right: Answer) -> bool:
    """The same tokens with the same probabilities: random weights leave no room for luck."""
    pairs = zip(left.scores, right.scores, strict=True)
    return left.text == right.text and all(abs(a.logprob - b.logprob) < 0.01 for a, b in pairs)


async def test_a_prompt_that_departs_from_the_context_is_read_anew(recurrent: LlamaEngine) -> None:
    anew = await scored(recurrent, FIRST)
    departing = await scored(recurrent, FIRST[:100] + OTHER)
    again = await scored(recurrent, FIRST)
    assert same(anew, again)
    assert not same(anew, departing)
    assert departing.finished.usage.cached_tokens == again.finished.usage.cached_tokens == 0


async def test_a_parked_conversation_is_continued_where_it_ended(
    recurrent: LlamaEngine, forgetful: LlamaEngine
) -> None:
    longer = FIRST + (await scored(recurrent, FIRST)).text + " And then?"
    for _ in range(2):
        await scored(recurrent, OTHER)
        continued = await scored(recurrent, longer)
        usage = continued.finished.usage
        assert len(FIRST) < usage.cached_tokens < usage.prompt_tokens
        assert same(continued, await scored(forgetful, longer))
    assert (await scored(forgetful, OTHER)).finished.usage.cached_tokens == 0
