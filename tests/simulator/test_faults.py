"""Each fault as the bytes of a connection show it, and when faults strike."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from pocketserver.errors import UsageError
from pocketserver.simulator.fault_book import Asked
from pocketserver.simulator.faults import FAULTS, SENTENCES
from tests.simulator.driving import Device

END = b"\r\n0\r\n\r\n"


def body_of(received: bytes) -> bytes:
    return received.partition(b"\r\n\r\n")[2]


def head_of(received: bytes) -> bytes:
    return received.partition(b"\r\n\r\n")[0]


def said(received: bytes) -> list[str]:
    """The text of each content chunk that came whole."""
    lines = [line for line in received.split(b"\n") if line.startswith(b'data: {"id"') and line.endswith(b"}")]
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in lines]
    return [delta["content"] for delta in deltas if delta.get("content")]


def in_utf_8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


STREAMED: dict[str, tuple[dict[str, Any], Callable[[bytes], bool]]] = {
    "drop_before_headers": ({}, lambda got: got == b""),
    "drop_inside_headers": ({}, lambda got: got.startswith(b"HTTP/1.1 200") and b"\r\n\r\n" not in got),
    "drop_after_headers": ({}, lambda got: b"text/event-stream" in got and body_of(got) == b""),
    "drop_after_tokens": (
        {"after_tokens": 3},
        lambda got: len(said(got)) == 3 and b"[DONE]" not in got and END not in got,
    ),
    "drop_inside_character": ({}, lambda got: not in_utf_8(body_of(got)) and END not in got),
    "drop_inside_line": ({}, lambda got: not said(got) and b"choices" in got and END not in got),
    "error_chunk": (
        {"after_tokens": 2, "code": "worker_lost"},
        lambda got: len(said(got)) == 2 and b'"worker_lost"' in got and b"[DONE]" not in got and got.endswith(END),
    ),
    "truncated_json": ({}, lambda got: not said(got) and b"[DONE]" not in got and got.endswith(END)),
    "missing_done": ({}, lambda got: len(said(got)) == 40 and b"[DONE]" not in got and got.endswith(END)),
    "duplicate_chunks": ({}, lambda got: len(said(got)) == 80 and said(got)[0] == said(got)[1] and b"[DONE]" in got),
    "out_of_order_chunks": ({}, lambda got: len(said(got)) == 40 and b"[DONE]" in got),
    "wrong_content_type": ({}, lambda got: b"Content-Type: text/html" in got and len(said(got)) == 40),
    "stall": ({"after_tokens": 2}, lambda got: len(said(got)) == 2 and got.endswith(b"SILENCE")),
    "stall_headers": ({}, lambda got: got == b"SILENCE"),
    "delay_headers": ({"seconds": 5}, lambda got: got == b"SILENCE"),
    "delay_first_token": ({"seconds": 5}, lambda got: b'"role":"assistant"' in got and not said(got)),
    "delay_tokens": ({"seconds": 0.001}, lambda got: len(said(got)) == 40 and b"[DONE]" in got),
    "rate_limit": ({"retry_after": 3}, lambda got: b" 429 " in got and b"Retry-After: 3" in got),
    "rate_limit_without_hint": ({}, lambda got: b" 429 " in got and b"Retry-After" not in got),
    "refuse": (
        {"code": "queue_full"},
        lambda got: b" 429 " in got and b"Retry-After: 5" in got and b"queue_full" in got,
    ),
}
SILENT = {"stall", "stall_headers", "delay_headers", "delay_first_token"}


def test_every_fault_has_a_row_here() -> None:
    assert {name for name in FAULTS if name not in SENTENCES} == set(STREAMED)


@pytest.mark.parametrize("name", STREAMED)
async def test_a_fault_shows_in_a_streams_bytes_and_strikes_once(phone: Device, name: str) -> None:
    words, as_promised = STREAMED[name]
    await phone.control("POST", "/faults", {"fault": name, **words})

    received = await phone.raw(stream=True, seconds=0.3 if name in SILENT else 20.0)

    assert as_promised(received), received
    assert phone.simulator.requests[-1].fault == name
    whole = await phone.raw(stream=True)
    assert b"[DONE]" in whole
    assert whole.endswith(END)


@pytest.mark.parametrize(
    ("name", "words", "as_promised"),
    [
        ("truncated_json", {}, lambda got: _length(got) == len(body_of(got)) and not _is_json(body_of(got))),
        ("drop_inside_line", {}, lambda got: _length(got) > len(body_of(got)) > 0),
        ("drop_inside_character", {}, lambda got: _length(got) > len(body_of(got)) and not in_utf_8(body_of(got))),
        ("drop_after_headers", {}, lambda got: _length(got) > 0 and body_of(got) == b""),
        ("drop_after_tokens", {"after_tokens": 3}, lambda got: got == b""),
        ("drop_after_tokens", {"after_tokens": 3, "reset": True}, lambda got: got == b"RESET"),
        ("error_chunk", {}, lambda got: b" 500 " in got and b"internal_error" in got),
        ("wrong_content_type", {}, lambda got: b"Content-Type: text/html" in got and _is_json(body_of(got))),
    ],
)
async def test_a_fault_shows_in_a_documents_bytes(
    phone: Device, name: str, words: dict[str, Any], as_promised: Callable[[bytes], bool]
) -> None:
    phone.simulator.add_fault(name, **words)

    received = await phone.raw()

    assert as_promised(received), received
    assert await phone.text()


def _length(received: bytes) -> int:
    [line] = [line for line in head_of(received).split(b"\r\n") if line.startswith(b"Content-Length")]
    return int(line.split(b":")[1])


def _is_json(body: bytes) -> bool:
    try:
        json.loads(body)
    except ValueError:
        return False
    return True


async def statuses(phone: Device, count: int, **fields: Any) -> list[int]:
    return [(await phone.ask(**fields))[0] for _ in range(count)]


async def test_next_strikes_so_many_and_a_row_of_faults_is_a_sequence(phone: Device) -> None:
    phone.simulator.add_fault("model_busy", when={"next": 2})
    phone.simulator.add_fault("internal_error")

    assert await statuses(phone, 5) == [429, 429, 500, 200, 200]


async def test_every_strikes_each_nth(phone: Device) -> None:
    phone.simulator.add_fault("model_busy", when={"every": 3})

    assert await statuses(phone, 7) == [200, 200, 429, 200, 200, 429, 200]


async def test_a_probability_is_the_same_in_every_run(phone: Device) -> None:
    def arm() -> None:
        phone.simulator.add_fault("model_busy", when={"probability": 0.5})

    arm()
    first = await statuses(phone, 20)
    phone.simulator.reset()
    arm()

    assert await statuses(phone, 20) == first
    assert set(first) == {200, 429}


async def test_match_strikes_only_what_matches(phone: Device) -> None:
    phone.simulator.add_fault("model_busy", when={"match": {"regex": "^weather", "stream": False}})

    weather = [{"role": "user", "content": [{"type": "text", "text": "weather?"}]}]
    assert await statuses(phone, 2) == [200, 200]
    assert await statuses(phone, 2, messages=weather) == [429, 429]


@pytest.mark.parametrize(
    "document",
    [
        {"messages": [{"role": "user", "content": "weather?"}, {"role": "system", "content": "Tokens left: 1."}]},
        {"messages": [{"role": "tool", "content": "weather: rain"}]},
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "weather: rain"}]}]},
        {"input": [{"role": "user", "content": [{"text": "weather?"}]}, {"role": "developer", "content": "Be brief."}]},
        {"input": [{"type": "function_call_output", "call_id": "1", "output": [{"text": "weather: rain"}]}]},
        {"input": "weather?"},
        {"prompt": "weather?"},
        {"messages": [{"role": "system", "content": "weather"}]},
    ],
)
def test_a_fault_looks_at_what_was_said_last_in_every_api(document: dict[str, Any]) -> None:
    said = Asked(method="POST", path="/", document=document).last_message
    assert said.startswith("weather")


async def test_a_health_check_uses_no_fault_up_unless_it_is_meant(phone: Device) -> None:
    phone.simulator.add_fault("internal_error")
    phone.simulator.add_fault("worker_lost", when={"next": 1, "match": {"path": "/v1/models"}})

    async with phone.http.get("/health") as health:
        assert health.status == 200
    async with phone.http.get("/v1/models") as models:
        assert (await models.json())["error"]["code"] == "worker_lost"
    assert await statuses(phone, 2) == [500, 200]


async def test_a_stranger_uses_no_fault_up(phone: Device) -> None:
    phone.simulator.add_fault("internal_error")

    async with phone.http.post("/v1/chat/completions", headers={"Authorization": "Bearer sk-wrong-key"}) as response:
        assert response.status == 401
    assert await statuses(phone, 2) == [500, 200]
    assert phone.simulator.requests[0].error == "invalid_api_key"


async def test_a_stalled_stream_ends_when_its_client_leaves(phone: Device) -> None:
    phone.simulator.add_fault("stall", after_tokens=1)
    asking = asyncio.create_task(phone.raw(stream=True, seconds=0.2))

    assert (await asking).endswith(b"SILENCE")
    assert await phone.text()


async def test_delays_are_real_even_when_device_time_is_not(phone: Device) -> None:
    phone.simulator.add_fault("delay_headers", seconds=0.05)
    began = time.perf_counter()
    await phone.ask()

    assert 0.05 <= time.perf_counter() - began < 5


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ({"fault": "no_such"}, "sim faults"),
        ({"fault": "delay_headers"}, "seconds"),
        ({"fault": "refuse"}, "code"),
        ({"fault": "model_busy", "when": {"every": 0}}, "every"),
        ({"fault": "model_busy", "when": {"match": {"regex": "("}}}, "regular expression"),
        ({"fault": "model_busy", "wehn": {}}, "wehn"),
    ],
)
async def test_a_fault_that_means_nothing_is_refused_with_a_hint(
    phone: Device, words: dict[str, Any], hint: str
) -> None:
    with pytest.raises(UsageError, match=hint.replace("(", "\\(")):
        phone.simulator.add_fault(**words)
    answer = await phone.control("POST", "/faults", words, status=400)
    assert hint in answer["error"]
