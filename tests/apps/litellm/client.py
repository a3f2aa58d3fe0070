"""LiteLLM as a client: one scenario list over the OpenAI, Anthropic and Ollama routes."""

import json
import os
from collections.abc import Iterator
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it fetches the prices of models when it is imported

import litellm
import pytest
from litellm import exceptions
from server_process import ServerProcess, simulating

WAYS = ["openai", "openai_responses", "anthropic", "ollama_chat"]
HI = [{"role": "user", "content": "hi"}]
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.fixture(scope="session")
def running() -> Iterator[ServerProcess]:
    with simulating() as server:
        yield server


@pytest.fixture
def server(running: ServerProcess) -> ServerProcess:
    running.reset()
    return running


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def to(server: ServerProcess, way: str) -> dict[str, Any]:
    """Where to send a request this way."""
    base_url = server.base_url if way.startswith("openai") else server.origin
    prefix = "openai/responses" if way == "openai_responses" else way
    return {
        "model": f"{prefix}/{server.model}",
        "api_base": base_url,
        "api_key": server.api_key,
        "num_retries": 0,
        "max_retries": 0,
    }


async def ask(server: ServerProcess, way: str, **fields: Any) -> Any:
    return await litellm.acompletion(**to(server, way), **{"messages": HI, "max_tokens": 100, **fields})


async def test_chat(server: ServerProcess, way: str) -> None:
    server.reply("Hello!")
    answer = await ask(server, way, temperature=0.1)

    [choice] = answer.choices
    assert (choice.message.content, choice.finish_reason) == ("Hello!", "stop")
    assert answer.usage.prompt_tokens > 0
    assert answer.usage.completion_tokens == 1
    assert server.requests()[-1]["json"]["model"] == server.model


async def test_stream(server: ServerProcess, way: str) -> None:
    server.reply("one two three")
    stream = await ask(server, way, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]

    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "one two three"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason] == [
        "stop"
    ]
    whole = litellm.stream_chunk_builder(chunks, messages=HI)
    assert whole.choices[0].message.content == "one two three"
    assert whole.usage.completion_tokens == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_and_its_result(server: ServerProcess, way: str, stream: bool) -> None:
    server.reply(calls=[("get_weather", {"city": "Oslo"})], last_message="weather?")
    server.reply("It rains.", last_message="rain in Oslo")
    history: list[Any] = [{"role": "user", "content": "weather?"}]
    first = await ask(server, way, messages=history, tools=[WEATHER], tool_choice="auto", stream=stream)
    if stream:
        first = litellm.stream_chunk_builder([chunk async for chunk in first], messages=history)

    assert first.choices[0].finish_reason == "tool_calls"
    [call] = first.choices[0].message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Oslo"}

    result = {"role": "tool", "tool_call_id": call.id, "name": "get_weather", "content": "rain in Oslo"}
    second = await ask(server, way, messages=[*history, first.choices[0].message, result], tools=[WEATHER])
    assert second.choices[0].message.content == "It rains."


async def test_a_schema_is_followed(server: ServerProcess, way: str) -> None:
    schema = {
        "type": "object",
        "properties": {"age": {"type": "integer"}},
        "required": ["age"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}}
    answer = await ask(server, way, response_format=form)
    assert isinstance(json.loads(answer.choices[0].message.content)["age"], int)


async def test_reasoning_is_kept_apart(server: ServerProcess, way: str) -> None:
    server.reply("42", reasoning="six times seven")
    answer = await ask(server, way, reasoning_effort="low", max_tokens=2000, allowed_openai_params=["reasoning_effort"])
    assert answer.choices[0].message.content == "42"
    assert answer.choices[0].message.reasoning_content == "six times seven"


ERRORS: dict[str, dict[str, type[Exception]]] = {
    "invalid_parameter": {"*": exceptions.BadRequestError},
    "model_not_found": {"*": exceptions.NotFoundError},
    "internal_error": {"*": exceptions.InternalServerError},
    "model_busy": {
        "*": exceptions.RateLimitError,
        "anthropic": exceptions.InternalServerError,  # 529
        "ollama_chat": exceptions.ServiceUnavailableError,  # 503
    },
    "model_not_loaded": {
        "*": exceptions.ServiceUnavailableError,
        "anthropic": exceptions.InternalServerError,  # 529
    },
}
"""By code and way: LiteLLM goes by the status, and the families have different ones."""


@pytest.mark.parametrize("fault", ERRORS)
async def test_errors_become_their_classes(server: ServerProcess, way: str, fault: str) -> None:
    server.fail_next(fault)
    with pytest.raises(ERRORS[fault].get(way, ERRORS[fault]["*"])):
        await ask(server, way)


async def test_a_wrong_key_is_an_authentication_error(server: ServerProcess, way: str) -> None:
    with pytest.raises(exceptions.AuthenticationError):
        await litellm.acompletion(**{**to(server, way), "api_key": "sk-wrong"}, messages=HI)


async def test_an_overlong_prompt_is_a_context_window_error(server: ServerProcess, way: str) -> None:
    known = way != "ollama_chat"  # LiteLLM 1.110 reads no overflow out of Ollama's errors
    with pytest.raises(exceptions.ContextWindowExceededError if known else exceptions.BadRequestError):
        await ask(server, way, messages=[{"role": "user", "content": "word " * 20_000}])


@pytest.mark.parametrize("way", ["openai", "ollama"])
async def test_embeddings(server: ServerProcess, way: str) -> None:
    found = await litellm.aembedding(**to(server, way), input=["a", "b"])
    assert [len(one["embedding"]) for one in found.data] == [len(found.data[0]["embedding"])] * 2
