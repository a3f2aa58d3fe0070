"""The official `anthropic` package against both engines, unchanged: what it does with each answer and each error."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import jsonschema
import pytest
import pytest_asyncio
from anthropic import AsyncAnthropic

from pocketserver.engines.sim.engine import SimEngine, SimOptions
from pocketserver.engines.sim.rules import NewRule, RefusalReply, Reply
from pocketserver.errors import Code, Refusal
from tests.clients.anthropic_serving import client_of, serving_messages
from tests.clients.engines import ENGINES, make_engine
from tests.serving import Running
from tests.waiting import until

HI: Any = [{"role": "user", "content": "Say hello."}]
ASK: dict[str, Any] = {"model": "default", "messages": HI, "max_tokens": 8}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(params=ENGINES, scope="module", loop_scope="module")
async def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """One server a module and engine; the real model is loaded once."""
    home = tmp_path_factory.mktemp("home")
    async with serving_messages(home, await make_engine(request, home)) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module")
async def client(served: Running) -> AsyncIterator[AsyncAnthropic]:
    async with client_of(served) as sdk:
        yield sdk


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


async def test_models_are_listed_in_the_shape_of_this_family(served: Running, client: AsyncAnthropic) -> None:
    listed = [model async for model in await client.models.list()]
    assert [model.id for model in listed if model.id == served.server.model_id]
    for model in listed:
        assert (model.type, model.lifecycle) == ("model", "active")
        assert (await client.models.retrieve(model.id)).to_dict() == model.to_dict()
    with pytest.raises(anthropic.NotFoundError) as caught:
        await client.models.retrieve("no/such")
    body: Any = caught.value.body
    assert body["error"]["type"] == "not_found_error"


async def test_a_message_has_text_usage_and_an_honest_reason(client: AsyncAnthropic) -> None:
    message = await client.messages.create(**ASK)

    assert (message.type, message.role, message.model) == ("message", "assistant", "default")
    assert text_of(message)
    assert message.stop_reason in {"end_turn", "max_tokens"}
    assert 1 <= message.usage.output_tokens <= 8
    assert message.id.startswith("msg_")
    assert (message._request_id or "").startswith("req_")


async def test_a_stream_joins_to_the_same_text_and_the_same_usage(client: AsyncAnthropic) -> None:
    same: dict[str, Any] = {**ASK, "max_tokens": 24, "extra_body": {"temperature": 0}}
    whole = await client.messages.create(**same)
    async with client.messages.stream(**same) as stream:
        pieces = [piece async for piece in stream.text_stream]
        streamed = await stream.get_final_message()

    assert "".join(pieces) == text_of(streamed) == text_of(whole)
    assert streamed.stop_reason == whole.stop_reason
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    assert total(streamed.usage) == total(whole.usage)


def total(usage: Any) -> int:
    """All tokens of the prompt: those in the cache are counted apart."""
    return int(usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens)


async def test_the_events_of_a_stream_come_in_order(client: AsyncAnthropic) -> None:
    stream = await client.messages.create(**ASK, stream=True)
    events = [event async for event in stream]

    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert events[0].message.usage.input_tokens > 0
    assert events[0].message.content == []
    assert events[-2].usage.output_tokens >= 1


async def test_a_count_is_what_the_answer_reports(client: AsyncAnthropic) -> None:
    asked: dict[str, Any] = {
        "model": "default",
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [*HI, {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "More."}],
    }
    counted = await client.messages.count_tokens(**asked)
    answered = await client.messages.create(**asked, max_tokens=1)
    assert counted.input_tokens == total(answered.usage)
    assert counted.to_dict().keys() == {"input_tokens", "warnings"}, "this profile tells what it ignored"
    longer = await client.messages.count_tokens(**{**asked, "system": "Be brief and kind, and never rude."})
    assert longer.input_tokens > counted.input_tokens


async def test_a_conversation_that_goes_on_reads_its_beginning_from_the_cache(
    served: Running, client: AsyncAnthropic
) -> None:
    if served.server.engine.name == "sim":
        pytest.skip("the simulator keeps no cache")
    first = await client.messages.create(**ASK)
    again: Any = [*HI, {"role": "assistant", "content": text_of(first)}, {"role": "user", "content": "And now?"}]
    second = await client.messages.create(**{**ASK, "messages": again})
    assert second.usage.cache_read_input_tokens > 0
    assert second.usage.input_tokens < total(second.usage)


async def test_the_answer_follows_a_schema(client: AsyncAnthropic) -> None:
    form: Any = {"type": "json_schema", "schema": PERSON}
    ask: dict[str, Any] = {**ASK, "max_tokens": 120, "output_config": {"format": form}}
    message = await client.messages.create(**ask)
    assert message.stop_reason == "end_turn"
    jsonschema.validate(json.loads(text_of(message)), PERSON)


async def test_a_last_assistant_message_is_continued_and_not_repeated(client: AsyncAnthropic) -> None:
    history: Any = [{"role": "user", "content": "Count to nine."}, {"role": "assistant", "content": "1, 2, 3, 4,"}]
    message = await client.messages.create(**{**ASK, "messages": history})
    assert text_of(message)
    assert not text_of(message).startswith("1, 2")


async def test_a_stop_sequence_is_named_and_not_part_of_the_text(client: AsyncAnthropic) -> None:
    ask: dict[str, Any] = {**ASK, "max_tokens": 30, "extra_body": {"temperature": 0}}
    whole = text_of(await client.messages.create(**ask))
    stop = whole.split()[1]
    for stream in (False, True):
        stopped = await collected(client, stream=stream, **ask, stop_sequences=["never-said", stop])
        assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", stop)
        assert text_of(stopped) == whole[: whole.index(stop)]


async def collected(client: AsyncAnthropic, *, stream: bool, **fields: Any) -> Any:
    if not stream:
        return await client.messages.create(**fields)
    async with client.messages.stream(**fields) as events:
        return await events.get_final_message()


@pytest.mark.parametrize(
    ("fields", "expected", "kind", "words"),
    [
        ({"extra_body": {"temperature": 3}}, anthropic.BadRequestError, "invalid_request_error", "temperature"),
        ({"messages": []}, anthropic.BadRequestError, "invalid_request_error", "messages"),
        ({"max_tokens": 0}, anthropic.BadRequestError, "invalid_request_error", "max_tokens"),
        ({"model": "no-such"}, anthropic.NotFoundError, "not_found_error", "model: .*no-such"),
        (
            {"messages": [{"role": "user", "content": "word " * 30_000}]},
            anthropic.BadRequestError,
            "invalid_request_error",
            r"^prompt is too long: \d+ tokens > \d+ maximum$",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_errors_raise_the_matching_exception(
    client: AsyncAnthropic,
    fields: dict[str, Any],
    expected: type[anthropic.APIStatusError],
    kind: str,
    words: str,
    stream: bool,
) -> None:
    with pytest.raises(expected) as caught:
        await client.messages.create(**{**ASK, **fields}, stream=stream)

    body: Any = caught.value.body
    assert body["type"] == "error"
    assert body["error"]["type"] == kind
    assert body["request_id"] == caught.value.request_id
    assert re.search(words, body["error"]["message"])


@pytest.mark.parametrize("sent", ["api_key", "auth_token"])
async def test_a_key_is_taken_in_both_headers_and_a_wrong_one_in_none(served: Running, sent: str) -> None:
    for key, right in ((served.key, True), ("sk-wrong", False)):
        given: Any = {"api_key": None, "auth_token": None, sent: key}
        async with AsyncAnthropic(base_url=served.origin, max_retries=0, **given) as sdk:
            if right:
                assert (await sdk.messages.count_tokens(model="default", messages=HI)).input_tokens > 0
                continue
            with pytest.raises(anthropic.AuthenticationError) as caught:
                await sdk.messages.create(**ASK)
            assert caught.value.response.headers["WWW-Authenticate"].startswith("Bearer")


async def test_closing_a_stream_frees_the_model(served: Running, client: AsyncAnthropic) -> None:
    story: Any = [{"role": "user", "content": "Tell a very long story."}]
    stream = await client.messages.create(model="default", messages=story, max_tokens=4000, stream=True)
    async for event in stream:
        if event.type == "content_block_delta":
            break
    await stream.close()

    await until(lambda: not served.server.door.busy)
    assert (await client.messages.create(**ASK)).content


class TestOnTheSimulator:
    """What takes a script or a slow device."""

    async def test_a_count_waits_for_nobody(self, tmp_path: Path) -> None:
        engine = SimEngine(SimOptions(tokens_per_second=0.001))
        async with serving_messages(tmp_path, engine) as server, client_of(server) as sdk:
            await sdk.messages.create(**ASK, stream=True)
            assert (await sdk.messages.count_tokens(model="default", messages=HI)).input_tokens > 0
            assert server.server.door.waiting == 0

    async def test_a_busy_model_is_overloaded_and_tried_again(self, tmp_path: Path) -> None:
        engine = SimEngine(SimOptions(tokens_per_second=40))
        async with serving_messages(tmp_path, engine, admission="mutex") as server:
            async with client_of(server) as sdk:
                asking = asyncio.create_task(sdk.messages.create(**ASK))
                await until(lambda: server.server.door.busy)
                with pytest.raises(anthropic.OverloadedError) as caught:
                    await sdk.messages.create(**ASK)
                assert caught.value.status_code == 529
                assert caught.value.response.headers["Retry-After"] == "1"
                async with client_of(server, max_retries=3) as patient:
                    assert (await patient.messages.create(**ASK)).content
                assert (await asking).content

    async def test_an_error_in_mid_stream_is_an_event_and_raises(self, tmp_path: Path) -> None:
        engine = SimEngine(SimOptions(tokens_per_second=0.001))
        async with serving_messages(tmp_path, engine) as server, client_of(server, max_retries=3) as sdk:
            stream = await sdk.messages.create(**ASK, stream=True)
            server.server.door.stop()
            with pytest.raises(anthropic.APIStatusError, match="cancelled") as caught:
                async for _ in stream:
                    pass
            body: Any = caught.value.body
            assert body["error"]["type"] == "overloaded_error"
            assert len(server.exchanges) <= 1

    @pytest.mark.parametrize(
        ("code", "expected", "status"),
        [
            (Code.TOOLS_UNSUPPORTED, anthropic.BadRequestError, 400),
            (Code.INSUFFICIENT_SCOPE, anthropic.PermissionDeniedError, 403),
            (Code.REQUEST_TOO_LARGE, anthropic.ContentTooLargeError, 413),
            (Code.TOO_MANY_ATTEMPTS, anthropic.RateLimitError, 429),
            (Code.INTERNAL_ERROR, anthropic.InternalServerError, 500),
            (Code.UPSTREAM_FAILED, anthropic.InternalServerError, 502),
            (Code.GENERATION_STALLED, anthropic.GatewayTimeoutError, 504),
            (Code.MODEL_NOT_LOADED, anthropic.OverloadedError, 529),
            (Code.INSUFFICIENT_MEMORY, anthropic.OverloadedError, 529),
        ],
    )
    async def test_each_class_of_error_is_the_sdks_own(
        self, tmp_path: Path, code: Code, expected: type[anthropic.APIStatusError], status: int
    ) -> None:
        engine = SimEngine(SimOptions(tokens_per_second=None))
        engine.rules.add(NewRule(reply=Reply(refusal=RefusalReply(code=code, message="No."))))
        async with serving_messages(tmp_path, engine) as server, client_of(server) as sdk:
            with pytest.raises(expected) as caught:
                await sdk.messages.create(**ASK)
            assert type(caught.value) is expected
            assert caught.value.status_code == status

    async def test_silence_in_a_stream_is_filled_with_pings_that_the_sdk_skips(self, tmp_path: Path) -> None:
        engine = SimEngine(SimOptions(tokens_per_second=4))
        async with (
            serving_messages(tmp_path, engine, keep_alive_seconds=0.05) as server,
            client_of(server) as sdk,
            server.session() as http,
        ):
            async with sdk.messages.stream(**{**ASK, "max_tokens": 2}) as stream:
                assert text_of(await stream.get_final_message())
            async with http.post("/v1/messages", json={**ASK, "max_tokens": 2, "stream": True}) as response:
                said = await response.text()
        assert 'event: ping\ndata: {"type":"ping"}\n\n' in said
        assert said.startswith("event: message_start\n")
        assert "\nid:" not in said
        assert "retry:" not in said

    async def test_who_waits_long_gets_headers_and_comments_but_no_event(self, tmp_path: Path) -> None:
        engine = SimEngine(SimOptions(tokens_per_second=0.001))
        patience = {"early_headers_after_seconds": 0.05, "keep_alive_seconds": 0.05}
        async with (
            serving_messages(tmp_path, engine, **patience) as server,
            client_of(server) as sdk,
        ):
            running = await sdk.messages.create(**ASK, stream=True)
            async with server.session() as http, http.post("/v1/messages", json={**ASK, "stream": True}) as response:
                assert response.status == 200
                waiting = await response.content.readuntil(b"\n\n")
                assert waiting.startswith(b": queued position=2 ahead=1")
                server.server.door.end_owned_by("main", Refusal(Code.REQUEST_CANCELLED, "Stopped."))
                rest = (await response.content.read()).decode()
            await running.close()
        *comments, last = rest.removesuffix("\n\n").split("\n\n")
        assert all(comment.startswith(": ") for comment in comments)
        assert last.startswith("event: error\n")
