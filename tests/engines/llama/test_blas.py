"""Prompts read through BLAS: the same answers whatever was cached, drafted or cancelled before, scores to the last digit."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from pocketserver.chat import GenerationRequest, Message, Role
from pocketserver.engines.llama import blas_library
from pocketserver.engines.llama.process import LlamaEngine
from pocketserver.engines.llama.runtime import KvType
from tests.engines.llama.asking import Answer, answered, asking, completing
from tests.engines.llama.asking import loaded as loaded_engine

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.real_model]

MIB = 1024 * 1024
LONG = "The harbour master counted crates of oranges while rain fell on the slate roofs of the town. " * 7
TURNS = (
    LONG + "Who counted?",
    "Why?",
    LONG + "And what fell?",
    "Tell me more.",
    "Repeat your first answer word by word.",
)


@pytest.fixture(scope="module", autouse=True)
def backend() -> None:
    if blas_library.installed() is None:
        assert not os.environ.get("CI"), "make setup has built no BLAS backend"
        pytest.skip("there is no BLAS backend here; make setup builds it on Linux")


def loaded(path: Path, folder: Path, **options: Any) -> AbstractAsyncContextManager[LlamaEngine]:
    defaults = {"context": 2048, "kv_type": KvType.Q8_0, "blas": True, "micro_batch": 128}
    return loaded_engine(path, folder, **defaults | options)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def warm(default_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LlamaEngine]:
    async with loaded(default_model_path, tmp_path_factory.mktemp("warm")) as engine:
        yield engine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cold(default_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LlamaEngine]:
    """Keeps nothing but the running conversation."""
    async with loaded(default_model_path, tmp_path_factory.mktemp("cold"), cache_memory_bytes=0) as engine:
        yield engine


def conversation(messages: list[Message], **fields: Any) -> GenerationRequest:
    fields = {"max_tokens": 24, "top_logprobs": 1} | fields
    request = asking("", **fields)
    return GenerationRequest(
        id=request.id,
        model="model",
        messages=tuple(messages),
        sampling=request.sampling,
        max_tokens=request.max_tokens,
        top_logprobs=request.top_logprobs,
    )


async def anew(cold: LlamaEngine, request: GenerationRequest) -> Answer:
    await answered(cold, completing("~", max_tokens=1))
    answer = await answered(cold, request)
    assert answer.finished.usage.cached_tokens == 0
    return answer


def said(answer: Answer) -> list[tuple[str, float]]:
    return [(score.token, score.logprob) for score in answer.scores]


async def test_the_backend_is_used_and_told(warm: LlamaEngine) -> None:
    assert "through BLAS" in str(warm.status.runtime)


async def test_each_turn_is_answered_as_without_a_cache_to_the_last_digit(warm: LlamaEngine, cold: LlamaEngine) -> None:
    messages: list[Message] = []
    for number, text in enumerate(TURNS):
        messages.append(Message(role=Role.USER, content=text))
        answer = await answered(warm, conversation(messages))
        expected = await anew(cold, conversation(messages))
        assert said(answer) == said(expected)
        assert len(said(answer)) > 1
        usage = answer.finished.usage
        assert number == 0 or usage.cached_tokens > usage.prompt_tokens // 3  # its own answers are not read again
        messages.append(Message(role=Role.ASSISTANT, content=answer.text))


async def test_a_raw_prompt_that_grows_is_answered_as_without_a_cache(warm: LlamaEngine, cold: LlamaEngine) -> None:
    text = LONG
    for more in (" In the evening", LONG + " Then", " And"):
        text += more
        request = completing(text, max_tokens=12, top_logprobs=1)
        answer = await answered(warm, request)
        assert said(answer) == said(await anew(cold, completing(text, max_tokens=12, top_logprobs=1)))
        text += answer.text


async def test_a_prompt_that_is_mostly_known_is_answered_as_without_a_cache(
    warm: LlamaEngine, cold: LlamaEngine
) -> None:
    for end in ("Who was it?", "Who was wet?", "Who?"):  # all but the last few tokens of a long stretch are cached
        messages = [Message(role=Role.USER, content=LONG + end)]
        answer = await answered(warm, conversation(messages))
        assert said(answer) == said(await anew(cold, conversation(messages)))


async def test_conversations_outlive_a_restart(default_model_path: Path, tmp_path: Path, cold: LlamaEngine) -> None:
    messages = [Message(role=Role.USER, content=TURNS[0])]
    async with loaded(default_model_path, tmp_path, cache_disk_bytes=64 * MIB) as engine:
        answer = await answered(engine, conversation(messages))
    messages += [Message(role=Role.ASSISTANT, content=answer.text), Message(role=Role.USER, content=TURNS[1])]
    async with loaded(default_model_path, tmp_path, cache_disk_bytes=64 * MIB) as engine:
        later = await answered(engine, conversation(messages))
    assert later.finished.usage.cached_tokens > 100
    assert said(later) == said(await anew(cold, conversation(messages)))


async def test_drafts_change_nothing(default_model_path: Path, tmp_path: Path, cold: LlamaEngine) -> None:
    messages = [Message(role=Role.USER, content=f"Repeat this text word by word: {LONG}")]
    async with loaded(default_model_path, tmp_path, draft_tokens=15) as engine:
        answer = await answered(engine, conversation(messages, max_tokens=60))
    assert said(answer) == said(await anew(cold, conversation(messages, max_tokens=60)))


async def test_an_answer_that_was_cancelled_in_its_prompt_spoils_nothing(warm: LlamaEngine, cold: LlamaEngine) -> None:
    messages = [Message(role=Role.USER, content=LONG * 5 + "Who counted?")]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2), warm.generate(conversation(messages)) as stream:
            await anext(stream)
    answer = await answered(warm, conversation(messages))
    assert said(answer) == said(await anew(cold, conversation(messages)))


async def test_a_prompt_is_scored_as_without_blas(default_model_path: Path, tmp_path: Path, cold: LlamaEngine) -> None:
    request = {"max_tokens": 4, "top_logprobs": 1, "echo": True}
    scored = await answered(cold, completing(LONG, **request))
    async with loaded(default_model_path, tmp_path, blas=False) as engine:
        plain = await answered(engine, completing(LONG, **request))
    assert said(scored) == said(plain)
