"""Thinking on the real model, with a template that opens it: kept apart from the answer, bounded, switched, scored."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import jsonschema
import pytest
import pytest_asyncio

from pocketserver.chat import (
    FinishReason,
    GenerationRequest,
    JsonSchema,
    Message,
    ReasoningDelta,
    Role,
    Sampling,
    Tool,
    ToolCallDelta,
    ToolCallStarted,
    ToolChoice,
    ToolMode,
)
from pocketserver.engines.llama.process import LlamaEngine, LlamaOptions
from tests.engines.llama.asking import Answer, answered, asking

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.real_model]
TEMPLATE = Path(__file__).resolve().parent.parent.parent / "templates" / "thinking.jinja"
ANSWER = {"enum": ["yes", "no"]}
CITY = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]}
LONG = Sampling(temperature=0, logit_bias=((0, -100.0), (2, -100.0)))
"""Greedy, and without the two tokens with which this model ends its turn: it would stop in the middle of a thought."""
TOOLS = (Tool(name="get_weather", parameters=CITY),)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def thinker(default_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LlamaEngine]:
    options = LlamaOptions(
        model_id="model",
        path=default_model_path,
        state_folder=tmp_path_factory.mktemp("state"),
        context=1024,
        threads=1,
        chat_template=TEMPLATE,
        reasoning_budget=12,
    )
    engine = LlamaEngine(options)
    await engine.start()
    await engine.loaded()
    yield engine
    await engine.close()


def thoughts(answer: Answer) -> str:
    return "".join(event.text for event in answer.events if isinstance(event, ReasoningDelta))


def check_apart(answer: Answer) -> None:
    assert "think>" not in answer.text
    assert "think>" not in thoughts(answer)


async def test_the_budget_ends_the_thinking_and_the_answer_follows(thinker: LlamaEngine) -> None:
    answer = await answered(thinker, asking("What is 2+2?", max_tokens=40, sampling=LONG))

    assert thoughts(answer)
    assert answer.text
    check_apart(answer)
    usage = answer.finished.usage
    assert 12 <= usage.reasoning_tokens <= 12 + 5  # the closing mark counts
    assert usage.reasoning_tokens < usage.completion_tokens


async def test_a_request_has_a_budget_of_its_own(thinker: LlamaEngine) -> None:
    answer = await answered(thinker, asking("What is 2+2?", max_tokens=40, reasoning_budget=3, sampling=LONG))
    assert 3 <= answer.finished.usage.reasoning_tokens <= 3 + 5
    nothing = await answered(thinker, asking("What is 2+2?", max_tokens=12, reasoning_budget=0))
    assert thoughts(nothing) == ""
    assert nothing.text


async def test_the_token_limit_inside_the_thinking_is_a_length_without_content(thinker: LlamaEngine) -> None:
    answer = await answered(thinker, asking("What is 2+2?", max_tokens=6))
    assert thoughts(answer)
    assert answer.text == ""
    assert answer.finished.reason is FinishReason.LENGTH
    assert answer.finished.usage.reasoning_tokens == 6


@pytest.mark.parametrize("fields", [{"reasoning_effort": "none"}, {"template_arguments": {"enable_thinking": False}}])
async def test_thinking_can_be_switched_off(thinker: LlamaEngine, fields: dict[str, object]) -> None:
    answer = await answered(thinker, asking("What is 2+2?", max_tokens=8, **fields))
    assert thoughts(answer) == ""
    assert answer.text
    assert answer.finished.usage.reasoning_tokens == 0


async def test_an_answer_format_holds_behind_the_thinking(thinker: LlamaEngine) -> None:
    answer = await answered(thinker, asking("Is it?", max_tokens=60, constraint=JsonSchema(schema=ANSWER)))
    assert thoughts(answer)
    jsonschema.validate(json.loads(answer.text), ANSWER)
    assert answer.finished.reason is FinishReason.STOP


async def test_a_required_call_holds_behind_the_thinking(thinker: LlamaEngine) -> None:
    choice = ToolChoice(mode=ToolMode.REQUIRED, name="get_weather", parallel=False)
    answer = await answered(thinker, asking("Weather?", max_tokens=80, tools=TOOLS, tool_choice=choice))

    assert thinker.status.supports_tools
    [started] = [event for event in answer.events if isinstance(event, ToolCallStarted)]
    arguments = "".join(event.arguments for event in answer.events if isinstance(event, ToolCallDelta))
    assert thoughts(answer)
    assert answer.text == ""
    assert started.name == "get_weather"
    jsonschema.validate(json.loads(arguments), CITY)
    assert answer.finished.reason is FinishReason.TOOL_CALLS


async def test_scores_are_those_of_the_visible_answer(thinker: LlamaEngine) -> None:
    answer = await answered(thinker, asking("What is 2+2?", max_tokens=30, top_logprobs=1, sampling=LONG))
    assert answer.text
    assert b"".join(score.bytes for score in answer.scores).decode().strip() == answer.text.strip()


async def test_an_answer_that_the_client_begins_is_past_its_thinking(thinker: LlamaEngine) -> None:
    begun = (Message(role=Role.USER, content="2+2?"), Message(role=Role.ASSISTANT, content="The sum is"))
    request = GenerationRequest(id="begun", model="model", messages=begun, max_tokens=6)
    answer = await answered(thinker, request)
    assert thoughts(answer) == ""
    assert answer.text
