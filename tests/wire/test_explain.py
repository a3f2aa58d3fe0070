"""`POST /v1/explain`: bodies of every generating API are explained as they would be answered, and nothing is generated."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from pocketserver.chat import GenerationRequest, Message, Role
from pocketserver.engines.engine import explained
from pocketserver.engines.llama.examiner import Examiner
from pocketserver.engines.llama.process import LlamaEngine, LlamaOptions
from pocketserver.engines.sim.engine import SimOptions
from pocketserver.engines.upstream.engine import UpstreamEngine, UpstreamOptions
from pocketserver.errors import Code, Refusal
from tests.profiles.asking import HI, Page, page
from tests.serving import Running, running

pytestmark = pytest.mark.asyncio(loop_scope="module")
KEY = "sk-explain-0123456789"
EXPLAIN = "/v1/explain"
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
BODIES: Mapping[str, dict[str, Any]] = {
    "chat": {"messages": [{"role": "developer", "content": "Be brief."}, *HI], "max_completion_tokens": 50},
    "responses": {"input": "hi"},
    "messages": {"messages": HI, "system": "Be brief.", "max_tokens": 50},
    "completions": {"prompt": "hi", "max_tokens": 50},
    "ollama_chat": {"messages": HI, "options": {"temperature": 0}},
    "ollama_generate": {"prompt": "hi", "keep_alive": "5m"},
}
PATHS = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "completions": "/v1/completions",
    "ollama_chat": "/api/chat",
    "ollama_generate": "/api/generate",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Page]:
    async with page(tmp_path_factory.mktemp("home"), "hub", auth="off") as served:
        yield served


def prompt_tokens(document: Mapping[str, Any]) -> int:
    """What an answer says that its prompt had, in any API's words."""
    usage = document.get("usage", document)
    names = ("prompt_tokens", "input_tokens", "prompt_eval_count")
    return next(int(usage[name]) for name in names if name in usage)


@pytest.mark.parametrize("api", BODIES)
async def test_a_body_is_recognised_by_its_fields_and_counted_as_its_answer_counts(hub: Page, api: str) -> None:
    explained = await hub.post(EXPLAIN, BODIES[api])
    answered = await hub.post(PATHS[api], {**BODIES[api], "stream": False})
    document = explained.json

    assert (explained.status, document["api"], document["model"]) == (200, api, "sim-1b")
    assert document["prompt_tokens"] == len(document["tokens"]) == prompt_tokens(answered.json)
    assert "".join(token["text"] for token in document["tokens"]) == document["prompt"]
    assert "hi" in document["prompt"]
    assert document["would_be_answered"]
    assert document["answer_tokens_left"] == document["context_size"] - document["prompt_tokens"]


@pytest.mark.parametrize("api", BODIES)
async def test_the_api_can_be_named(hub: Page, api: str) -> None:
    plain = {name: BODIES[api][name] for name in ("messages", "input", "prompt", "max_tokens") if name in BODIES[api]}
    explained = await hub.post(f"{EXPLAIN}?api={api}", plain)

    assert explained.json["api"] == api


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"messages": HI}, "chat or ollama_chat"),
        ({"messages": HI, "max_tokens": 5}, "chat or messages"),
        ({"prompt": "hi"}, "completions or ollama_generate"),
        ({"messages": HI, "options": {}, "max_completion_tokens": 5}, "different APIs"),
        ({"text": "hi"}, "no API"),
    ],
)
async def test_an_ambiguous_body_is_a_400_that_says_how_to_name_its_api(
    hub: Page, body: dict[str, Any], said: str
) -> None:
    refused = await hub.post(EXPLAIN, body)

    assert refused.status == 400
    assert said in refused.message
    assert "?api=" in refused.message


async def test_a_role_that_is_no_text_is_refused_like_any_other(hub: Page) -> None:
    for role in ([], {}, 7):
        refused = await hub.post(EXPLAIN, {"messages": [{"role": role, "content": "hi"}], "max_tokens": 5})

        assert refused.status == 400, role


async def test_a_word_that_names_no_api_is_refused(hub: Page) -> None:
    refused = await hub.post(f"{EXPLAIN}?api=soap", BODIES["chat"])

    assert (refused.status, refused.json["error"]["param"]) == (400, "api")


async def test_what_the_api_itself_refuses_is_refused_in_the_same_words(hub: Page) -> None:
    body = {**BODIES["chat"], "temperature": 9}
    explained, asked = await hub.post(EXPLAIN, body), await hub.post(PATHS["chat"], body)

    assert (explained.status, explained.json) == (asked.status, asked.json)


async def test_tools_and_keywords_are_told_apart_into_usable_and_refused(hub: Page) -> None:
    bad = {"type": "function", "function": {"name": "odd", "parameters": {"type": "object", "not": {}}}}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object", "if": {}}}}
    body = {**BODIES["chat"], "tools": [TOOL, bad], "response_format": form}
    document = (await hub.post(EXPLAIN, body)).json

    assert document["usable_tools"] == ["look_up"]
    assert not document["would_be_answered"]
    problems = {problem["param"]: problem["message"] for problem in document["problems"]}
    assert "`not`" in problems["tools[1].function.parameters"]
    assert "`if`" in problems["response_format.json_schema.schema"]
    assert document["constraint"] == "json_schema"


async def test_a_prompt_that_does_not_fit_is_explained_too(hub: Page) -> None:
    document = (await hub.post(EXPLAIN, {**BODIES["messages"], "system": "word " * 9000})).json

    assert (document["fits"], document["answer_tokens_left"]) == (False, 0)
    assert document["prompt_tokens"] > document["context_size"]
    assert [problem["code"] for problem in document["problems"]] == ["context_length_exceeded"]


async def test_what_is_ignored_is_named(hub: Page) -> None:
    explained = await hub.post(EXPLAIN, {**BODIES["chat"], "model": "gpt-4o", "odd": 1})

    assert explained.json["warnings"] == ["odd:ignored", "model:gpt-4o was answered by sim-1b"]
    assert explained.headers["x-pocketserver-warnings"].startswith("odd:ignored")


async def test_nobody_waits_for_an_explanation_which_tells_the_wait(tmp_path: Path) -> None:
    slow = SimOptions(tokens_per_second=0.001)
    async with (
        page(tmp_path, "hub", options=slow, auth="off") as served,
        served.busy(PATHS["chat"], BODIES["chat"]),
    ):
        explained = await asyncio.wait_for(served.post(EXPLAIN, BODIES["chat"]), 20)

    assert explained.json["queue"] == {"position": 2, "ahead": 1, "wait_seconds": None}


async def test_it_needs_the_key(tmp_path: Path) -> None:
    async with page(tmp_path, "hub", api_key=KEY) as served:
        without = await served.post(EXPLAIN, BODIES["chat"])
        with_key = await served.post(EXPLAIN, BODIES["chat"], Authorization=f"Bearer {KEY}")

    assert (without.status, with_key.status) == (401, 200)


# The real model


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def real(default_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    home = tmp_path_factory.mktemp("home")
    options = LlamaOptions(model_id="small", path=default_model_path, state_folder=home / "llama", context=1024)
    engine = LlamaEngine(options)
    async with running(home, engine, profile="hub", mdns=False) as server:
        await engine.loaded()
        yield server


async def ask(server: Running, path: str, body: dict[str, Any]) -> Any:
    async with server.session() as http, http.post(path, data=json.dumps(body)) as response:
        return await response.json()


async def test_the_models_own_prompt_and_tokens_are_shown_and_what_is_cached_after_an_answer(real: Running) -> None:
    body = {**BODIES["chat"], "messages": HI, "max_completion_tokens": 8, "temperature": 0}
    before = await ask(real, EXPLAIN, body)
    answered = await ask(real, PATHS["chat"], body)
    after = await ask(real, EXPLAIN, body)
    again = await ask(real, PATHS["chat"], body)

    assert "<|im_start|>user\nhi<|im_end|>" in before["prompt"]
    assert {"id": 1, "text": "<|im_start|>"} in before["tokens"]
    assert before["prompt_tokens"] == len(before["tokens"]) == answered["usage"]["prompt_tokens"]
    assert (before["cached_tokens"], after["cached_tokens"]) == (0, before["prompt_tokens"] - 1)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == after["cached_tokens"]


async def test_the_real_model_names_what_it_cannot_hold_and_where(real: Running) -> None:
    bad = {"type": "function", "function": {"name": "odd", "parameters": {"type": "object", "not": {}}}}
    form = {
        "type": "json_schema",
        "json_schema": {"name": "a", "schema": {"type": "object", "properties": {"b": {"pattern": "(?=a)"}}}},
    }
    without = await ask(real, EXPLAIN, {**BODIES["chat"], "tools": [TOOL, bad]})
    held = await ask(real, EXPLAIN, {**BODIES["chat"], "response_format": form})
    long = await ask(real, EXPLAIN, {**BODIES["chat"], "messages": [{"role": "user", "content": "word " * 1200}]})

    assert without["problems"][0]["code"] == "tools_unsupported"
    assert without["usable_tools"] == []
    [problem] = held["problems"]
    assert problem["param"] == "response_format.json_schema.schema"
    assert "#/properties/b" in problem["message"]
    assert (long["fits"], [problem["code"] for problem in long["problems"]]) == (False, ["context_length_exceeded"])


async def test_a_model_that_is_not_loaded_is_explained_as_when_it_is(default_model_path: Path, real: Running) -> None:
    request = GenerationRequest(id="1", model="small", messages=(Message(role=Role.USER, content="hi"),))
    unloaded = await Examiner(None).explain(default_model_path, request)
    loaded = await real.server.door.explain(request)

    assert unloaded.prompt == loaded.prompt
    assert unloaded.tokens == loaded.tokens


async def test_the_door_to_a_model_elsewhere_cannot_explain() -> None:
    upstream = UpstreamEngine(UpstreamOptions(base_urls=("http://127.0.0.1:1/v1",)))
    with pytest.raises(Refusal) as caught:
        await explained(upstream, GenerationRequest(id="1", model="small"))

    assert caught.value.code is Code.INVALID_PARAMETER
