"""The official `openai` package against both engines, unchanged: what it does with each answer and each error."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from pocketserver.engines.sim.engine import SimEngine, SimOptions
from tests.clients.engines import ENGINES, make_engine
from tests.serving import Running, running
from tests.waiting import until

HI: Any = [{"role": "user", "content": "Say hello."}]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest_asyncio.fixture(params=ENGINES, scope="module", loop_scope="module")
async def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """One server a module and engine; the real model is loaded once."""
    home = tmp_path_factory.mktemp("home")
    engine = await make_engine(request, home)
    async with running(home, engine) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module")
async def client(served: Running) -> AsyncIterator[AsyncOpenAI]:
    async with served.openai() as sdk:
        yield sdk


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_models_are_listed_with_the_loaded_one(served: Running, client: AsyncOpenAI) -> None:
    listed = [model async for model in client.models.list()]
    loaded = [model for model in listed if model.model_dump()["loaded"]]

    assert [model.id for model in loaded] == [served.server.model_id]
    assert all(model.object == "model" and isinstance(model.created, int) for model in listed)


async def test_a_chat_has_text_usage_and_an_honest_finish_reason(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="default", messages=HI, max_tokens=8)

    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in {"stop", "length"}
    assert answer.usage is not None
    assert 1 <= answer.usage.completion_tokens <= 8
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer._request_id


async def test_a_stream_joins_to_the_same_text_and_reports_usage(client: AsyncOpenAI) -> None:
    same: dict[str, Any] = {"model": "default", "messages": HI, "max_tokens": 24, "temperature": 0, "seed": 1}
    whole = await client.chat.completions.create(**same)
    stream = await client.chat.completions.create(**same, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]

    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert [chunk.usage for chunk in chunks if chunk.usage][-1] is not None
    assert sum(1 for chunk in chunks if chunk.usage) == 1


async def test_the_stream_helper_collects_one_role_and_the_whole_text(client: AsyncOpenAI) -> None:
    async with client.chat.completions.stream(model="default", messages=HI, max_tokens=500, temperature=0) as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_completion()

    assert final.choices[0].message.role == "assistant"
    assert final.choices[0].message.content


async def test_json_follows_the_schema(client: AsyncOpenAI) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    answer = await client.chat.completions.create(
        model="default",
        messages=[{"role": "user", "content": "Invent a person."}],
        response_format=form,
        max_tokens=120,
    )

    assert answer.choices[0].finish_reason == "stop"
    jsonschema.validate(json.loads(answer.choices[0].message.content or ""), PERSON)


async def test_a_json_object_needs_no_word_json_in_the_prompt(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="default", messages=HI, response_format={"type": "json_object"}, max_tokens=400, temperature=0
    )
    text = answer.choices[0].message.content or ""

    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(text), dict)
    else:
        assert text.startswith("{")


@pytest.mark.parametrize(
    ("fields", "expected", "code"),
    [
        ({"temperature": 3}, openai.BadRequestError, "invalid_parameter"),
        ({"messages": []}, openai.BadRequestError, "invalid_parameter"),
        ({"n": 9}, openai.BadRequestError, "invalid_parameter"),
        ({"model": "no-such"}, openai.NotFoundError, "model_not_found"),
        ({"messages": [{"role": "user", "content": "word " * 30_000}]}, openai.BadRequestError, "invalid_parameter"),
    ],
)
async def test_errors_raise_the_matching_exception_with_our_code(
    client: AsyncOpenAI, fields: dict[str, Any], expected: type[openai.APIStatusError], code: str
) -> None:
    with pytest.raises(expected) as caught:
        await client.chat.completions.create(**{"model": "default", "messages": HI, **fields})

    assert caught.value.code == code
    assert caught.value.request_id


async def test_a_wrong_key_is_an_authentication_error(served: Running) -> None:
    async with AsyncOpenAI(base_url=f"{served.origin}/v1", api_key="sk-wrong", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError) as caught:
            await stranger.models.list()
    assert caught.value.code == "invalid_api_key"


async def test_closing_a_stream_frees_the_model(served: Running, client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="default", messages=[{"role": "user", "content": "Tell a very long story."}], max_tokens=4000, stream=True
    )
    async for _ in stream:
        break
    await stream.close()

    await until(lambda: not served.server.door.busy)
    answer = await client.chat.completions.create(model="default", messages=HI, max_tokens=2)
    assert answer.choices[0].message.content is not None


async def test_a_hundred_requests_have_the_same_shape_on_every_engine(client: AsyncOpenAI) -> None:
    """Kinds of request in turn; each answer is checked for the invariants that clients rely on."""
    kinds: list[dict[str, Any]] = [
        {},
        {"stop": [" a", "e"]},
        {"temperature": 0},
        {"seed": 7, "top_p": 0.5},
        {"messages": [{"role": "developer", "content": "Be brief."}, *HI]},
        {"messages": [*HI, {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "More."}]},
        {"frequency_penalty": 0.5, "presence_penalty": 0.5},
        {"logprobs": True, "top_logprobs": 2},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "you"}]}]},
        {"max_completion_tokens": 1},
    ]
    for number in range(100):
        fields = {"model": "default", "messages": HI, "max_tokens": 3, **kinds[number % len(kinds)]}
        if number % 20 < 10:
            answer = await client.chat.completions.create(**fields)
            choice = answer.choices[0]
            text, reason, usage = choice.message.content or "", choice.finish_reason, answer.usage
        else:
            stream = await client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True})
            chunks = [chunk async for chunk in stream]
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
            [reason] = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
            usage = chunks[-1].usage
        assert usage is not None
        assert reason in {"stop", "length"}
        assert usage.completion_tokens <= 3
        assert usage.prompt_tokens > 0
        assert "\ufffd" not in text
        assert not any(stop in text for stop in fields.get("stop", []))


class TestRetries:
    """What the SDK does by itself with a busy device."""

    async def test_a_busy_model_is_retried_until_it_is_free(self, tmp_path: Path) -> None:
        engine = SimEngine(SimOptions(tokens_per_second=40))
        async with running(tmp_path, engine) as server:
            async with server.openai(max_retries=3) as patient:
                both = await asyncio.gather(
                    *(patient.chat.completions.create(model="default", messages=HI) for _ in range(2))
                )
            statuses = sorted(exchange.status for exchange in server.exchanges)

        assert all(answer.choices[0].message.content for answer in both)
        assert statuses[:2] == [200, 200]
        assert set(statuses[2:]) == {429}

    async def test_an_error_chunk_raises_and_is_not_retried(self, tmp_path: Path) -> None:
        engine = SimEngine(SimOptions(tokens_per_second=0.001))
        async with running(tmp_path, engine) as server:
            async with server.openai(max_retries=3) as sdk:
                stream = await sdk.chat.completions.create(model="default", messages=HI, stream=True)
                server.server.door.stop()
                with pytest.raises(openai.APIError, match="cancelled"):
                    async for _ in stream:
                        pass
            assert len(server.exchanges) <= 1
