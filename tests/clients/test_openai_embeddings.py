"""Embeddings through the official `openai` packages, which ask for base64 by themselves, on both engines."""

import json
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from pocketserver.chat import EngineState
from pocketserver.engines.sim.device import SimModel
from pocketserver.engines.sim.engine import SimEngine, SimOptions, generic
from tests.clients.engines import ENGINES, make_engine
from tests.clients.plain_clients import asked_in_javascript, serving_all
from tests.serving import FAST, Running, running

CAT, BANK = "A cat sleeps.", "Banks raise rates."
MODEL = "default"

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


async def test_a_text_has_one_vector_of_length_one(client: AsyncOpenAI) -> None:
    found = await client.embeddings.create(model=MODEL, input=CAT)

    assert found.object == "list"
    assert [(entry.object, entry.index) for entry in found.data] == [("embedding", 0)]
    assert math.hypot(*found.data[0].embedding) == pytest.approx(1, abs=1e-3)
    assert found.usage.prompt_tokens == found.usage.total_tokens > 0


async def test_a_batch_keeps_its_order_and_gives_the_vectors_of_its_entries(client: AsyncOpenAI) -> None:
    both = await client.embeddings.create(model=MODEL, input=[CAT, BANK])
    alone = [await client.embeddings.create(model=MODEL, input=text) for text in (CAT, BANK)]

    assert [entry.index for entry in both.data] == [0, 1]
    for entry, single in zip(both.data, alone, strict=True):
        assert entry.embedding == pytest.approx(single.data[0].embedding, abs=1e-3)
    assert both.usage.prompt_tokens == sum(single.usage.prompt_tokens for single in alone)


async def test_all_clients_and_formats_get_the_same_vector(server: Running, client: AsyncOpenAI) -> None:
    unasked = (await client.embeddings.create(model=MODEL, input=CAT)).data[0].embedding
    floats = (await client.embeddings.create(model=MODEL, input=CAT, encoding_format="float")).data[0].embedding
    found = await asked_in_javascript(server)

    assert len(unasked) == len(floats) == len(found["unasked"]) == len(found["floats"])
    for other in (floats, found["unasked"], found["floats"]):
        assert other == pytest.approx(unasked, abs=1e-6)
    assert found["several"] == [0, 1]
    assert len(found["short"]) == 8
    assert math.hypot(*found["short"]) == pytest.approx(1, abs=1e-3)
    assert found["errors"]["tokens"] == {
        "class": "BadRequestError",
        "status": 400,
        "code": "invalid_parameter",
        "param": "input",
    }
    assert found["errors"]["model"]["class"] == "NotFoundError"


async def test_fewer_dimensions_point_the_same_way(client: AsyncOpenAI) -> None:
    whole = (await client.embeddings.create(model=MODEL, input=CAT)).data[0].embedding
    short = (await client.embeddings.create(model=MODEL, input=CAT, dimensions=8)).data[0].embedding
    length = math.hypot(*whole[:8])

    assert short == pytest.approx([value / length for value in whole[:8]], abs=1e-5)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"encoding_format": "hex"}, "encoding_format"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": 100_000}, "dimensions"),
        ({"input": [1, 2, 3]}, "input"),
        ({"input": [[1, 2, 3]]}, "input"),
        ({"input": []}, "input"),
        ({"input": [CAT, ""]}, "input"),
        ({"input": "word " * 9000}, "input"),
    ],
)
async def test_what_cannot_be_embedded_is_a_400_that_names_the_field(
    client: AsyncOpenAI, fields: dict[str, Any], param: str
) -> None:
    ask: dict[str, Any] = {"model": MODEL, "input": CAT, **fields}
    with pytest.raises(openai.BadRequestError) as caught:
        await client.embeddings.create(**ask)
    assert caught.value.param == param
    too_long = isinstance(ask["input"], str) and len(ask["input"]) > 1000
    assert caught.value.code == ("context_length_exceeded" if too_long else "invalid_parameter")


async def test_a_null_format_is_numbers(server: Running) -> None:
    body = {"model": MODEL, "input": CAT, "encoding_format": None}
    async with server.session() as session, session.post("/v1/embeddings", json=body) as answer:
        vector = (await answer.json())["data"][0]["embedding"]
    assert isinstance(vector, list)


async def test_a_model_that_embeds_nothing_says_so(tmp_path: Path) -> None:
    preset = generic("mute", 8192, 40.0, prompt_factor=1e6)
    model = SimModel(id="mute", embeddings=False)
    device = type(preset)(name="mute", summary="no vectors", models=(model,), memory_limit_bytes=8_000_000_000)
    engine = SimEngine(SimOptions(model="mute", preset=device, speed=None))
    async with serving_all(tmp_path, engine) as server, server.openai() as sdk:
        with pytest.raises(openai.BadRequestError, match="no embeddings") as caught:
            await sdk.embeddings.create(model="mute", input=CAT)
    assert caught.value.param == "model"


async def test_each_class_of_error_reaches_the_sdk(tmp_path: Path) -> None:
    engine = SimEngine(FAST)
    async with serving_all(tmp_path, engine, max_queue=1) as server, server.openai() as sdk:
        with pytest.raises(openai.AuthenticationError):
            await sdk.with_options(api_key="sk-wrong").embeddings.create(model=MODEL, input=CAT)
        with pytest.raises(openai.NotFoundError) as missing:
            await sdk.embeddings.create(model="no-such-model", input=CAT)
        assert missing.value.code == "model_not_found"
        async with server.server.door.turn():
            with pytest.raises(openai.RateLimitError) as full:
                await sdk.embeddings.create(model=MODEL, input=CAT)
            assert "retry-after" in full.value.response.headers
        engine.state = EngineState.LOADING
        with pytest.raises(openai.InternalServerError) as loading:
            await sdk.embeddings.create(model=MODEL, input=CAT)
        assert (loading.value.status_code, loading.value.response.headers["retry-after"]) == (503, "5")


async def test_roach_serves_both_routes_without_a_key_and_wants_the_models_name(tmp_path: Path) -> None:
    async with running(tmp_path, profile="roach") as server, aiohttp.ClientSession(server.origin) as session:
        for path, body in (("/v1/embeddings", {"input": CAT}), ("/v1/completions", {"prompt": CAT, "max_tokens": 2})):
            async with session.post(path, json={**body, "model": "sim-1b"}) as answer:
                assert answer.status == 200
            async with session.post(path, data=b'{"model":"sim-1b",' + json_tail(body)) as answer:
                assert answer.status == 200
            async with session.post(path, json={**body, "model": "no-such"}) as answer:
                assert (answer.status, (await answer.json())["error"]["code"]) == (404, "model_not_found")
            async with session.post(path, json=body) as answer:
                assert (answer.status, (await answer.json())["error"]["param"]) == (400, "model")


def json_tail(body: dict[str, Any]) -> bytes:
    """The members of an object without its opening brace."""
    return json.dumps(body).encode()[1:]
