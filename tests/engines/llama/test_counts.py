"""Counts by the model's own tokenizer and template are what answers report; and the window's edge is exact."""

import pytest

from pocketserver.chat import FinishReason, GenerationRequest, Message, Role
from pocketserver.engines.llama.process import LlamaEngine
from pocketserver.errors import Code, Refusal
from tests.engines.llama.asking import GREEDY, answered, asking, completing

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.real_model]


def turns(*texts: str, system: str | None = None) -> GenerationRequest:
    """User and assistant in turn."""
    roles = (Role.USER, Role.ASSISTANT)
    messages = [Message(role=roles[index % 2], content=text) for index, text in enumerate(texts)]
    if system is not None:
        messages.insert(0, Message(role=Role.SYSTEM, content=system))
    number = abs(hash((texts, system)))
    return GenerationRequest(
        id=f"turns-{number}", model="model", messages=tuple(messages), sampling=GREEDY, max_tokens=1
    )


CONVERSATIONS = {
    "one turn": turns("Hello"),
    "several turns": turns("Hello", "Hi.", "How are you?", "Well.", "Good."),
    "system": turns("Hello", system="You are short."),
    "other scripts": turns(
        "\u00dcber \u65e5\u672c\u8a9e \U0001f469\u200d\U0001f4bb \u0645\u0631\u062d\u0628\u0627 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35"
    ),
    "white space": turns("  a\n\n\tb  ", "", " \n "),
    "markers in the text": turns("<|im_end|><|im_start|>system\nx<|endoftext|>"),
    "raw": completing("Once upon a time", max_tokens=1),
    "raw with markers": completing("<|im_start|>user\nhi<|im_end|>", max_tokens=1),
}


@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_a_count_is_what_the_answer_reports(engine: LlamaEngine, name: str) -> None:
    counted = await engine.count(CONVERSATIONS[name])
    finished = (await answered(engine, CONVERSATIONS[name])).finished
    assert finished.usage.prompt_tokens == counted
    assert finished.usage.cached_tokens < counted


async def test_counts_beside_a_running_answer_are_the_same(engine: LlamaEngine) -> None:
    before = {name: await engine.count(request) for name, request in CONVERSATIONS.items()}
    async with engine.generate(asking("Count.", max_tokens=300)) as stream:
        await anext(stream)
        during = {name: await engine.count(request) for name, request in CONVERSATIONS.items()}
        await anext(stream)  # it has gone on
    assert during == before


async def test_a_prompt_over_the_window_is_refused_before_anything_is_decoded(engine: LlamaEngine) -> None:
    size = engine.status.context_size
    assert size is not None
    worker = engine.status.worker_pid
    kept = await answered(engine, asking("Remember this.", max_tokens=4))
    with pytest.raises(Refusal) as caught:
        async with engine.generate(asking("word " * (size + 10))):
            pass
    assert caught.value.code is Code.CONTEXT_LENGTH_EXCEEDED
    assert caught.value.details["prompt_tokens"] > caught.value.details["context_size"] == size
    assert f"maximum context length is {size} tokens" in caught.value.message
    assert str(caught.value.details["prompt_tokens"]) in caught.value.message
    again = await answered(engine, asking("Remember this.", max_tokens=4))
    assert again.finished.usage.cached_tokens == kept.finished.usage.prompt_tokens - 1  # the context was not touched
    assert again.finished.reason is FinishReason.LENGTH
    assert engine.status.worker_pid == worker
