"""Replies with known text on the real model: a grammar forces them, so that tokens fall where the vocabulary cuts them."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from pocketserver.chat import (
    FinishReason,
    Grammar,
    ReasoningDelta,
    Sampling,
    Tool,
    ToolCallDelta,
    ToolCallStarted,
)
from pocketserver.engines.llama import native
from pocketserver.engines.llama.model import Vocabulary
from pocketserver.engines.llama.process import LlamaEngine, LlamaOptions
from tests.engines.llama.asking import GREEDY, Answer, answered, asking

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.real_model]
TEMPLATES = Path(__file__).resolve().parent.parent.parent / "templates"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = (Tool(name="get_w", parameters=CITY),)
TAGS = '<tool_call>{"name":"get_w","arguments":{"city":"Oslo"}}</tool_call>'
ARGUMENTS = "<tool_call>\n<function=get_w>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>"


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["tags", "arguments"])
async def caller(
    request: pytest.FixtureRequest, default_model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[LlamaEngine, str]]:
    """An engine and the call as its template writes it."""
    options = LlamaOptions(
        model_id="model",
        path=default_model_path,
        state_folder=tmp_path_factory.mktemp("state"),
        context=1024,
        threads=1,
        chat_template=TEMPLATES / f"{request.param}.jinja",
    )
    engine = LlamaEngine(options)
    await engine.start()
    await engine.loaded()
    yield engine, TAGS if request.param == "tags" else ARGUMENTS
    await engine.close()


@pytest.fixture(scope="module")
def not_a_call(default_model_path: Path) -> Sampling:
    """Sampling that never begins with `<`: where a grammar leaves the choice, no call is made."""
    llama_cpp = pytest.importorskip("llama_cpp")
    native.quiet()
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(default_model_path).encode(), params)
    vocabulary = Vocabulary(llama_cpp.llama_model_get_vocab(model))
    opening = [token for token in range(vocabulary.size) if vocabulary.piece(token).startswith(b"<")]
    llama_cpp.llama_model_free(model)
    return Sampling(temperature=0, logit_bias=tuple((token, -100.0) for token in opening))


async def forced(
    engine: LlamaEngine, text: str, sampling: Sampling, *, tools: tuple[Tool, ...] = TOOLS, max_tokens: int = 80
) -> Answer:
    grammar = Grammar(syntax="lark", definition=f"start: {json.dumps(text)}")
    request = asking("Weather?", max_tokens=max_tokens, tools=tools, constraint=grammar, sampling=sampling)
    return await answered(engine, request)


def calls(answer: Answer) -> list[tuple[str, object]]:
    started = [event for event in answer.events if isinstance(event, ToolCallStarted)]
    pieces = [event for event in answer.events if isinstance(event, ToolCallDelta)]
    return [
        (call.name, json.loads("".join(piece.arguments for piece in pieces if piece.index == call.index)))
        for call in started
    ]


def thoughts(answer: Answer) -> str:
    return "".join(event.text for event in answer.events if isinstance(event, ReasoningDelta))


async def test_a_call_behind_text_is_a_call_and_its_marks_never_show(
    caller: tuple[LlamaEngine, str], not_a_call: Sampling
) -> None:
    engine, call = caller
    answer = await forced(engine, "ok " + call, not_a_call)
    assert answer.text.rstrip() == "ok"
    assert calls(answer) == [("get_w", {"city": "Oslo"})]
    assert answer.finished.reason is FinishReason.TOOL_CALLS


async def test_two_calls_are_counted_up(caller: tuple[LlamaEngine, str], not_a_call: Sampling) -> None:
    engine, call = caller
    answer = await forced(engine, f"ok\n{call}\n{call.replace('Oslo', 'Rome')}", not_a_call, max_tokens=120)
    assert calls(answer) == [("get_w", {"city": "Oslo"}), ("get_w", {"city": "Rome"})]
    assert answer.text.rstrip() == "ok"
    ids = [event.id for event in answer.events if isinstance(event, ToolCallStarted)]
    assert len(set(ids)) == 2


async def test_text_that_only_begins_like_a_mark_arrives_whole(
    caller: tuple[LlamaEngine, str], not_a_call: Sampling
) -> None:
    engine, _ = caller
    answer = await forced(engine, "1 < 2 and <tool", not_a_call)
    assert answer.text == "1 < 2 and <tool"
    assert calls(answer) == []
    assert answer.finished.reason is FinishReason.STOP


async def test_a_call_that_the_limit_cuts_at_any_token_is_never_reported(
    caller: tuple[LlamaEngine, str], not_a_call: Sampling
) -> None:
    engine, call = caller
    whole = (await forced(engine, "ok " + call, not_a_call)).finished.usage.completion_tokens
    for limit in range(1, whole):
        answer = await forced(engine, "ok " + call, not_a_call, max_tokens=limit)
        assert answer.finished.reason is FinishReason.LENGTH, limit
        assert "tool_call>" not in answer.text
        assert answer.text.startswith("o")


async def test_thoughts_at_the_start_are_thoughts_where_the_template_knows_none(
    caller: tuple[LlamaEngine, str],
) -> None:
    engine, _ = caller
    answer = await forced(engine, "<think>a</think>b", GREEDY, tools=())
    assert (thoughts(answer), answer.text) == ("a", "b")
    answer = await forced(engine, "write <thin", GREEDY, tools=())
    assert (thoughts(answer), answer.text) == ("", "write <thin")
