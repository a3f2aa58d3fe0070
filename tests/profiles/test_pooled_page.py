"""The page of Pooled serve's HTTP endpoints, line by line, on the simulator in profile `pooled`."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from pocketserver.chat import EngineState
from pocketserver.engines.sim.engine import SimOptions
from pocketserver.errors import Refusal
from pocketserver.profile import load_profile
from pocketserver.settings import load
from pocketserver.wire.openai_responses_store import LIFETIME_SECONDS, MOST_BYTES, ResponseStore, Stored, kept
from tests.profiles.asking import HI, Page, events, is_anthropic_error, is_openai_error, page
from tests.waiting import until

MODEL = "pooled/sim-1b"
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
BODIES: Mapping[str, dict[str, Any]] = {
    CHAT: {"model": MODEL, "messages": HI},
    RESPONSES: {"model": MODEL, "input": "hi"},
    MESSAGES: {"model": MODEL, "messages": HI, "max_tokens": 100},
}
SLOW = SimOptions(tokens_per_second=0.001)
"""Answers that do not end while a test runs."""
KEY = "sk-pooled-0123456789"
generating = pytest.mark.parametrize("path", BODIES)
streamed = pytest.mark.parametrize("stream", [False, True])
pytestmark = pytest.mark.asyncio(loop_scope="module")


TOOL: Mapping[str, Any] = {
    CHAT: {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}},
    RESPONSES: {"type": "function", "name": "look_up", "parameters": {"type": "object"}},
    MESSAGES: {"name": "look_up", "input_schema": {"type": "object"}},
}
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Oslo"]}}, "required": ["city"]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pooled(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Page]:
    """Without a token, as it comes."""
    async with page(tmp_path_factory.mktemp("home"), "pooled") as served:
        yield served


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Page]:
    """With a token."""
    async with page(tmp_path_factory.mktemp("home"), "pooled", auth="on", api_key=KEY) as served:
        yield served


def fits_its_family(path: str, answer: Any) -> bool:
    """Whether a refusal has the shape of the API that was asked."""
    return is_anthropic_error(answer) if path == MESSAGES else is_openai_error(answer)


# Where it listens


async def test_it_listens_on_loopback_port_8080_by_default() -> None:
    settings = load(flags={"profile": "pooled"}, environment={}).settings

    assert (settings.host, settings.port, settings.auth) == ("127.0.0.1", 8080, "off")


async def test_the_openai_base_url_ends_in_v1(pooled: Page) -> None:
    client = AsyncOpenAI(base_url=f"{pooled.served.origin}/v1", api_key="none asked for", max_retries=0)
    async with client:
        answer = await client.chat.completions.create(model=MODEL, messages=HI)  # type: ignore[arg-type]

    assert answer.choices[0].message.content


async def test_the_anthropic_base_url_has_no_path(pooled: Page) -> None:
    anthropic = pytest.importorskip("anthropic")
    async with anthropic.AsyncAnthropic(base_url=pooled.served.origin, api_key="none", max_retries=0) as client:
        answer = await client.messages.create(model=MODEL, messages=HI, max_tokens=50)

    assert answer.content[0].text


# Paths


async def test_post_chat_completions_streams_or_not(pooled: Page) -> None:
    whole = await pooled.post(CHAT, BODIES[CHAT])
    stream = await pooled.post(CHAT, {**BODIES[CHAT], "stream": True})

    assert whole.json["object"] == "chat.completion"
    assert stream.headers["Content-Type"].startswith("text/event-stream")
    assert events(stream.body)[-1] == "data: [DONE]"


async def test_post_chat_completions_with_tools(pooled: Page) -> None:
    answer = await pooled.post(CHAT, {**BODIES[CHAT], "tools": [TOOL[CHAT]], "tool_choice": "required"})

    [call] = answer.json["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "look_up"


async def test_post_chat_completions_with_json_output(pooled: Page) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
    answer = await pooled.post(CHAT, {**BODIES[CHAT], "response_format": form})

    assert json.loads(answer.json["choices"][0]["message"]["content"]) == {"city": "Oslo"}


async def test_post_responses_streams_or_not(pooled: Page) -> None:
    whole = await pooled.post(RESPONSES, BODIES[RESPONSES])
    stream = await pooled.post(RESPONSES, {**BODIES[RESPONSES], "stream": True})

    assert (whole.json["object"], whole.json["status"]) == ("response", "completed")
    *_, completed, done = events(stream.body)
    assert completed.startswith("event: response.completed")
    assert done == "data: [DONE]"


async def test_post_responses_with_a_function_tool(pooled: Page) -> None:
    answer = await pooled.post(RESPONSES, {**BODIES[RESPONSES], "tools": [TOOL[RESPONSES]], "tool_choice": "required"})

    assert [(item["type"], item["name"]) for item in answer.json["output"]] == [("function_call", "look_up")]


async def test_post_responses_with_a_custom_tool(pooled: Page) -> None:
    tool = {"type": "custom", "name": "write_note"}
    answer = await pooled.post(RESPONSES, {**BODIES[RESPONSES], "tools": [tool], "tool_choice": "required"})

    assert [(item["type"], item["name"]) for item in answer.json["output"]] == [("custom_tool_call", "write_note")]


async def test_post_responses_with_previous_response_id(pooled: Page) -> None:
    first = (await pooled.post(RESPONSES, BODIES[RESPONSES])).json
    second = (await pooled.post(RESPONSES, {**BODIES[RESPONSES], "previous_response_id": first["id"]})).json

    assert second["previous_response_id"] == first["id"]
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]


async def test_post_responses_with_text_format(pooled: Page) -> None:
    form = {"format": {"type": "json_schema", "name": "place", "schema": SCHEMA}}
    answer = await pooled.post(RESPONSES, {**BODIES[RESPONSES], "text": form})

    assert json.loads(answer.json["output"][0]["content"][0]["text"]) == {"city": "Oslo"}


async def test_get_a_response_this_process_stored(pooled: Page) -> None:
    made = (await pooled.post(RESPONSES, BODIES[RESPONSES])).json
    found = await pooled.get(f"{RESPONSES}/{made['id']}")

    assert found.json == made


async def test_delete_a_stored_response(pooled: Page) -> None:
    made = (await pooled.post(RESPONSES, BODIES[RESPONSES])).json
    deleted = await pooled.ask("DELETE", f"{RESPONSES}/{made['id']}")
    gone = await pooled.get(f"{RESPONSES}/{made['id']}")

    assert (deleted.status, deleted.json["deleted"]) == (200, True)
    assert gone.status == 404
    assert is_openai_error(gone)


async def test_get_the_input_items_of_a_stored_response(pooled: Page) -> None:
    made = (await pooled.post(RESPONSES, BODIES[RESPONSES])).json
    [item] = (await pooled.get(f"{RESPONSES}/{made['id']}/input_items")).json["data"]

    assert item["content"][0]["text"] == "hi"


async def test_post_messages_streams_or_not(pooled: Page) -> None:
    whole = await pooled.post(MESSAGES, BODIES[MESSAGES])
    stream = await pooled.post(MESSAGES, {**BODIES[MESSAGES], "stream": True})

    assert whole.json["type"] == "message"
    assert events(stream.body)[-1].startswith("event: message_stop")


async def test_post_messages_with_tools_and_tool_choice(pooled: Page) -> None:
    choice = {"type": "tool", "name": "look_up"}
    answer = await pooled.post(MESSAGES, {**BODIES[MESSAGES], "tools": [TOOL[MESSAGES]], "tool_choice": choice})

    assert answer.json["stop_reason"] == "tool_use"
    assert [block["type"] for block in answer.json["content"]] == ["tool_use"]


async def test_post_messages_with_thinking(pooled: Page) -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    answer = await pooled.post(MESSAGES, {**BODIES[MESSAGES], "thinking": thinking})

    assert answer.json["content"][0]["type"] == "thinking"


async def test_get_models_lists_the_rooms_model_with_its_context(pooled: Page) -> None:
    [model] = (await pooled.get("/v1/models")).json["data"]

    assert (model["id"], model["max_model_len"]) == (MODEL, 8192)


async def test_get_models_is_empty_until_the_model_is_ready(pooled: Page) -> None:
    pooled.engine.state = EngineState.LOADING
    try:
        listed = await pooled.get("/v1/models")
    finally:
        pooled.engine.state = EngineState.READY

    assert (listed.status, listed.json["data"]) == (200, [])


async def test_get_one_model_and_404_for_any_id_but_the_rooms(pooled: Page) -> None:
    one = await pooled.get(f"/v1/models/{MODEL}")
    escaped = await pooled.get("/v1/models/pooled%2Fsim-1b")
    bare = await pooled.get("/v1/models/sim-1b")

    assert one.json["id"] == escaped.json["id"] == MODEL
    assert (bare.status, bare.json["error"]["code"]) == (404, "model_not_found")


async def test_get_root_is_the_banner_as_plain_text(pooled: Page) -> None:
    banner = await pooled.get("/")

    assert banner.headers["Content-Type"].startswith("text/plain")
    assert MODEL in banner.body.decode()


@pytest.mark.parametrize(
    ("headers", "shape"),
    [
        ({}, "list"),
        ({"anthropic_version": "2023-06-01"}, "page"),
        ({"x_api_key": "any"}, "page"),
        ({"x_api_key": "any", "Authorization": "Bearer any"}, "list"),
        ({"x_api_key": "any", "Authorization": "Bearer any", "anthropic_version": "2023-06-01"}, "page"),
    ],
)
async def test_models_come_in_anthropics_shape_by_its_headers(
    pooled: Page, headers: Mapping[str, str], shape: str
) -> None:
    listed = (await pooled.get("/v1/models", **headers)).json
    one = (await pooled.get(f"/v1/models/{MODEL}", **headers)).json
    missing = await pooled.get("/v1/models/other", **headers)

    assert (listed.get("object") == "list") == (one.get("object") == "model") == (shape == "list")
    assert ("has_more" in listed) == (one.get("type") == "model") == (shape == "page")
    assert missing.status == 404
    assert is_openai_error(missing) if shape == "list" else is_anthropic_error(missing)


async def test_at_most_256_responses_are_stored(pooled: Page) -> None:
    made = [(await pooled.post(RESPONSES, BODIES[RESPONSES])).json["id"] for _ in range(257)]

    assert (await pooled.get(f"{RESPONSES}/{made[0]}")).status == 404
    assert (await pooled.get(f"{RESPONSES}/{made[1]}")).status == 200


async def test_at_most_64_megabytes_are_stored_each_for_an_hour_after_its_last_use() -> None:
    now = 0.0
    store = ResponseStore(clock=lambda: now)
    for number in range(40):
        store.put(None, Stored(id=f"r{number}", status="completed", document=b"{}", input=kept([_large(number)])))
    kept_now = len(store)
    store.get(None, "r39")
    now = LIFETIME_SECONDS - 1
    store.get(None, "r39")
    now = LIFETIME_SECONDS + 1

    assert (MOST_BYTES, LIFETIME_SECONDS) == (64 * 1024 * 1024, 3600)
    assert 20 < kept_now < 40
    assert store.get(None, "r39").id == "r39"
    with pytest.raises(Refusal):
        store.get(None, "r38")


def _large(number: int) -> dict[str, Any]:
    return {"id": f"in{number}", "text": "x" * 2 * 1024 * 1024}


# Not served


@pytest.mark.parametrize(
    "path",
    [
        "/v1/completions",
        "/v1/embeddings",
        "/v1/messages/count_tokens",
        "/v1/responses/input_tokens",
        "/v1/responses/compact",
    ],
)
async def test_a_path_that_is_not_served_is_404_with_a_message_that_says_so(pooled: Page, path: str) -> None:
    answer = await pooled.post(path, {})

    assert answer.status == 404
    assert "not served here" in answer.message
    assert is_anthropic_error(answer) if "messages" in path else is_openai_error(answer)


async def test_the_legacy_api_points_to_chat_completions(pooled: Page) -> None:
    assert CHAT in (await pooled.post("/v1/completions", {})).message


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", CHAT, "POST"),
        ("PUT", RESPONSES, "POST"),
        ("GET", MESSAGES, "POST"),
        ("POST", "/v1/responses/resp_1", "DELETE, GET"),
        ("POST", "/v1/responses/resp_1/input_items", "GET"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("DELETE", f"/v1/models/{MODEL}", "GET, HEAD"),
        ("POST", "/health", "GET, HEAD"),
        ("POST", "/", "GET, HEAD"),
    ],
)
async def test_a_known_path_with_the_wrong_method_is_405_with_allow(
    pooled: Page, method: str, path: str, allow: str
) -> None:
    answer = await pooled.ask(method, path)

    assert (answer.status, answer.headers["Allow"]) == (405, allow)
    assert fits_its_family(path, answer)


# /health


async def test_health_has_the_pages_eight_fields(pooled: Page) -> None:
    health = (await pooled.get("/health")).json

    assert list(health) == ["ok", "room", "connected", "ready", "model", "ctx", "queue", "served"]
    assert (health["ok"], health["connected"], health["ready"]) == (True, True, True)
    assert (health["model"], health["ctx"], health["queue"]) == (MODEL, 8192, 0)
    assert len(health["room"]) == 6


async def test_health_names_no_model_and_no_context_while_none_is_ready(pooled: Page) -> None:
    pooled.engine.state = EngineState.LOADING
    try:
        health = (await pooled.get("/health")).json
    finally:
        pooled.engine.state = EngineState.READY

    assert (health["ready"], health["model"], health["ctx"]) == (False, None, None)


async def test_served_counts_answers_since_start_and_no_refusals(pooled: Page) -> None:
    before = (await pooled.get("/health")).json["served"]
    for path, body in BODIES.items():
        await pooled.post(path, body)
        await pooled.post(path, {})

    assert (await pooled.get("/health")).json["served"] == before + 3


async def test_queue_counts_requests_waiting_or_running(tmp_path: Path) -> None:
    async with page(tmp_path, "pooled", options=SLOW) as served, served.busy(CHAT, BODIES[CHAT]):
        waiting = asyncio.create_task(served.post(CHAT, BODIES[CHAT]))
        await until(lambda: served.served.server.door.waiting == 1)
        health = (await served.get("/health")).json
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    assert health["queue"] == 2


async def test_health_never_needs_the_token_but_shows_only_ok_without_it(guarded: Page) -> None:
    without = await guarded.get("/health")
    wrong = await guarded.get("/health", Authorization="Bearer sk-wrong-0123456789")
    right = await guarded.get("/health", Authorization=f"Bearer {KEY}")
    by_x_api_key = await guarded.get("/health", x_api_key=KEY)

    assert without.json == wrong.json == {"ok": True}
    assert right.json["model"] == by_x_api_key.json["model"] == MODEL


# Status codes


@generating
async def test_400_for_a_bad_request(pooled: Page, path: str) -> None:
    for body in (b"{", b"[]", {**BODIES[path], "temperature": "hot"}, {"model": MODEL}):
        answer = await pooled.post(path, body)
        assert answer.status == 400
        assert fits_its_family(path, answer)


@generating
async def test_400_for_an_unsupported_feature(pooled: Page, path: str) -> None:
    features: dict[str, dict[str, Any]] = {
        CHAT: {"modalities": ["text", "audio"]},
        RESPONSES: {"background": True},
        MESSAGES: {"mcp_servers": [{"type": "url"}]},
    }
    feature = features[path]
    answer = await pooled.post(path, {**BODIES[path], **feature})

    assert answer.status == 400
    assert fits_its_family(path, answer)
    assert next(iter(feature)) in answer.message


@generating
@streamed
async def test_400_for_a_prompt_over_the_rooms_context(pooled: Page, path: str, stream: bool) -> None:
    long = "word " * 9000
    asked = {"input": long} if path == RESPONSES else {"messages": [{"role": "user", "content": long}]}
    answer = await pooled.post(path, {**BODIES[path], **asked, "stream": stream})

    assert answer.status == 400
    if path == MESSAGES:
        assert answer.message.startswith("prompt is too long: ")
    else:
        assert answer.json["error"]["code"] == "context_length_exceeded"


@generating
async def test_401_for_a_missing_or_wrong_key_when_the_server_has_a_token(guarded: Page, path: str) -> None:
    missing = await guarded.post(path, BODIES[path])
    wrong = await guarded.post(path, BODIES[path], Authorization="Bearer sk-wrong-0123456789")
    right = await guarded.post(path, BODIES[path], Authorization=f"Bearer {KEY}")
    other = await guarded.post(path, BODIES[path], x_api_key=KEY)

    assert (missing.status, wrong.status, right.status, other.status) == (401, 401, 200, 200)
    assert fits_its_family(path, missing)
    assert fits_its_family(path, wrong)


@generating
@pytest.mark.parametrize(
    "host", ["example.com", "127.0.0.1", "localhost", "127.0.0.1:1", "[::1]:{port}", "127.1:{port}"]
)
async def test_403_for_a_host_that_is_not_127_0_0_1_or_localhost_with_the_port(
    pooled: Page, path: str, host: str
) -> None:
    answer = await pooled.post(path, BODIES[path], Host=host.format(port=pooled.port))

    assert answer.status == 403
    assert fits_its_family(path, answer)


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST:{port}"])
async def test_those_two_hosts_are_let_in(pooled: Page, host: str) -> None:
    assert (await pooled.get("/v1/models", Host=host.format(port=pooled.port))).status == 200


@generating
@pytest.mark.parametrize(
    "origin", ["https://example.com", "http://127.0.0.1:{port}", "http://localhost", "null", "app://x"]
)
async def test_403_for_any_origin_header(pooled: Page, path: str, origin: str) -> None:
    answer = await pooled.post(path, BODIES[path], Origin=origin.format(port=pooled.port))

    assert answer.status == 403
    assert fits_its_family(path, answer)


async def test_403_holds_for_health_and_the_banner_too(pooled: Page) -> None:
    for path in ("/health", "/"):
        assert (await pooled.get(path, Origin="https://example.com")).status == 403
        assert (await pooled.get(path, Host="example.com")).status == 403


async def test_404_for_an_unknown_path(pooled: Page) -> None:
    unknown = await pooled.post("/v1/chat", {})
    beside_messages = await pooled.post("/v1/messages/batches", {})

    assert unknown.status == beside_messages.status == 404
    assert is_openai_error(unknown)
    assert is_anthropic_error(beside_messages)


@generating
@streamed
@pytest.mark.parametrize("name", ["sim-1b", "pooled/other", "gpt-4o", ""])
async def test_404_for_an_unknown_model_id(pooled: Page, path: str, stream: bool, name: str) -> None:
    answer = await pooled.post(path, {**BODIES[path], "model": name, "stream": stream})

    assert answer.status == 404
    assert fits_its_family(path, answer)


@generating
async def test_413_for_a_body_over_4_mib(pooled: Page, path: str) -> None:
    answer = await pooled.post(path, b" " * (4 * 1024 * 1024) + json.dumps(BODIES[path]).encode())

    assert answer.status == 413
    assert fits_its_family(path, answer)


@generating
@streamed
async def test_413_for_a_request_over_3_5_megabytes_packed(pooled: Page, path: str, stream: bool) -> None:
    long = "a" * 3_600_000
    asked = {"input": long} if path == RESPONSES else {"messages": [{"role": "user", "content": long}]}
    answer = await pooled.post(path, {**BODIES[path], **asked, "stream": stream})

    assert answer.status == 413
    assert "3,500,000" in answer.message
    assert fits_its_family(path, answer)


@generating
@streamed
async def test_429_and_529_with_retry_after_5_when_the_queue_is_full(tmp_path: Path, path: str, stream: bool) -> None:
    async with (
        page(tmp_path, "pooled", options=SLOW, max_queue=1) as served,
        served.busy(CHAT, BODIES[CHAT]),
    ):
        answer = await served.post(path, {**BODIES[path], "stream": stream})

    assert answer.status == (529 if path == MESSAGES else 429)
    assert answer.headers["Retry-After"] == "5"
    assert fits_its_family(path, answer)


@generating
@streamed
@pytest.mark.parametrize("state", [EngineState.NO_MODEL, EngineState.LOADING])
async def test_503_and_529_with_retry_after_5_while_the_model_is_not_ready(
    pooled: Page, path: str, stream: bool, state: EngineState
) -> None:
    pooled.engine.state = state
    try:
        answer = await pooled.post(path, {**BODIES[path], "model": "pooled/other", "stream": stream})
    finally:
        pooled.engine.state = EngineState.READY

    assert answer.status == (529 if path == MESSAGES else 503)
    assert answer.headers["Retry-After"] == "5"
    assert fits_its_family(path, answer)


@generating
@pytest.mark.parametrize("code", ["host_gone", "disconnected_by_host", "request_cancelled"])
async def test_503_and_529_for_a_host_that_is_gone_disconnected_us_or_pressed_stop(
    pooled: Page, path: str, code: str
) -> None:
    assert pooled.served.server.simulator is not None
    pooled.served.server.simulator.add_fault(code)
    answer = await pooled.post(path, BODIES[path])

    assert answer.status == (529 if path == MESSAGES else 503)
    assert answer.headers.get("Retry-After") == (None if code == "request_cancelled" else "5")
    assert fits_its_family(path, answer)


@generating
async def test_504_when_nothing_came_for_too_long(tmp_path: Path, path: str) -> None:
    async with page(tmp_path, "pooled", options=SLOW, stall_seconds=0.1) as served:
        answer = await served.post(path, BODIES[path])

    assert answer.status == 504
    assert fits_its_family(path, answer)


@generating
@streamed
async def test_504_when_the_request_waited_too_long_in_the_queue(tmp_path: Path, path: str, stream: bool) -> None:
    async with (
        page(tmp_path, "pooled", options=SLOW, queue_seconds=0.1) as served,
        served.busy(CHAT, BODIES[CHAT]),
    ):
        answer = await served.post(path, {**BODIES[path], "stream": stream})

    assert answer.status == 504
    assert fits_its_family(path, answer)


async def test_those_limits_are_5_and_30_minutes() -> None:
    settings = load(flags={"profile": "pooled"}, environment={}).settings

    assert (settings.stall_seconds, settings.queue_seconds) == (300, 1800)
    assert (settings.max_body_bytes, settings.max_packed_bytes) == (4 * 1024 * 1024, 3_500_000)
    assert load_profile("pooled").settings["max_queue"] == 32


@generating
@pytest.mark.parametrize("code", ["generation_failed", "worker_lost", "internal_error"])
async def test_500_when_generation_failed(pooled: Page, path: str, code: str) -> None:
    assert pooled.served.server.simulator is not None
    pooled.served.server.simulator.add_fault(code)
    answer = await pooled.post(path, BODIES[path])

    assert answer.status == 500
    assert fits_its_family(path, answer)


@generating
async def test_an_error_after_the_stream_has_started_is_a_chunk_or_an_event(pooled: Page, path: str) -> None:
    assert pooled.served.server.simulator is not None
    pooled.served.server.simulator.add_fault("error_chunk", code="worker_lost", after_tokens=3)
    answer = await pooled.post(path, {**BODIES[path], "stream": True})
    last = events(answer.body)[-1]

    assert answer.status == 200
    if path == CHAT:
        assert set(json.loads(last.removeprefix("data: "))) == {"error"}
    elif path == MESSAGES:
        assert last.startswith("event: error\n")
        assert json.loads(last.split("data: ", 1)[1])["error"]["type"] == "api_error"
    else:
        assert "response.failed" in last or last.startswith("event: error")
    assert b"[DONE]" not in answer.body
