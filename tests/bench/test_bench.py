"""The measuring client against a whole server in this process: every figure is produced, every fault explained."""

import json
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pocketserver.bench.client import ChatClient, UnmeasurableError, chat_client
from pocketserver.bench.measures import AFTER_RESTART, FIGURES, Better, Figure, Sample, make_known
from pocketserver.bench.prompts import CUSTOMER_SCHEMA, Prompts, calibrated, prose, rewritable
from pocketserver.bench.results import Result, as_document, as_table
from pocketserver.bench.run import Plan, alternate, measure
from pocketserver.cli.bench import chosen_figures
from pocketserver.engines.sim.engine import SimEngine, SimOptions
from pocketserver.errors import StartupError, UsageError
from tests.serving import Running, running

BRISK = SimOptions(tokens_per_second=2000.0)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path, SimEngine(BRISK)) as server:
        yield server


@pytest.fixture
async def client(served: Running) -> AsyncIterator[ChatClient]:
    async with chat_client(served.origin, key=served.key) as client:
        yield client


@pytest.mark.parametrize("figure", [*FIGURES, AFTER_RESTART], ids=lambda figure: figure.name)
async def test_every_figure_is_measured_or_says_why_not(client: ChatClient, figure: Figure) -> None:
    plan = Plan(prompts=await calibrated(client, 1), rounds=2)

    result = (await measure(client, [figure], plan, lambda _title: None))[0]

    assert (result.problem is None) == (len(result.samples) == 2)
    assert all(sample.value > 0 for sample in result.samples)
    if figure.name not in {"cancel_to_free", "typical_turn"} and not figure.name.startswith("decode"):
        assert result.problem is None


async def test_decode_counts_the_tokens_that_the_server_counts(client: ChatClient) -> None:
    answer = await client.answer([{"role": "user", "content": "Hello"}], 20)

    assert answer.completion_tokens == 20
    assert answer.prompt_tokens
    assert answer.tokens_per_second > 0


async def test_a_structured_answer_is_checked(client: ChatClient) -> None:
    figure = next(figure for figure in FIGURES if figure.name == "structured")

    sample = await figure.measure(client, Prompts(seed=1), 0)

    assert sample.details["valid"] == 1.0
    assert sample.details["characters"] > 0


async def test_prompts_come_out_at_the_wanted_size(client: ChatClient) -> None:
    prompts = await calibrated(client, 1)

    answer = await client.answer(prompts.single("any", 512, "Who is this about?"), 1)

    assert answer.prompt_tokens is not None
    assert abs(answer.prompt_tokens - 512) < 40


async def test_the_known_conversation_is_the_same_in_another_run(served: Running, client: ChatClient) -> None:
    await make_known(client, Prompts(seed=7))

    again = Prompts(seed=7).conversation("known", 2000)

    assert again == Prompts(seed=7).conversation("known", 2000)
    assert again != Prompts(seed=8).conversation("known", 2000)
    assert (await served.exchange()).status == 200


async def test_two_servers_are_asked_the_same_in_turn(client: ChatClient) -> None:
    asked: list[tuple[str, int]] = []

    async def note(asked_client: ChatClient, _prompts: Prompts, number: int) -> Sample:
        asked.append(("first" if asked_client is client else "second", number))
        return Sample(value=1.0)

    figure = Figure(name="noted", title="noted", unit="s", better=Better.LOWER, measure=note)
    second = ChatClient(client._session, client.base_url, client.model)

    await alternate([client, second], figure, Plan(prompts=Prompts(seed=1), rounds=2), lambda _title: None)

    assert asked == [("first", 0), ("second", 0), ("second", 1), ("first", 1)]


async def test_a_figure_that_cannot_be_measured_is_left_with_its_reason(client: ChatClient) -> None:
    async def fail(_client: ChatClient, _prompts: Prompts, _number: int) -> Sample:
        raise UnmeasurableError("the answer has no text")

    figure = Figure(name="failing", title="Failing", unit="s", better=Better.LOWER, measure=fail)

    results = await measure(client, [figure], Plan(prompts=Prompts(seed=1)), lambda _title: None)

    assert "the answer has no text" in as_table(results)
    assert as_document(results[0])["median"] is None


async def test_a_refused_parameter_is_unmeasurable_not_fatal(client: ChatClient) -> None:
    with pytest.raises(UnmeasurableError, match="400"):
        await client.answer([{"role": "user", "content": "Hello"}], 1, n=3, temperature=99)


async def test_a_wrong_key_is_explained(served: Running) -> None:
    with pytest.raises(StartupError, match="POCKETSERVER_API_KEY"):
        async with chat_client(served.origin, key="sk-wrong-wrong-wrong"):
            pass


async def test_a_server_that_is_gone_is_explained(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        origin, key = server.origin, server.key
    with pytest.raises(StartupError, match="Nothing answers"):
        async with chat_client(origin, key=key):
            pass


async def test_a_server_that_goes_in_between_is_explained(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        origin, key = server.origin, server.key
        opened = chat_client(origin, key=key)
        client = await opened.__aenter__()
    try:
        with pytest.raises(StartupError, match="Nothing answers"):
            await client.answer([{"role": "user", "content": "Hello"}], 1)
    finally:
        await opened.__aexit__(None, None, None)


@pytest.mark.parametrize("url", ["not a url", "http://", "ftp://127.0.0.1"])
async def test_a_url_that_is_none_is_explained(url: str) -> None:
    with pytest.raises(StartupError):
        async with chat_client(url, key=None):
            pass


async def test_an_unknown_model_is_explained(served: Running) -> None:
    async with chat_client(served.origin, key=served.key, model="no-such-model") as client:
        with pytest.raises(StartupError, match="--model"):
            await client.answer([{"role": "user", "content": "Hello"}], 1)


def test_a_longer_text_of_one_name_begins_with_the_shorter_one() -> None:
    assert prose("a", 200).startswith(prose("a", 100))
    assert len(prose("a", 137).split()) == 137
    assert prose("a", 100) != prose("b", 100)


def test_a_text_to_rewrite_holds_the_word_once_and_repeats_no_phrase() -> None:
    for number in range(8):
        text, old, new = rewritable(number)
        words = text.split()
        phrases = list(zip(words, words[1:], words[2:], words[3:], strict=False))
        assert text.count(old) == 1
        assert new not in text
        assert len(set(phrases)) == len(phrases)


def test_the_median_and_the_spread_are_of_the_samples() -> None:
    values = [1.0, 2.0, 4.0]
    random.Random(1).shuffle(values)

    result = Result(figure=FIGURES[0], samples=[Sample(value=value) for value in values])

    assert result.median == 2.0
    assert result.spread == 0.75
    assert json.loads(json.dumps(as_document(result)))["samples"] == values


def test_figures_have_names_of_their_own() -> None:
    names = [figure.name for figure in [*FIGURES, AFTER_RESTART]]
    assert len(set(names)) == len(names)


def test_only_takes_known_names() -> None:
    assert [figure.name for figure in chosen_figures("structured, decode_0")] == ["decode_0", "structured"]
    with pytest.raises(UsageError, match="typical_turn"):
        chosen_figures("speed")


def test_the_schema_closes_every_object() -> None:
    def objects(schema: object) -> list[dict[str, object]]:
        if not isinstance(schema, dict):
            return []
        own = [schema] if schema.get("type") == "object" else []
        return own + [found for inner in schema.values() for found in objects(inner)]

    found = objects(CUSTOMER_SCHEMA)
    assert len(found) == 3
    assert all(each["additionalProperties"] is False for each in found)


async def test_rounds_are_bounded() -> None:
    with pytest.raises(ValueError, match="between 1 and"):
        Plan(prompts=Prompts(seed=1), rounds=1000)
