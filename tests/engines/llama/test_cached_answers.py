"""The prefix cache on the real model: the same answers as without it, found again after others and after restarts."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from pocketserver.chat import GenerationRequest, Message, Role, TokenScore
from pocketserver.engines.llama.cache_files import FOLDER
from pocketserver.engines.llama.process import LlamaEngine
from pocketserver.engines.llama.runtime import KvType
from tests.engines.llama import asking
from tests.engines.llama.asking import Answer, answered, completing

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.real_model]

MIB = 1024 * 1024
TIE = 0.3
"""With f16 the shape of a batch moves logits by about 0.2; a choice between closer ones may fall either way."""

TOPICS = ("the sea", "old bridges", "bread")
RULES = (
    "You answer in short sentences. You never lie. You know rivers, mountains, towns and the people who live there. "
)


def story(topic: str, **fields: Any) -> GenerationRequest:
    """A raw prompt that shares no token with another topic's."""
    text = f"{topic.capitalize()}: here is a story about {topic}. " + f"Everybody in town spoke of {topic}. " * 6
    return completing(text + "One day", **{"max_tokens": 16} | fields)


def chat(question: str, **fields: Any) -> GenerationRequest:
    """A conversation whose long beginning is the same for every question."""
    messages = (Message(role=Role.SYSTEM, content=RULES * 3), Message(role=Role.USER, content=question))
    request = completing("", **{"max_tokens": 16} | fields)
    return GenerationRequest(
        id=request.id, model="model", messages=messages, sampling=request.sampling, max_tokens=request.max_tokens
    )


def loaded(path: Path, folder: Path, **options: Any) -> AbstractAsyncContextManager[LlamaEngine]:
    return asking.loaded(path, folder, **{"context": 512} | options)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def warm(default_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LlamaEngine]:
    """Parks conversations in memory, in a format whose logits do not depend on the shape of a batch."""
    async with loaded(default_model_path, tmp_path_factory.mktemp("warm"), kv_type=KvType.Q8_0) as engine:
        yield engine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cold(default_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LlamaEngine]:
    """The same without anything parked."""
    folder = tmp_path_factory.mktemp("cold")
    async with loaded(default_model_path, folder, kv_type=KvType.Q8_0, cache_memory_bytes=0) as engine:
        yield engine


async def computed_anew(cold: LlamaEngine, request: GenerationRequest) -> Answer:
    await answered(cold, completing("~", max_tokens=1))
    answer = await answered(cold, request)
    assert answer.finished.usage.cached_tokens == 0
    return answer


async def test_alternating_conversations_are_answered_as_without_a_cache(warm: LlamaEngine, cold: LlamaEngine) -> None:
    expected = {topic: (await computed_anew(cold, story(topic))).text for topic in TOPICS}
    for _ in range(2):
        first = {topic: await answered(warm, story(topic)) for topic in TOPICS}
        assert {topic: answer.text for topic, answer in first.items()} == expected
    for answer in first.values():
        assert answer.finished.usage.cached_tokens == answer.finished.usage.prompt_tokens - 1


async def test_a_shared_system_prompt_is_found_whatever_came_between(warm: LlamaEngine, cold: LlamaEngine) -> None:
    questions = ("Where is the river?", "Who lives in the mountains?", "Tell me of the town.")
    for number, question in enumerate(questions):
        await answered(warm, story("the moon", max_tokens=1))
        answer = await answered(warm, chat(question))
        assert answer.text == (await computed_anew(cold, chat(question))).text
        usage = answer.finished.usage
        assert number == 0 or 60 < usage.cached_tokens < usage.prompt_tokens - 1


async def test_each_turn_of_a_conversation_is_answered_as_without_a_cache(warm: LlamaEngine, cold: LlamaEngine) -> None:
    text = "Q: What is rain?\nA:"
    for question in ("And snow?", "And hail?", "And fog?"):
        answer = await answered(warm, completing(text, max_tokens=16))
        assert answer.text == (await computed_anew(cold, completing(text, max_tokens=16))).text
        await answered(warm, story("the moon", max_tokens=1))
        text += f"{answer.text}\nQ: {question}\nA:"


async def test_an_answer_that_was_cancelled_does_not_spoil_later_ones(warm: LlamaEngine, cold: LlamaEngine) -> None:
    expected = (await computed_anew(cold, story("a lost key"))).text
    async with warm.generate(story("a lost key", max_tokens=200)) as stream:
        await anext(stream)
    await answered(warm, story("the moon", max_tokens=1))
    assert (await answered(warm, story("a lost key"))).text == expected


async def test_with_f16_a_cached_answer_departs_only_at_a_near_tie(
    default_model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("f16")
    async with loaded(default_model_path, folder, kv_type=KvType.F16) as engine:
        anew = [await answered(engine, story(topic, top_logprobs=2)) for topic in TOPICS]
        cached = [await answered(engine, story(topic, top_logprobs=2)) for topic in TOPICS]
    for first, second in zip(anew, cached, strict=True):
        assert second.finished.usage.cached_tokens == second.finished.usage.prompt_tokens - 1
        departure = next((a for a, b in zip(first.scores, second.scores, strict=False) if a.token != b.token), None)
        assert departure is None or margin(departure) < TIE
    assert {answer.finished.usage.cached_tokens for answer in anew} == {0}


def margin(score: TokenScore) -> float:
    best, next_best = score.top
    return best.logprob - next_best.logprob


async def test_conversations_outlive_a_restart(default_model_path: Path, tmp_path: Path) -> None:
    options = {"kv_type": KvType.Q8_0, "cache_disk_bytes": 64 * MIB}
    async with loaded(default_model_path, tmp_path, **options) as engine:
        before = [(await answered(engine, story(topic))).text for topic in TOPICS[:2]]
    async with loaded(default_model_path, tmp_path, **options) as engine:
        after = [await answered(engine, story(topic)) for topic in TOPICS[:2]]
    assert [answer.text for answer in after] == before
    assert [answer.finished.usage.cached_tokens for answer in after] == [
        answer.finished.usage.prompt_tokens - 1 for answer in after
    ]
    async with loaded(default_model_path, tmp_path, **options | {"kv_type": KvType.BF16}) as engine:
        assert (await answered(engine, story(TOPICS[0]))).finished.usage.cached_tokens == 0


async def test_a_conversation_at_rest_reaches_the_disk_before_a_crash(default_model_path: Path, tmp_path: Path) -> None:
    options = {"cache_disk_bytes": 64 * MIB, "cache_rest_seconds": 0.05}
    async with loaded(default_model_path, tmp_path, **options) as engine:
        await answered(engine, story("bread", max_tokens=2))
        await until(lambda: states(tmp_path))
        await kill(engine)
        again = await answered(engine, story("bread", max_tokens=2))
    assert again.finished.usage.cached_tokens == again.finished.usage.prompt_tokens - 1


async def test_a_worker_killed_at_any_moment_of_writing_leaves_a_cache_that_serves(
    default_model_path: Path, tmp_path: Path
) -> None:
    options = {"cache_disk_bytes": 64 * MIB, "cache_rest_seconds": 0.01, "kv_type": KvType.Q8_0}
    async with loaded(default_model_path, tmp_path, **options) as engine:
        for round_number in range(3):
            topic = f"{round_number} apples"
            first = await answered(engine, story(topic, max_tokens=4))
            await until(lambda: unfinished(tmp_path) or len(states(tmp_path)) > round_number)  # noqa: B023
            await asyncio.sleep(round_number * 0.004)
            await kill(engine)
            assert (await answered(engine, story(topic, max_tokens=4))).text == first.text
            await until(lambda: len(states(tmp_path)) > round_number)  # noqa: B023
    assert not unfinished(tmp_path)
    assert len(states(tmp_path)) == 3


async def test_a_request_during_a_rest_is_answered_at_once(default_model_path: Path, tmp_path: Path) -> None:
    options = {"cache_disk_bytes": 64 * MIB, "cache_rest_seconds": 0.0}
    async with loaded(default_model_path, tmp_path, **options) as engine:
        for topic in (*TOPICS, *TOPICS):
            answer = await answered(engine, story(topic, max_tokens=2))
            assert answer.finished.usage.completion_tokens == 2
    assert len(states(tmp_path)) == len(TOPICS)


async def test_damaged_files_cost_only_the_time_to_read_a_prompt_anew(default_model_path: Path, tmp_path: Path) -> None:
    options = {"cache_disk_bytes": 64 * MIB, "kv_type": KvType.Q8_0}
    async with loaded(default_model_path, tmp_path, **options) as engine:
        expected = (await answered(engine, story("bread", max_tokens=4))).text
    (path,) = states(tmp_path)
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 0xFF
    path.write_bytes(whole)
    path.with_name("foreign.state").write_bytes(b"something else")
    async with loaded(default_model_path, tmp_path, **options) as engine:
        answer = await answered(engine, story("bread", max_tokens=4))
    assert answer.finished.usage.cached_tokens == 0
    assert answer.text == expected
    assert len(states(tmp_path)) == 1


async def test_closing_with_a_running_answer_is_quick_and_keeps_it(default_model_path: Path, tmp_path: Path) -> None:
    options = {"cache_disk_bytes": 64 * MIB}
    async with loaded(default_model_path, tmp_path, **options) as engine:
        reading = asyncio.create_task(answered(engine, story("bread", max_tokens=300)))
        await until(lambda: engine._answer is not None and engine._answer.accepted.done())
        await engine.close()
        with pytest.raises(Exception, match="shutting down"):
            await reading
    async with loaded(default_model_path, tmp_path, **options) as engine:
        assert (await answered(engine, story("bread", max_tokens=2))).finished.usage.completion_tokens == 2


async def kill(engine: LlamaEngine) -> None:
    """Kill the worker, and wait until the engine has noticed."""
    worker = engine.status.worker_pid
    assert worker is not None
    os.kill(worker, signal.SIGKILL)
    await until(lambda: engine.status.worker_pid != worker)


def states(folder: Path) -> list[Path]:
    return list((folder / FOLDER).glob("*/*.state"))


def unfinished(folder: Path) -> list[Path]:
    return list((folder / FOLDER).glob("*/*.tmp"))


async def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        await asyncio.sleep(0.001)
