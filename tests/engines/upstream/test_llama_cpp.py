"""llama.cpp's own server as the upstream, with a real model: every API through our door, as far as that server has it."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import ollama
import pytest
import pytest_asyncio
from anthropic import AsyncAnthropic
from openai import APIStatusError, AsyncOpenAI

from tests.engines.upstream.gateway import in_front_of
from tests.engines.upstream.processes import Process, llama_cpp_server
from tests.serving import Running
from tests.waiting import until

pytestmark = [pytest.mark.real_model, pytest.mark.asyncio(loop_scope="module")]

QUESTION = [{"role": "user", "content": "Say hello in one short sentence."}]
TOOL = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


TEMPLATE = """{%- if tools %}<|im_start|>system
You may call functions. They are in <tools></tools>:
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools>
For each call return a JSON object within <tool_call></tool_call>:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or "" }}{% for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""The default model's turns, with tools as many models write them: that server makes calls of no others."""


@pytest.fixture(scope="module")
def upstream(default_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    pytest.importorskip("xllamacpp")
    template = tmp_path_factory.mktemp("template") / "tools.jinja"
    template.write_text(TEMPLATE)
    with llama_cpp_server(default_model_path, "--alias", "smol", "--chat-template", str(template)) as process:
        yield process


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(upstream: Process, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    async with in_front_of(tmp_path_factory.mktemp("door"), upstream.base_url) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(server: Running) -> AsyncIterator[AsyncOpenAI]:
    async with server.openai() as client:
        yield client


async def test_a_stream_arrives_in_pieces_with_real_counts(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="default", messages=QUESTION, max_tokens=12, temperature=0, stream=True,
        stream_options={"include_usage": True},
    )  # type: ignore[call-overload]  # fmt: skip
    chunks = [chunk async for chunk in stream]
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert len(pieces) > 3
    assert chunks[-1].usage.prompt_tokens > 10
    assert 3 < chunks[-1].usage.completion_tokens <= 12

    whole = await client.chat.completions.create(model="default", messages=QUESTION, max_tokens=12, temperature=0)  # type: ignore[call-overload]
    assert whole.choices[0].message.content == "".join(pieces)


async def test_the_other_families_say_the_same(server: Running, client: AsyncOpenAI) -> None:
    model = server.server.engine.status.model
    assert model is not None
    whole = await client.chat.completions.create(model="default", messages=QUESTION, max_tokens=16, temperature=0)  # type: ignore[call-overload]
    text = whole.choices[0].message.content
    async with AsyncAnthropic(base_url=server.origin, api_key=server.key, max_retries=0) as anthropic:
        async with anthropic.messages.stream(
            model=model,
            max_tokens=16,
            messages=QUESTION,  # type: ignore[arg-type]
            extra_body={"temperature": 0},
        ) as stream:
            message = await stream.get_final_message()
    assert message.content[0].text == text  # type: ignore[union-attr]
    async with ollama.AsyncClient(host=server.origin, headers=server.headers) as native:
        options = {"temperature": 0, "num_predict": 16, "top_p": 0.95, "top_k": 0}
        answer = await native.chat(model=model, messages=QUESTION, options=options)
    assert answer.message.content == text
    response = await client.responses.create(model=model, input=QUESTION, max_output_tokens=16, temperature=0)  # type: ignore[call-overload]
    assert response.output_text == text


async def test_an_answer_follows_its_schema(client: AsyncOpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}, "warm": {"type": "boolean"}},
        "required": ["city", "warm"],
        "additionalProperties": False,
    }
    answer = await client.chat.completions.create(
        model="default", messages=QUESTION, max_tokens=40, temperature=0,
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}},
    )  # type: ignore[call-overload]  # fmt: skip
    found = json.loads(answer.choices[0].message.content)
    assert set(found) == {"city", "warm"}
    assert found["city"] in ("Rome", "Oslo")


async def test_tools_reach_its_prompt(client: AsyncOpenAI) -> None:
    """Whether the model calls one is for a larger model to show; that server does not force it to."""
    asked = {"model": "default", "messages": QUESTION, "max_tokens": 8, "temperature": 0}
    without = await client.chat.completions.create(**asked)  # type: ignore[call-overload]
    tools = [{"type": "function", "function": TOOL}]
    answer = await client.chat.completions.create(**asked, tools=tools, tool_choice="auto")  # type: ignore[call-overload]
    assert answer.usage.prompt_tokens > without.usage.prompt_tokens + 40
    assert answer.choices[0].message.content or answer.choices[0].message.tool_calls


async def test_scores_are_passed_on(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="default", messages=QUESTION, max_tokens=4, temperature=0, logprobs=True, top_logprobs=3
    )  # type: ignore[call-overload]
    scores = answer.choices[0].logprobs.content
    assert len(scores) == answer.usage.completion_tokens or len(scores) == answer.usage.completion_tokens - 1
    assert all(len(score.top_logprobs) == 3 and score.logprob <= 0 for score in scores)


async def test_raw_prompts_are_completed(client: AsyncOpenAI) -> None:
    answer = await client.completions.create(model="default", prompt="Once upon a", max_tokens=8, temperature=0)
    assert answer.choices[0].text
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8


async def test_a_prompt_that_is_too_long_is_the_clients_fault(client: AsyncOpenAI) -> None:
    with pytest.raises(APIStatusError) as caught:
        await client.chat.completions.create(model="default", messages=[{"role": "user", "content": "word " * 3000}])
    assert caught.value.status_code == 400
    assert caught.value.code == "context_length_exceeded"


async def test_vectors_are_those_that_it_makes(default_model_path: Path, tmp_path: Path, client: AsyncOpenAI) -> None:
    with pytest.raises(APIStatusError) as caught:
        await client.embeddings.create(model="default", input="hi")
    assert caught.value.status_code == 502
    assert "embeddings" in str(caught.value)
    with llama_cpp_server(default_model_path, "--embeddings") as process:
        async with (
            in_front_of(tmp_path, process.base_url) as door,
            door.openai() as ours,
            AsyncOpenAI(base_url=process.base_url, api_key="-") as theirs,
        ):
            found = await ours.embeddings.create(model="default", input=["cat", "dog"])
            model = door.server.engine.status.model
            straight = await theirs.embeddings.create(model=str(model), input=["cat", "dog"], encoding_format="float")
    for mine, its in zip(found.data, straight.data, strict=True):
        assert mine.embedding == pytest.approx(its.embedding, abs=1e-5)
    assert found.usage.prompt_tokens == straight.usage.prompt_tokens > 1


async def test_a_client_that_leaves_frees_it(server: Running, client: AsyncOpenAI) -> None:
    async with aiohttp.ClientSession(server.origin, headers=server.headers) as session:
        body = {"messages": QUESTION, "max_tokens": 900, "stream": True, "logit_bias": {"2": -100}}
        async with session.post("/v1/chat/completions", json=body) as answer:
            await answer.content.readany()
            answer.close()
    await until(lambda: not server.server.door.busy)
    answer = await client.chat.completions.create(model="default", messages=QUESTION, max_tokens=4)  # type: ignore[call-overload]
    assert answer.choices[0].message.content
