"""Completions through the official `openai` packages and raw sockets, against the simulator and the real model."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from pocketserver.chat import EngineState
from pocketserver.engines.llama.process import LlamaEngine, LlamaOptions
from pocketserver.engines.sim.device import SimModel
from pocketserver.engines.sim.engine import SimEngine, SimOptions, generic
from tests.clients.engines import ENGINES, make_engine
from tests.clients.plain_clients import asked_in_javascript, serving_all
from tests.serving import FAST, Running, running
from tests.waiting import until

ASK: dict[str, Any] = {
    "model": "default",
    "prompt": "The capital of France is",
    "max_tokens": 6,
    "temperature": 0,
    "seed": 1,
}

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(params=ENGINES, scope="module", loop_scope="module")
async def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    home = tmp_path_factory.mktemp("home")
    async with serving_all(home, await make_engine(request, home)) as running_server:
        yield running_server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(server: Running) -> AsyncIterator[AsyncOpenAI]:
    async with server.openai() as sdk:
        yield sdk


async def test_a_prompt_goes_on_as_plain_text(client: AsyncOpenAI) -> None:
    found = await client.completions.create(**ASK)

    assert found.object == "text_completion"
    assert found.id.startswith("cmpl-")
    assert found.choices[0].text
    assert found.choices[0].finish_reason == "length"
    assert found.choices[0].logprobs is None
    assert found.usage is not None
    assert found.usage.completion_tokens == 6
    assert found.usage.total_tokens == found.usage.prompt_tokens + 6


async def test_a_stream_joins_to_the_same_text_and_reports_usage_once(client: AsyncOpenAI) -> None:
    whole = await client.completions.create(**ASK)
    stream = await client.completions.create(**ASK, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]

    assert {(chunk.id, chunk.created, chunk.object) for chunk in chunks} == {
        (chunks[0].id, chunks[0].created, "text_completion")
    }
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == whole.choices[0].text
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["length"]
    assert chunks[-1].choices == []
    assert [chunk.usage for chunk in chunks] == [None] * (len(chunks) - 1) + [whole.usage]


async def test_several_prompts_with_several_answers_are_numbered_flat(client: AsyncOpenAI) -> None:
    prompts = ["The capital of France is", "Once upon a time"]
    alone = [await client.completions.create(**{**ASK, "prompt": prompt}) for prompt in prompts]
    found = await client.completions.create(**{**ASK, "prompt": prompts, "n": 2})

    assert [choice.index for choice in found.choices] == [0, 1, 2, 3]
    assert [found.choices[0].text, found.choices[2].text] == [answer.choices[0].text for answer in alone]
    assert found.usage is not None
    assert found.usage.prompt_tokens == sum(answer.usage.prompt_tokens for answer in alone if answer.usage)
    assert found.usage.completion_tokens == 4 * 6


async def test_streamed_prompts_carry_their_own_index(client: AsyncOpenAI) -> None:
    ask = {**ASK, "prompt": ["The capital of France is", "Once upon a time"]}
    whole = await client.completions.create(**ask)
    stream = await client.completions.create(**ask, stream=True)
    texts = ["", ""]
    async for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text

    assert texts == [choice.text for choice in whole.choices]


async def test_an_echo_is_the_prompt_and_then_the_answer(client: AsyncOpenAI) -> None:
    plain = await client.completions.create(**ASK)
    echoed = await client.completions.create(**ASK, echo=True)
    stream = await client.completions.create(**ASK, echo=True, stream=True)
    pieces = [chunk.choices[0].text async for chunk in stream]

    assert echoed.choices[0].text == ASK["prompt"] + plain.choices[0].text
    assert "".join(pieces) == echoed.choices[0].text
    assert pieces[0] == ASK["prompt"]
    assert echoed.usage == plain.usage


async def test_logprobs_are_the_four_arrays_that_the_sdk_reads(client: AsyncOpenAI) -> None:
    found = (await client.completions.create(**ASK, logprobs=2)).choices[0]

    scores = found.logprobs
    assert scores is not None
    assert scores.tokens is not None
    assert scores.token_logprobs is not None
    assert scores.top_logprobs is not None
    assert scores.text_offset is not None
    assert "".join(scores.tokens) == found.text
    assert len(scores.token_logprobs) == len(scores.top_logprobs) == len(scores.text_offset) == len(scores.tokens)
    assert scores.text_offset[0] == len(ASK["prompt"])
    assert all(token in top for token, top in zip(scores.tokens, scores.top_logprobs, strict=True))


async def test_a_text_is_scored_without_writing_anything(client: AsyncOpenAI) -> None:
    """What evaluation harnesses do: echo, logprobs, no new token."""
    text = "The capital of France is Paris."
    ask = {**ASK, "prompt": text, "max_tokens": 0}
    found = (await client.completions.create(**ask, echo=True, logprobs=1)).choices[0]

    assert found.text == text
    assert found.logprobs is not None
    assert found.logprobs.tokens is not None
    assert found.logprobs.token_logprobs is not None
    assert found.logprobs.top_logprobs is not None
    assert found.logprobs.text_offset is not None
    assert "".join(found.logprobs.tokens) == text
    assert found.logprobs.token_logprobs[0] is None
    assert found.logprobs.top_logprobs[0] is None
    assert all(isinstance(score, float) for score in found.logprobs.token_logprobs[1:])
    assert [text[at] for at in found.logprobs.text_offset] == [token[0] for token in found.logprobs.tokens]


async def test_no_tokens_without_an_echo_is_an_empty_text(client: AsyncOpenAI) -> None:
    found = await client.completions.create(**{**ASK, "max_tokens": 0})

    assert (found.choices[0].text, found.choices[0].finish_reason) == ("", "length")
    assert found.usage is not None
    assert found.usage.completion_tokens == 0


async def test_token_ids_are_a_prompt(client: AsyncOpenAI) -> None:
    one = await client.completions.create(**{**ASK, "prompt": [504, 3575, 282, 4649, 314]})
    two = await client.completions.create(**{**ASK, "prompt": [[504, 3575, 282, 4649, 314], [504]]})

    assert one.usage is not None
    assert one.usage.prompt_tokens == 5
    assert two.choices[0].text == one.choices[0].text
    assert len(two.choices) == 2
    assert two.usage is not None
    assert two.usage.prompt_tokens == 6


async def test_a_stop_text_ends_the_answer_and_is_not_in_it(client: AsyncOpenAI) -> None:
    text = (await client.completions.create(**ASK)).choices[0].text
    stop = text.split()[1]
    found = await client.completions.create(**ASK, stop=[stop])

    assert found.choices[0].finish_reason == "stop"
    assert found.choices[0].text == text[: text.index(stop)]


async def test_an_empty_prompt_is_answered(client: AsyncOpenAI) -> None:
    assert (await client.completions.create(**{**ASK, "prompt": ""})).choices[0].text


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": " end"}, "suffix"),
        ({"suffix": " end", "echo": True}, "echo"),
        ({"best_of": 3}, "best_of"),
        ({"n": 129}, "n"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"logprobs": 6}, "logprobs"),
        ({"extra_body": {"messages": [{"role": "user", "content": "hi"}]}}, "messages"),
        ({"prompt": "word " * 9000}, "prompt"),
    ],
)
async def test_what_cannot_be_done_is_a_400_that_names_the_field(
    client: AsyncOpenAI, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.completions.create(**{**ASK, **fields})
    assert caught.value.param == param
    assert caught.value.code == ("context_length_exceeded" if param == "prompt" else "invalid_parameter")


async def test_leaving_in_mid_stream_frees_the_model(server: Running, client: AsyncOpenAI) -> None:
    stream = await client.completions.create(**{**ASK, "max_tokens": -1, "prompt": "Count: 1 2 3"}, stream=True)
    async for _ in stream:
        break
    await stream.close()

    await until(lambda: not server.server.door.busy)
    assert (await client.completions.create(**ASK)).choices[0].text


async def test_what_was_ignored_is_told_in_header_and_document(server: Running) -> None:
    async with server.session() as session, session.post("/v1/completions", json={**ASK, "grammar": "x"}) as answer:
        assert "grammar:ignored" in (await answer.json())["warnings"]
        assert answer.headers["x-pocketserver-warnings"].startswith("grammar:")


async def test_the_javascript_sdk_reads_the_same_answers(server: Running, client: AsyncOpenAI) -> None:
    mine = (await client.completions.create(**ASK, logprobs=1)).choices[0]
    found = await asked_in_javascript(server)

    assert found["whole"]["text"] == found["streamed"]["text"] == mine.text
    assert mine.logprobs is not None
    assert found["whole"]["logprobs"]["tokens"] == mine.logprobs.tokens
    assert found["streamed"]["usage"]["completion_tokens"] == 6
    assert found["errors"]["suffix"] == {
        "class": "BadRequestError",
        "status": 400,
        "code": "invalid_parameter",
        "param": "suffix",
    }


async def test_leaving_before_the_first_token_frees_the_model(tmp_path: Path) -> None:
    engine = SimEngine(SimOptions(tokens_per_second=0.01))
    async with serving_all(tmp_path, engine) as server, server.openai() as sdk:
        asking = asyncio.create_task(sdk.completions.create(**ASK))
        await until(lambda: engine.running == 1)

        asking.cancel()

        await until(lambda: engine.running == 0)
        assert not server.server.door.busy


async def test_an_error_in_mid_stream_is_the_last_thing_sent(tmp_path: Path) -> None:
    engine = SimEngine(SimOptions(tokens_per_second=20))
    async with serving_all(tmp_path, engine) as server, server.session() as session:
        async with session.post("/v1/completions", json={**ASK, "stream": True}) as answer:
            data = await answer.content.readuntil(b"\n\n")
            assert server.server.door.stop()
            rest = await answer.content.read()

    last = [line for line in (data + rest).split(b"\n\n") if line][-1]
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "request_cancelled"
    assert b"[DONE]" not in rest


async def test_a_model_that_inserts_takes_a_suffix(tmp_path: Path) -> None:
    model = SimModel(id="coder", insert=True)
    preset = generic("coder", 8192, 40.0, prompt_factor=1e6)
    device = type(preset)(name="coder", summary="fills in", models=(model,), memory_limit_bytes=8_000_000_000)
    engine = SimEngine(SimOptions(model="coder", preset=device, speed=None))
    async with serving_all(tmp_path, engine) as server, server.openai() as sdk:
        found = await sdk.completions.create(**ASK, suffix=" and so on")
        other = await sdk.completions.create(**ASK, suffix=" in Europe")

    assert found.choices[0].text
    assert found.choices[0].text != other.choices[0].text


@pytest.mark.parametrize(
    ("profile", "path", "words"),
    [
        ("pocketllm", "/v1/completions", ""),
        ("pocketllm", "/v1/embeddings", ""),
        ("pooled", "/v1/completions", "/v1/chat/completions"),
        ("pooled", "/v1/embeddings", "not served"),
    ],
)
async def test_products_without_the_route_say_so(tmp_path: Path, profile: str, path: str, words: str) -> None:
    async with running(tmp_path, profile=profile, mdns=False, auth="off") as server, aiohttp.ClientSession() as session:
        async with session.post(server.origin + path, json={"prompt": "x", "input": "x"}) as answer:
            found = (await answer.json())["error"]

    assert (answer.status, found["code"]) == (404, "unknown_route")
    assert words in found["message"]


async def test_each_class_of_error_reaches_the_sdk(tmp_path: Path) -> None:
    engine = SimEngine(FAST)
    async with serving_all(tmp_path, engine, max_queue=1) as server, server.openai() as sdk:
        with pytest.raises(openai.AuthenticationError):
            await sdk.with_options(api_key="sk-wrong").completions.create(**ASK)
        with pytest.raises(openai.NotFoundError) as missing:
            await sdk.completions.create(**{**ASK, "model": "no-such-model"}, stream=True)
        assert missing.value.code == "model_not_found"
        async with server.server.door.turn():
            with pytest.raises(openai.RateLimitError) as full:
                await sdk.completions.create(**ASK)
            assert full.value.code == "queue_full"
            assert int(full.value.response.headers["retry-after"]) >= 1
        engine.state = EngineState.LOADING
        with pytest.raises(openai.InternalServerError) as loading:
            await sdk.completions.create(**ASK)
        assert (loading.value.status_code, loading.value.response.headers["retry-after"]) == (503, "5")


@pytest.mark.real_model
async def test_the_windows_edge_is_exact(tmp_path: Path, default_model_path: Path) -> None:
    """A prompt that leaves room for one token is answered, one that leaves none is refused, and the worker lives."""
    options = LlamaOptions(model_id="model", path=default_model_path, state_folder=tmp_path, context=256, threads=1)
    engine = LlamaEngine(options)
    await engine.start()
    await engine.loaded()
    async with serving_all(tmp_path, engine) as server, server.openai() as sdk:
        for length in (254, 255):
            found = await sdk.completions.create(model="model", prompt=[504] * length, max_tokens=-1, temperature=1.0)
            assert found.choices[0].finish_reason in ("length", "stop")
            assert found.usage is not None
            assert (found.usage.prompt_tokens, found.usage.completion_tokens >= 1) == (length, True)
            assert found.usage.total_tokens <= 256
        for length in (256, 257):
            with pytest.raises(openai.BadRequestError, match=f"{length} tokens") as caught:
                await sdk.completions.create(model="model", prompt=[504] * length)
            assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")
        with pytest.raises(openai.BadRequestError) as long:
            await sdk.embeddings.create(model="model", input=["ok", "word " * 512])
        assert (long.value.code, long.value.param) == ("context_length_exceeded", "input")
        assert "input[1]" in str(long.value)
        assert server.server.engine.status.worker_restarts == 0
