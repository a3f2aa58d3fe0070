"""The official `ollama` package on the real default model: what only real weights show."""

import json
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import ollama
import pytest
import pytest_asyncio

from tests.clients.ollama_serving import Served, serving_real

pytestmark = [pytest.mark.real_model, pytest.mark.asyncio(loop_scope="module")]
GREEDY = {"temperature": 0, "seed": 1, "num_predict": 8}
HI: Any = [{"role": "user", "content": "Say hello."}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(default_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    home = tmp_path_factory.mktemp("home")
    async with serving_real(home, default_model_path, context=1024, tuning="off") as server:
        yield server


async def test_the_first_request_waits_for_the_model_and_tells_how_long(served: Served) -> None:
    loaded = await served.sdk.generate(served.model, "")
    answer = await served.sdk.chat(served.model, HI, options=GREEDY)

    assert loaded.done_reason == "load"
    assert answer.message.content
    assert (answer.eval_count, answer.done_reason) == (8, "length")
    assert answer.load_duration == 0
    parts = (answer.load_duration or 0) + (answer.prompt_eval_duration or 0) + (answer.eval_duration or 0)
    assert 0 < parts <= (answer.total_duration or 0)


async def test_a_stream_says_the_same_as_the_document(served: Served) -> None:
    whole = await served.sdk.chat(served.model, HI, options=GREEDY)
    parts = [part async for part in await served.sdk.chat(served.model, HI, options=GREEDY, stream=True)]

    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert parts[-1].prompt_eval_count == whole.prompt_eval_count


async def test_the_model_is_shown_as_its_file_says(served: Served) -> None:
    shown = await served.sdk.show(served.model)
    (listed,) = (await served.sdk.list()).models
    (loaded,) = (await served.sdk.ps()).models

    assert shown.modelinfo
    assert shown.modelinfo["general.architecture"] == "llama"
    assert shown.modelinfo["llama.context_length"] == 8192
    assert shown.capabilities == ["completion"]
    assert listed.details
    assert (listed.details.quantization_level, listed.details.parameter_size) == ("Q4_1", "134.52M")
    assert (loaded.model, loaded.context_length) == (listed.model, 1024)
    assert listed.size == 98_362_432


async def test_a_format_holds_the_small_model_too(served: Served) -> None:
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "green"]}},
        "required": ["colour"],
        "additionalProperties": False,
    }

    answer = await served.sdk.chat(served.model, HI, format=schema, options={**GREEDY, "num_predict": 40})
    object_ = await served.sdk.generate(served.model, "Bo is 3.", format=schema, options={"seed": 1})

    for text in (answer.message.content, object_.response):
        assert json.loads(text or "")["colour"] in {"red", "green"}


@pytest.mark.parametrize("schema", [{"type": "string", "pattern": "^(unclosed"}, {"type": "strng"}])
async def test_a_schema_that_cannot_be_held_is_a_400(served: Served, schema: Any) -> None:
    for streamed in (False, True):
        body = {"model": served.model, "messages": HI, "format": schema, "stream": streamed}
        status, answer = await served.post("/api/chat", body)
        assert status == 400
        assert json.loads(answer)["error"]


async def test_a_model_without_tools_or_thinking_says_so(served: Served) -> None:
    tool: Any = {"type": "function", "function": {"name": "now"}}
    with pytest.raises(ollama.ResponseError, match="does not support tools"):
        await served.sdk.chat(served.model, HI, tools=[tool])
    with pytest.raises(ollama.ResponseError, match="does not support thinking"):
        await served.sdk.chat(served.model, HI, think=True)
    assert (await served.sdk.chat(served.model, HI, think=False, options=GREEDY)).message.content


async def test_the_numbers_of_an_answer_continue_it(served: Served) -> None:
    first = await served.sdk.generate(served.model, "My name is Bo.", options=GREEDY)
    second = await served.sdk.generate(served.model, "What is my name?", context=first.context, options=GREEDY)
    alone = await served.sdk.generate(served.model, "What is my name?", options=GREEDY)

    gained = (second.prompt_eval_count or 0) - (alone.prompt_eval_count or 0)
    assert gained >= (first.eval_count or 0)


@pytest.mark.parametrize("context", [[1] * 10_000, list(range(10_000)), [0, 1, 2], [0x10FFFF]])
async def test_the_worker_lives_through_numbers_of_no_answer(served: Served, context: Any) -> None:
    answer = await served.sdk.generate(served.model, "hi", context=context, options=GREEDY)

    assert answer.response


async def test_raw_and_templated_prompts_differ_by_the_template(served: Served) -> None:
    raw = await served.sdk.generate(served.model, "Once upon a time", raw=True, options=GREEDY)
    told = await served.sdk.generate(served.model, "Once upon a time", options=GREEDY)

    assert raw.response
    assert (raw.prompt_eval_count or 0) < (told.prompt_eval_count or 0)


async def test_scores_are_those_of_the_tokens(served: Served) -> None:
    answer = await served.sdk.chat(served.model, HI, options=GREEDY, logprobs=True, top_logprobs=2)

    assert answer.logprobs
    assert len(answer.logprobs) == 8
    assert "".join(score.token for score in answer.logprobs) == answer.message.content
    for score in answer.logprobs:
        assert score.logprob <= 0
        assert len(score.top_logprobs or ()) == 2


async def test_vectors_have_length_one(served: Served) -> None:
    found = await served.sdk.embed(served.model, ["A cat sleeps.", "A kitten naps.", "Banks raise rates."])

    cat, kitten, bank = found.embeddings
    assert math.fsum(x * x for x in cat) == pytest.approx(1.0, abs=1e-4)
    assert _dot(cat, kitten) > _dot(cat, bank)


def _dot(one: Any, other: Any) -> float:
    return math.fsum(x * y for x, y in zip(one, other, strict=True))


async def test_num_ctx_bounds_prompt_and_answer_together(served: Served) -> None:
    turns = [{"role": "user", "content": f"{number}: " + "word " * 60} for number in range(12)]
    messages = [{"role": "system", "content": "SYS"}, *turns, {"role": "user", "content": "LAST"}]
    options = {**GREEDY, "num_ctx": 512}

    answer = await served.sdk.chat(served.model, messages, options=options)

    assert 512 - 8 - 100 < (answer.prompt_eval_count or 0) <= 512 - 8
    body = {"model": served.model, "messages": messages, "options": options, "truncate": False}
    assert (await served.post("/api/chat", body))[0] == 400


async def test_a_made_model_shares_weights_and_leaves_the_other_alone(served: Served) -> None:
    steps = [
        step.status async for step in await served.sdk.create("pirate", from_=served.model, system="Arr.", stream=True)
    ]

    assert steps[-1] == "success"
    made = await served.sdk.chat("pirate", HI, options=GREEDY)
    plain = await served.sdk.chat(served.model, HI, options=GREEDY)
    assert made.message.content
    assert made.prompt_eval_count != plain.prompt_eval_count
    assert "Arr." in ((await served.sdk.show("pirate")).modelfile or "")
    await served.sdk.delete("pirate")
    assert {model.model for model in (await served.sdk.list()).models} == {f"{served.model}:latest"}


async def test_a_made_model_has_its_own_template_and_context(served: Served) -> None:
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    await served.sdk.create("bare", from_=served.model, template=template, parameters={"num_ctx": 512})

    bare = await served.sdk.chat("bare", HI, options=GREEDY)
    plain = await served.sdk.chat(served.model, HI, options=GREEDY)

    assert (bare.prompt_eval_count or 0) < (plain.prompt_eval_count or 0)
    await served.sdk.chat("bare", HI, options=GREEDY)
    (loaded,) = (await served.sdk.ps()).models
    assert loaded.context_length == 512
    await served.sdk.delete("bare")


async def test_counting_for_another_model_loads_nothing(served: Served) -> None:
    await served.sdk.create("other", from_=served.model, template="{{ messages[0]['content'] }}")
    await served.sdk.chat(served.model, HI, options=GREEDY)

    status, body = await served.post("/v1/messages/count_tokens", {"model": "other", "messages": HI})

    assert status == 200
    assert 0 < json.loads(body)["input_tokens"] < 10
    (loaded,) = (await served.sdk.ps()).models
    assert loaded.model == f"{served.model}:latest"
    await served.sdk.delete("other")


async def test_unloading_gives_the_memory_back_and_the_next_request_loads_again(served: Served) -> None:
    assert (await served.sdk.generate(served.model, "", keep_alive=0)).done_reason == "unload"
    assert not (await served.sdk.ps()).models

    answer = await served.sdk.chat(served.model, HI, options=GREEDY, keep_alive="5m")

    assert (answer.load_duration or 0) > 0
    (loaded,) = (await served.sdk.ps()).models
    assert loaded.expires_at
    assert loaded.expires_at.year < 9999
