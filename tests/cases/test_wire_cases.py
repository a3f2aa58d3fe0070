"""Doors, wires and figures as the field met them: keys, hosts, odd HTTP, cancels and what the metrics say afterwards."""

import asyncio
import json
import os
import re
import signal
import time
from typing import Any

import aiohttp
import pytest

from tests.cases.asking import HI, PATH, ask, ask_raw
from tests.cases.conftest import CONTEXT
from tests.serving import Running
from tests.test_http_faults import CHAT, connected
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
REAL = pytest.mark.parametrize("server", [pytest.param("real", marks=pytest.mark.real_model)], indirect=True)


# -- Keys (AU) --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "status", "codes"),
    [
        (None, 401, {"missing_api_key"}),
        ("bearer KEY", 200, set()),
        ("BEARER KEY", 200, set()),
        ("KEY", 401, {"missing_api_key", "invalid_api_key"}),
        ("Basic OktFWQ==", 401, {"missing_api_key", "invalid_api_key"}),
        ("Bearer ", 401, {"missing_api_key"}),
        ("Bearer sk-wrong", 401, {"invalid_api_key"}),
        ("Bearer KEY, x", 401, {"invalid_api_key"}),
        ("Bearer k\u00e9y", 401, {"invalid_api_key"}),
        ("Bearer \u201csk-abc\u201d", 401, {"invalid_api_key"}),
        ("Bearer sk-" + "x" * 7000, 401, {"invalid_api_key"}),
    ],
)
async def test_credentials_are_told_apart(simulated: Running, form: str | None, status: int, codes: set[str]) -> None:
    async with connected(simulated) as wire:
        given = "" if form is None else f"Authorization: {form.replace('KEY', simulated.key)}\r\n"
        wire.send(f"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n{given}\r\n".encode())
        got, body = await wire.answer()

    # wrong keys are slowed down after a while, whoever sends them
    assert got == status or (got == 429 and status == 401)
    if got == 401:
        assert json.loads(body)["error"]["code"] in codes


async def test_wrong_keys_are_slowed_down_whatever_the_headers_say_and_the_right_one_is_not(simulated: Running) -> None:
    async with aiohttp.ClientSession(simulated.origin) as stranger:
        statuses = []
        for number in range(20):
            forged = dict.fromkeys(("X-Forwarded-For", "X-Real-IP"), f"10.0.0.{number}")
            forged |= {"Forwarded": f"for=10.0.0.{number}", "Authorization": f"Bearer sk-wrong-{number}"}
            async with stranger.get("/v1/models", headers=forged) as response:
                statuses.append(response.status)
        async with stranger.get("/v1/models", headers=simulated.headers) as response:
            right = response.status

    assert statuses[-1] == 429
    assert right == 200
    assert {exchange.peer for exchange in simulated.exchanges} == {"127.0.0.1"}


# -- HTTP (HT) --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    ["CONNECT evil.example:443 HTTP/1.1", "OPTIONS * HTTP/1.1", "GET //evil/health HTTP/1.1", "GET /%ff%00 HTTP/1.1"],
)
async def test_a_request_for_no_path_of_ours_is_an_unknown_route(simulated: Running, line: str) -> None:
    async with connected(simulated) as wire:
        wire.send(wire.head(line))
        status, body = await wire.answer()

    assert (status, json.loads(body)["error"]["code"]) == (404, "unknown_route")


async def test_an_expectation_that_nobody_knows_is_answered_quietly(
    simulated: Running, capfd: pytest.CaptureFixture[str]
) -> None:
    async with connected(simulated) as wire:
        wire.send(wire.head("GET /health HTTP/1.1", "Expect: miracles"))
        status, _ = await wire.answer()

    assert status == 417
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"model":"default","messages":[{"role":"user","content":"\xbe\xc8\xb3\xe7"}]}', "byte 57"),
        (b'{"mod\xff":1,"messages":[]}', "byte 5"),
        (b'{"messages":[{"role":"user","content":"\xc0\xaf"}]}', "UTF-8"),
        (b'{"messages":[{"role":"user","content":"x"}]} xyz', "JSON"),
        (b'{"messages":[]}{"messages":[]}', "JSON"),
        (b"{'messages':[]}", "JSON"),
        (b'{"messages":[],}', "JSON"),
        (b"", "empty"),
    ],
)
async def test_what_is_no_json_in_utf8_is_told_where(http: aiohttp.ClientSession, body: bytes, words: str) -> None:
    answer = await ask_raw(http, body)

    assert (answer.status, answer.error["code"]) == (400, "invalid_json")
    assert words in answer.error["message"]


async def test_of_two_equal_names_the_last_one_counts(http: aiohttp.ClientSession) -> None:
    turns = '"messages":[{"role":"user","content":"x"}]'
    missing = await ask_raw(http, f'{{"model":"default","model":"no-such",{turns}}}'.encode())
    whole = await ask_raw(http, f'{{"stream":true,"stream":false,{turns}}}'.encode())

    assert (missing.status, whole.status) == (404, 200)
    assert "chat.completion" in whole.document["object"]


async def test_a_name_with_a_zero_byte_is_no_model(http: aiohttp.ClientSession) -> None:
    assert (await ask(http, model="a\x00b")).error["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "//v1/chat/completions"),
        ("POST", "/v1//chat/completions"),
        ("POST", "/v1/chat/completions/"),
        ("POST", "/chat/completions"),
        ("POST", "/v1/v1/chat/completions"),
        ("GET", "/v1/models/"),
        ("GET", "/v1"),
    ],
)
async def test_a_mistyped_base_url_is_told_the_right_one_after_the_key_was_checked(
    simulated: Running, method: str, path: str
) -> None:
    async with connected(simulated) as wire:
        wire.send(wire.head(f"{method} {path} HTTP/1.1", "Content-Length: 0"))
        status, body = await wire.answer()
    async with connected(simulated) as wire:
        wire.send(f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n".encode())
        unknown, _ = await wire.answer()

    assert (status, unknown) == (404, 401)
    assert simulated.server.base_url in json.loads(body)["error"]["message"]


# -- Streams (ST) and cancels (CB) ------------------------------------------------------------------------------------


@pytest.mark.real_model
async def test_fifty_pairs_are_one_answer_and_one_busy_each(real: Running) -> None:
    async with real.session() as http:
        for _ in range(50):
            pair = await asyncio.gather(ask(http, max_tokens=1), ask(http, max_tokens=1))
            assert sorted(answer.status for answer in pair) == [200, 429]
            busy = next(answer for answer in pair if answer.status == 429)
            assert busy.error["code"] == "model_busy"
            assert 0 < float(busy.headers["Retry-After"]) <= 120


@REAL
async def test_hanging_up_inside_a_long_prompt_gives_the_model_to_the_next(server: Running) -> None:
    before = len(server.exchanges)
    long = json.dumps({**HI, "messages": [{"role": "user", "content": "word " * (CONTEXT - 200)}]}).encode()
    async with connected(server) as wire:
        wire.send(wire.head(CHAT, f"Content-Length: {len(long)}") + long)
        await until(lambda: server.server.door.running is not None and server.server.door.running.stream is not None)
    hung_up = time.monotonic()
    await until(lambda: not server.server.door.busy)
    freed_seconds = time.monotonic() - hung_up
    async with server.session() as http:
        assert (await ask(http)).status == 200

    assert freed_seconds < 6.0
    assert (server.exchanges[before].status, server.exchanges[before].error) == (499, "request_cancelled")


# -- Metrics (ME) -----------------------------------------------------------------------------------------------------


async def scrape(http: aiohttp.ClientSession, **headers: str) -> str:
    async with http.get("/metrics", headers=headers) as response:
        assert response.status == 200
        return await response.text()


def counters(text: str) -> dict[str, float]:
    lines = re.findall(r"^(pocketserver_\w+_(?:total|count|sum)(?:\{.*\})?) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in lines}


async def test_head_and_json_are_answered_with_the_text_form(http: aiohttp.ClientSession) -> None:
    async with http.head("/metrics") as response:
        assert response.status == 200
    text = await scrape(http, Accept="application/json")

    assert "# EOF" not in text


@REAL
async def test_counters_outlive_the_model_process_and_hold_nobodys_words(
    server: Running, http: aiohttp.ClientSession
) -> None:
    words = {"user": "ann-secret", "metadata": {"trace": "trace-secret"}, "safety_identifier": "id-secret"}
    assert (await ask(http, {**words, "messages": [{"role": "user", "content": "prompt-secret"}]})).status == 200
    before = counters(await scrape(http))
    await kill_in_mid_stream(server, http)
    await until(lambda: not server.server.door.busy and server.server.engine.status.worker_pid is not None)
    assert (await ask(http, words)).status == 200
    text = await scrape(http)
    after = counters(text)

    assert all(after[name] >= value for name, value in before.items())
    assert "secret" not in text
    assert server.key not in text
    assert "127.0.0.1" not in text
    assert "pocketserver_requests_running 0.0" in text
    assert "pocketserver_requests_waiting 0.0" in text


async def kill_in_mid_stream(server: Running, http: aiohttp.ClientSession) -> None:
    asked: dict[str, Any] = {**HI, "stream": True, "max_tokens": 500, "logit_bias": {"2": -100}}
    async with http.post(PATH, json=asked) as response:
        await response.content.readuntil(b'"content":"')
        found = server.server.engine.status.worker_pid
        assert found is not None
        os.kill(found, signal.SIGKILL)
        rest = await response.read()
    assert b"worker_lost" in rest
    assert b"[DONE]" not in rest
