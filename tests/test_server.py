"""The four endpoints over real sockets: every row of the error table, the shape of a stream, what a stranger learns."""

import asyncio
import gzip
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from pocketserver.chat import EngineState
from pocketserver.engines.sim.engine import SimEngine, SimOptions
from pocketserver.errors import Code, Refusal
from tests.room.rooming import hosting
from tests.serving import FAST, Running, running
from tests.waiting import until

HI = {"model": "default", "messages": [{"role": "user", "content": "hi"}]}
SLOW = SimOptions(tokens_per_second=0.001)


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path) as started:
        yield started


@pytest_asyncio.fixture
async def http(server: Running) -> AsyncIterator[aiohttp.ClientSession]:
    async with server.session() as session:
        yield session


def events(body: bytes) -> list[Any]:
    """The data of each SSE message; `[DONE]` stays text."""
    for line in body.split(b"\n"):
        line.decode()
    messages = [part.removeprefix(b"data: ") for part in body.split(b"\n\n") if part]
    return ["[DONE]" if message == b"[DONE]" else json.loads(message) for message in messages]


def text_of(chunks: list[Any]) -> str:
    return "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c != "[DONE]" and c.get("choices"))


async def chat(http: aiohttp.ClientSession, **fields: Any) -> tuple[int, Any, aiohttp.ClientResponse]:
    async with http.post("/v1/chat/completions", json={**HI, **fields}) as response:
        body = await response.read()
        return (
            response.status,
            (body if fields.get("stream") and response.status == 200 else json.loads(body)),
            response,
        )


# -- The stream -------------------------------------------------------------------------------------------------------


async def test_a_stream_begins_with_the_role_ends_with_done_and_has_the_same_text_as_the_document(
    http: aiohttp.ClientSession,
) -> None:
    _, body, response = await chat(http, stream=True)
    _, document, _ = await chat(http)
    *chunks, done = events(body)

    assert response.headers["Content-Type"] == "text/event-stream"
    assert response.headers["Cache-Control"] == "no-cache"
    assert done == "[DONE]"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all("role" not in chunk["choices"][0]["delta"] for chunk in chunks[1:])
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert text_of(chunks) == document["choices"][0]["message"]["content"]
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1


@pytest.mark.parametrize("options", [{}, {"stream_options": None}, {"stream_options": {"include_usage": False}}])
async def test_usage_is_not_sent_unasked(http: aiohttp.ClientSession, options: dict[str, Any]) -> None:
    _, body, _ = await chat(http, stream=True, **options)

    for chunk in events(body)[:-1]:
        assert "usage" not in chunk
        assert len(chunk["choices"]) == 1


async def test_usage_asked_for_is_one_last_chunk_without_choices(http: aiohttp.ClientSession) -> None:
    _, body, _ = await chat(http, stream=True, stream_options={"include_usage": True})
    *chunks, last, _done = events(body)

    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 40
    assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + 40


async def test_characters_cut_by_tokens_arrive_whole(server: Running, http: aiohttp.ClientSession) -> None:
    pieces = [b"\xf0\x9f", b"\x91\xa9\xe2", b"\x80\x8d\xf0\x9f\x92\xbb", b"\xe6\x97", b"\xa5\xe6\x9c\xac"]
    engine = server.server.engine
    assert isinstance(engine, SimEngine)
    engine.script(pieces)
    engine.script(pieces)

    _, body, _ = await chat(http, stream=True)
    _, document, _ = await chat(http)

    assert b"\xef\xbf\xbd" not in body
    assert (
        text_of(events(body))
        == document["choices"][0]["message"]["content"]
        == "\U0001f469\u200d\U0001f4bb\u65e5\u672c"
    )


async def test_nothing_of_a_stop_string_is_streamed(server: Running, http: aiohttp.ClientSession) -> None:
    engine = server.server.engine
    assert isinstance(engine, SimEngine)
    engine.script(["ABC", "DE", "F", "GH", "IJK"])

    _, body, _ = await chat(http, stream=True, stop=["DEFGHIJ"], stream_options={"include_usage": True})
    *chunks, last, _done = events(body)

    assert text_of(chunks) == "ABC"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert last["usage"]["completion_tokens"] == 5


async def test_streams_are_never_compressed_and_headers_come_before_the_first_token(tmp_path: Path) -> None:
    async with running(tmp_path, SimEngine(SLOW)) as slow, slow.session() as http:
        asking = {"Accept-Encoding": "gzip, deflate, br, zstd"}
        async with http.post("/v1/chat/completions", json={**HI, "stream": True}, headers=asking) as response:
            first = await response.content.readuntil(b"\n\n")

        assert "Content-Encoding" not in response.headers
        assert b'"role":"assistant"' in first


async def test_an_error_in_mid_stream_is_one_chunk_without_done(tmp_path: Path) -> None:
    engine = SimEngine(SLOW)
    async with running(tmp_path, engine) as slow, slow.session() as http:
        async with http.post("/v1/chat/completions", json={**HI, "stream": True}) as response:
            await until(lambda: slow.server.door.running is not None and slow.server.door.running.stream is not None)
            running_now = slow.server.door.running
            assert running_now is not None
            running_now.end(Refusal(Code.WORKER_LOST, "The model process ended."))
            body = await response.read()

    *_, last = events(body)
    assert last["error"]["code"] == "worker_lost"
    assert last["error"]["type"] == "server_error"


# -- The error table --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"n": 0}, 400, "invalid_parameter"),
        ({"messages": []}, 400, "invalid_parameter"),
        ({"messages": {"role": "user"}}, 400, "malformed_request"),
        ({"model": "no-such"}, 404, "model_not_found"),
    ],
)
async def test_a_fault_known_before_the_first_token_is_a_plain_status(
    http: aiohttp.ClientSession, fields: dict[str, Any], status: int, code: str
) -> None:
    got, document, response = await chat(http, stream=True, **fields)

    assert (got, document["error"]["code"]) == (status, code)
    assert response.content_type == "application/json"
    assert set(document["error"]) == {"message", "type", "param", "code"}
    assert (await chat(http))[0] == 200


async def test_a_prompt_over_the_context_names_both_numbers(tmp_path: Path) -> None:
    engine = SimEngine(SimOptions(tokens_per_second=None, context_size=32))
    async with running(tmp_path, engine) as small, small.session() as http:
        status, document, _ = await chat(http, messages=[{"role": "user", "content": "word " * 100}], stream=True)

    assert status == 400
    assert document["error"]["code"] == "invalid_parameter"
    assert document["error"]["param"] == "messages"
    assert "maximum context length is 32 tokens" in document["error"]["message"]
    assert document["error"]["prompt_tokens"] > 100


async def test_a_busy_model_refuses_the_second_caller_with_a_hint(tmp_path: Path) -> None:
    async with running(tmp_path, SimEngine(SLOW)) as slow, slow.session() as http:
        async with http.post("/v1/chat/completions", json={**HI, "stream": True}) as first:
            assert first.status == 200
            status, document, response = await chat(http)

    assert (status, document["error"]["code"]) == (429, "model_busy")
    assert response.headers["Retry-After"] == "1"


async def test_a_client_that_sends_only_headers_does_not_make_others_busy(server: Running) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.server.port)
    writer.write(
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {server.key}\r\n"
        "Content-Length: 100\r\n\r\n".encode()
    )
    await writer.drain()
    async with server.session() as http:
        assert (await chat(http))[0] == 200
    writer.close()
    await writer.wait_closed()
    assert (await server.exchange(2)).status == 499


@pytest.mark.parametrize(
    ("state", "problem_code", "status", "code"),
    [
        (EngineState.LOADING, None, 503, "model_not_loaded"),
        (EngineState.NO_MODEL, None, 503, "model_not_loaded"),
        (EngineState.NO_MODEL, "insufficient_memory", 503, "insufficient_memory"),
        (EngineState.NO_MODEL, "context_allocation_failed", 503, "context_allocation_failed"),
    ],
)
async def test_a_model_that_is_not_there_is_a_503(
    server: Running, http: aiohttp.ClientSession, state: EngineState, problem_code: str | None, status: int, code: str
) -> None:
    engine = server.server.engine
    assert isinstance(engine, SimEngine)
    engine.state, engine.problem_code = state, problem_code

    got, document, response = await chat(http)
    async with http.get("/health") as health:
        shown = await health.json()

    assert (got, document["error"]["code"]) == (status, code)
    assert ("x-should-retry" in response.headers) == (problem_code is not None)
    assert shown["status"] == "ok"
    assert shown["model"] is None
    assert shown["x_pocketserver"]["state"] == state


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, "missing_api_key"),
        ({"Authorization": "Bearer "}, "missing_api_key"),
        ({"Authorization": "Bearer sk-wrong"}, "invalid_api_key"),
        ({"Authorization": "Bearer kéy"}, "invalid_api_key"),
    ],
)
async def test_without_the_key_nothing_but_health_answers(server: Running, headers: dict[str, str], code: str) -> None:
    async with aiohttp.ClientSession(base_url=server.origin, headers=headers) as stranger:
        for path in ("/v1/models", "/metrics", "/v1/chat/completions", "/anything"):
            async with stranger.get(path) as response:
                assert response.status == 401
                assert (await response.json())["error"]["code"] == code
                assert response.headers["WWW-Authenticate"].startswith("Bearer")
        async with stranger.get("/health") as response:
            shown = await response.json()

    assert response.status == 200
    assert set(shown["x_pocketserver"]) <= {"state", "version", "device"}


async def test_keys_in_the_query_are_no_keys(server: Running) -> None:
    async with aiohttp.ClientSession(base_url=server.origin) as stranger:
        for name in ("api_key", "key", "access_token"):
            async with stranger.get(f"/v1/models?{name}={server.key}") as response:
                assert (await response.json())["error"]["code"] == "missing_api_key"
    assert all(server.key[3:12] not in exchange.path for exchange in server.exchanges)


async def test_a_key_without_the_scope_is_told_which(server: Running) -> None:
    assert server.server.keys is not None
    key = await asyncio.to_thread(server.server.keys.new, "prom", ["metrics"])
    async with aiohttp.ClientSession(base_url=server.origin, headers={"Authorization": f"Bearer {key}"}) as http:
        status, document, _ = await chat(http)
        async with http.get("/metrics") as metrics:
            pass

    assert (status, document["error"]["code"]) == (403, "insufficient_scope")
    assert "chat" in document["error"]["message"]
    assert metrics.status == 200


@pytest.mark.parametrize(
    "path",
    [
        "//v1/chat/completions",
        "/v1//chat/completions",
        "/v1/chat/completions/",
        "/chat/completions",
        "/v1/v1/chat/completions",
    ],
)
async def test_a_mistyped_path_is_told_the_base_url_and_never_redirected(
    server: Running, http: aiohttp.ClientSession, path: str
) -> None:
    async with http.post(server.origin + path, json=HI, allow_redirects=False) as response:
        document = await response.json()

    assert response.status == 404
    assert document["error"]["code"] == "unknown_route"
    assert f"{server.server.port}/v1" in document["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/models/sim-1b", "/v1/models/", "/v1", "/v1/responses", "/api/tags"])
async def test_there_are_four_routes_and_no_other(http: aiohttp.ClientSession, path: str) -> None:
    async with http.get(path) as response:
        assert response.status == 404
        assert (await response.json())["error"]["code"] == "unknown_route"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("GET", "/v1/chat/completions", "POST"), ("POST", "/v1/models", "GET, HEAD"), ("DELETE", "/metrics", "GET, HEAD")],
)
async def test_a_wrong_method_names_the_right_ones(
    http: aiohttp.ClientSession, method: str, path: str, allowed: str
) -> None:
    async with http.request(method, path) as response:
        document = await response.json()

    assert (response.status, document["error"]["code"]) == (405, "method_not_allowed")
    assert response.headers["Allow"] == allowed


async def test_a_body_over_four_mebibytes_is_413_with_and_without_a_length(http: aiohttp.ClientSession) -> None:
    big = json.dumps({**HI, "user": "x" * 4_200_000}).encode()

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(big), 65536):
            yield big[start : start + 65536]

    for data in (io.BytesIO(big), chunks()):
        async with http.post("/v1/chat/completions", data=data) as response:
            assert response.status == 413
            assert (await response.json())["error"]["code"] == "request_too_large"


async def test_a_small_body_over_a_small_limit_is_413_though_it_came_at_once(tmp_path: Path) -> None:
    body = json.dumps({**HI, "user": "x" * 2000}).encode()
    packed = gzip.compress(body)
    assert len(packed) < 1024

    async with running(tmp_path, max_body_bytes=1024) as server, server.session() as http:
        for headers in ({}, {"Content-Encoding": "gzip"}):
            data = packed if headers else body
            async with http.post("/v1/chat/completions", data=data, headers=headers) as response:
                assert response.status == 413
                assert (await response.json())["error"]["code"] == "request_too_large"


async def test_an_unknown_compression_is_told_what_is_understood(http: aiohttp.ClientSession) -> None:
    async with http.post("/v1/chat/completions", data=b"x" * 100, headers={"Content-Encoding": "zstd"}) as response:
        document = await response.json()

    assert (response.status, document["error"]["code"]) == (415, "unsupported_encoding")
    assert "gzip" in response.headers["Accept-Encoding"]


async def test_stop_on_the_machine_is_a_499_for_the_client(tmp_path: Path) -> None:
    async with running(tmp_path, SimEngine(SLOW)) as slow, slow.session() as http:
        asking = asyncio.create_task(chat(http))
        await until(lambda: slow.server.door.running is not None and slow.server.door.running.stream is not None)
        async with aiohttp.ClientSession() as owner:
            token = {"Authorization": f"Bearer {slow.server.control_token}"}
            async with owner.post(f"{slow.server.control_url}/stop", headers=token) as stopped:
                assert await stopped.json() == {"stopped": True}
        status, document, _ = await asking

    assert (status, document["error"]["code"]) == (499, "request_cancelled")


async def test_the_control_listener_asks_for_its_own_token(server: Running) -> None:
    async with aiohttp.ClientSession() as stranger:
        for headers in ({}, server.headers):
            async with stranger.post(f"{server.server.control_url}/stop", headers=headers) as response:
                assert response.status == 401


async def test_a_control_request_that_cannot_be_read_is_told_so(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host, aiohttp.ClientSession() as owner:
        server = host.running.server
        token = {"Authorization": f"Bearer {server.control_token}"}
        for word in ("kick", "close", "clients"):
            for body in (b"{", b"[]", b'{"name": 1}'):
                async with owner.post(f"{server.control_url}/room/{word}", headers=token, data=body) as response:
                    assert response.status == 400
                    assert "cannot be read" in (await response.json())["error"]


async def test_a_fault_of_ours_is_a_500_without_a_traceback(tmp_path: Path) -> None:
    class Broken(SimEngine):
        def _tokens(self, request: object) -> Any:
            raise ZeroDivisionError("secret inside")

    async with running(tmp_path, Broken(FAST)) as broken, broken.session() as http:
        status, document, response = await chat(http)

    assert (status, document["error"]["code"]) == (500, "internal_error")
    assert "secret" not in json.dumps(document)
    assert response.headers["x-request-id"] in document["error"]["message"]


async def test_a_hanging_model_is_given_up_by_the_watchdog(tmp_path: Path) -> None:
    async with running(tmp_path, SimEngine(SLOW), stall_seconds=0.1) as slow, slow.session() as http:
        status, document, _ = await chat(http)
        _, body, _ = await chat(http, stream=True)

    assert (status, document["error"]["code"]) == (500, "generation_stalled")
    assert events(body)[-1]["error"]["code"] == "generation_stalled"


async def test_revoking_a_key_ends_its_stream(tmp_path: Path) -> None:
    async with running(tmp_path, SimEngine(SLOW)) as slow:
        keys = slow.server.keys
        assert keys is not None
        key = await asyncio.to_thread(keys.new, "phone")
        async with aiohttp.ClientSession(base_url=slow.origin, headers={"Authorization": f"Bearer {key}"}) as http:
            async with http.post("/v1/chat/completions", json={**HI, "stream": True}) as response:
                await asyncio.to_thread(keys.revoke, "phone")
                body = await response.read()

    assert events(body)[-1]["error"]["code"] == "invalid_api_key"


# -- Who comes in -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "192.0.2.1:8080", "localhost.evil.example"])
async def test_a_foreign_host_name_is_refused_everywhere(server: Running, host: str) -> None:
    async with aiohttp.ClientSession(base_url=server.origin) as http:
        for path in ("/health", "/v1/models"):
            async with http.get(path, headers={"Host": host}) as response:
                assert response.status == 403
                assert (await response.json())["error"]["code"] == "host_not_allowed"


async def test_a_foreign_page_gets_no_cors_headers_and_a_configured_one_does(tmp_path: Path) -> None:
    ours = "http://tools.example:3000"
    async with running(tmp_path, allowed_origins=[ours]) as server, server.session() as http:
        async with http.get("/health", headers={"Origin": "http://evil.example"}) as foreign:
            pass
        async with http.get("/health", headers={"Origin": ours}) as allowed:
            pass
        async with aiohttp.ClientSession(base_url=server.origin) as browser:
            preflight = {"Origin": ours, "Access-Control-Request-Method": "POST"}
            async with browser.options("/v1/chat/completions", headers=preflight) as asked:
                pass

    assert "Access-Control-Allow-Origin" not in foreign.headers
    assert allowed.headers["Access-Control-Allow-Origin"] == ours
    assert asked.status == 204
    assert "POST" in asked.headers["Access-Control-Allow-Methods"]


async def test_with_auth_off_any_header_is_accepted(tmp_path: Path) -> None:
    async with running(tmp_path, auth="off") as server:
        async with aiohttp.ClientSession(base_url=server.origin, headers={"Authorization": "Basic x"}) as http:
            assert (await chat(http))[0] == 200


# -- Health, models, metrics ------------------------------------------------------------------------------------------


async def test_health_shows_more_to_the_holder_of_a_key(http: aiohttp.ClientSession) -> None:
    async with http.get("/health") as response:
        shown = await response.json()

    assert {key: shown[key] for key in ("status", "model", "context_size", "metal")} == {
        "status": "ok",
        "model": "sim-1b",
        "context_size": 8192,
        "metal": False,
    }
    assert shown["x_pocketserver"]["state"] == "idle"
    assert shown["x_pocketserver"]["uptime_seconds"] >= 0


async def test_health_and_metrics_answer_while_the_model_is_busy(tmp_path: Path) -> None:
    async with running(tmp_path, SimEngine(SLOW)) as slow, slow.session() as http:
        async with http.post("/v1/chat/completions", json={**HI, "stream": True}):
            async with http.get("/health") as health:
                shown = await health.json()
            async with http.get("/metrics") as metrics:
                text = await metrics.text()

    assert shown["x_pocketserver"]["state"] == "busy"
    assert shown["x_pocketserver"]["seconds_since_last_token"] >= 0
    assert "pocketserver_requests_running 1.0" in text


async def test_models_lists_the_loaded_one(http: aiohttp.ClientSession) -> None:
    async with http.get("/v1/models") as response:
        listed = await response.json()

    assert listed["object"] == "list"
    [model] = listed["data"]
    assert (model["id"], model["object"], model["loaded"]) == ("sim-1b", "model", True)
    assert isinstance(model["created"], int)


async def test_every_answer_has_a_request_id_and_one_recorded_exchange(
    server: Running, http: aiohttp.ClientSession
) -> None:
    ids = []
    for path in ("/health", "/v1/models", "/nothing"):
        async with http.get(path) as response:
            ids.append(response.headers["x-request-id"])
    _, _, streamed = await chat(http, stream=True)
    ids.append(streamed.headers["x-request-id"])
    await server.exchange(4)

    assert [exchange.request_id for exchange in server.exchanges] == ids
    assert len(set(ids)) == 4
    assert server.exchanges[-1].answer.usage is not None
