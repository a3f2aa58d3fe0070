"""Several choices through the official `openai` package: one after another, each whole, within one turn at the model."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from pocketserver.engines.sim.engine import SimEngine, SimOptions
from tests.clients.engines import ENGINES, make_engine
from tests.serving import Running, running
from tests.waiting import until

ASK: dict[str, Any] = {
    "model": "default",
    "messages": [{"role": "user", "content": "Say a word."}],
    "max_tokens": 6,
    "temperature": 1.0,
    "seed": 3,
}

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(params=ENGINES, scope="module", loop_scope="module")
async def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[AsyncOpenAI]:
    home = tmp_path_factory.mktemp("home")
    async with running(home, await make_engine(request, home)) as server, server.openai() as sdk:
        yield sdk


async def test_each_choice_is_whole_and_usage_adds_up(client: AsyncOpenAI) -> None:
    one = await client.chat.completions.create(**ASK)
    three = await client.chat.completions.create(**ASK, n=3)

    assert [choice.index for choice in three.choices] == [0, 1, 2]
    assert three.choices[0].message.content == one.choices[0].message.content
    assert all(choice.message.content and choice.finish_reason for choice in three.choices)
    assert one.usage is not None
    assert three.usage is not None
    assert three.usage.prompt_tokens == one.usage.prompt_tokens
    assert one.usage.completion_tokens < three.usage.completion_tokens <= 3 * 6
    assert three.usage.total_tokens == three.usage.prompt_tokens + three.usage.completion_tokens


async def test_streamed_choices_have_a_role_and_a_finish_each_and_the_same_text(client: AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(**ASK, n=2)
    stream = await client.chat.completions.create(**ASK, n=2, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]

    pieces = [chunk.choices[0] for chunk in chunks if chunk.choices]
    for choice in whole.choices:
        mine = [piece for piece in pieces if piece.index == choice.index]
        assert [piece.delta.role for piece in mine].count("assistant") == 1
        assert mine[0].delta.role == "assistant"
        assert mine[-1].finish_reason == choice.finish_reason
        assert [piece.finish_reason for piece in mine[:-1]] == [None] * (len(mine) - 1)
        assert "".join(piece.delta.content or "" for piece in mine) == choice.message.content
    assert chunks[-1].usage == whole.usage or chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert sum(1 for chunk in chunks if chunk.usage) == 1


async def test_the_same_seed_gives_the_same_choices(client: AsyncOpenAI) -> None:
    texts = [
        [choice.message.content for choice in (await client.chat.completions.create(**ASK, n=3)).choices]
        for _ in range(2)
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("wrong", [0, -1, 9, 129])
async def test_more_choices_than_the_limit_are_refused(client: AsyncOpenAI, wrong: int) -> None:
    with pytest.raises(openai.BadRequestError, match="from 1 to 8") as caught:
        await client.chat.completions.create(**ASK, n=wrong)
    assert caught.value.param == "n"


async def test_nobody_comes_between_the_choices_and_stop_ends_them_all(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    engine = SimEngine(SimOptions(tokens_per_second=100))
    async with running(tmp_path_factory.mktemp("home"), engine) as server, server.openai() as sdk:
        asking = asyncio.create_task(sdk.chat.completions.create(**{**ASK, "max_tokens": 30}, n=8))
        await second_choice(server)
        with pytest.raises(openai.RateLimitError):
            await sdk.chat.completions.create(**ASK)
        assert server.server.door.stop()
        with pytest.raises(openai.APIStatusError, match="cancelled"):
            await asking
        await until(lambda: not server.server.door.busy)


async def second_choice(server: Running) -> None:
    door = server.server.door
    await until(lambda: door.running is not None and door.running.request_id.endswith("-1"))
