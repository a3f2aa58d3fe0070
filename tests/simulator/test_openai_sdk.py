"""The official `openai` package facing each fault: what it retries, and which exception it raises in the end."""

import contextlib
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from pocketserver.simulator.faults import FAULTS, SENTENCES
from tests.simulator.driving import HI, Device, device

CREATE: dict[str, Any] = {"model": "default", "messages": HI["messages"]}

PLAIN: dict[str, tuple[dict[str, Any], type[Exception], bool]] = {
    "invalid_parameter": ({}, openai.BadRequestError, False),
    "tools_unsupported": ({}, openai.BadRequestError, False),
    "invalid_api_key": ({}, openai.AuthenticationError, False),
    "insufficient_scope": ({}, openai.PermissionDeniedError, False),
    "model_not_found": ({}, openai.NotFoundError, False),
    "method_not_allowed": ({}, openai.APIStatusError, False),
    "request_too_large": ({}, openai.APIStatusError, False),
    "insufficient_memory": ({}, openai.InternalServerError, False),
    "context_allocation_failed": ({}, openai.InternalServerError, False),
    "request_cancelled": ({}, openai.APIStatusError, False),
    "rate_limit": ({"retry_after": 0.01}, openai.RateLimitError, True),
    "model_busy": ({"retry_after": 0.01}, openai.RateLimitError, True),
    "queue_full": ({"retry_after": 0.01}, openai.RateLimitError, True),
    "model_not_loaded": ({"retry_after": 0.01}, openai.InternalServerError, True),
    "internal_error": ({"retry_after": 0.01}, openai.InternalServerError, True),
    "generation_stalled": ({"retry_after": 0.01}, openai.InternalServerError, True),
    "drop_before_headers": ({}, openai.APIConnectionError, True),
    "drop_inside_headers": ({}, openai.APIConnectionError, True),
    "stall_headers": ({}, openai.APITimeoutError, True),
    "delay_headers": ({"seconds": 30}, openai.APITimeoutError, True),
}
"""Fault, its words, the exception without retries, and whether the SDK retries by itself."""


@pytest.mark.parametrize("name", PLAIN)
async def test_without_retries_each_fault_raises_its_exception(phone: Device, name: str) -> None:
    words, expected, _ = PLAIN[name]
    phone.simulator.add_fault(name, **words)

    async with phone.served.openai(timeout=0.3) as sdk:
        with pytest.raises(expected) as caught:
            await sdk.chat.completions.create(**CREATE)

    if isinstance(caught.value, openai.APIStatusError) and name in SENTENCES:
        assert caught.value.code == name


@pytest.mark.parametrize("name", ["model_busy", "internal_error", "drop_before_headers", "invalid_parameter"])
async def test_what_may_pass_is_retried_and_what_may_not_is_not(phone: Device, name: str) -> None:
    words, expected, retried = PLAIN[name]
    phone.simulator.add_fault(name, **words)

    async with phone.served.openai(max_retries=1) as sdk:
        if retried:
            answer = await sdk.chat.completions.create(**CREATE)
            assert answer.choices[0].message.content
        else:
            with pytest.raises(expected):
                await sdk.chat.completions.create(**CREATE)

    assert len(phone.simulator.requests) == 1 + retried
    assert phone.simulator.verdict().resilient


CUT = (openai.APIConnectionError, httpx.RemoteProtocolError)
LATE = (openai.APITimeoutError, httpx.ReadTimeout)
"""Newer releases of the SDK wrap what its HTTP library raises in mid-stream, older ones let it through."""
STREAMS: dict[str, tuple[dict[str, Any], type[Exception] | tuple[type[Exception], ...] | None]] = {
    "drop_after_headers": ({}, CUT),
    "drop_after_tokens": ({"after_tokens": 3}, CUT),
    "drop_inside_character": ({}, CUT),
    "drop_inside_line": ({}, CUT),
    "stall": ({"after_tokens": 2}, LATE),
    "delay_first_token": ({"seconds": 30}, LATE),
    "delay_tokens": ({"seconds": 0.001}, None),
    "error_chunk": ({"after_tokens": 2}, openai.APIError),
    "truncated_json": ({}, ValueError),
    "missing_done": ({}, None),
    "duplicate_chunks": ({}, None),
    "out_of_order_chunks": ({}, None),
    "wrong_content_type": ({}, None),
}
"""What reading a stream raises; None where the SDK notices nothing, which its user has to know."""


@pytest.mark.parametrize("name", STREAMS)
async def test_a_fault_in_a_stream_raises_once_and_is_not_retried(phone: Device, name: str) -> None:
    words, expected = STREAMS[name]
    phone.simulator.add_fault(name, **words)

    async with phone.served.openai(max_retries=2, timeout=0.3) as sdk:
        stream = await sdk.chat.completions.create(**CREATE, stream=True)
        with contextlib.nullcontext() if expected is None else pytest.raises(expected):
            assert [chunk.choices[0].delta.content async for chunk in stream]

    assert len(phone.simulator.requests) == 1


def test_every_kind_of_fault_is_tried() -> None:
    kinds = {name for name in FAULTS if name not in SENTENCES}
    assert kinds - set(PLAIN) - set(STREAMS) == {"refuse", "rate_limit_without_hint"}


async def test_a_key_that_was_rotated_is_an_authentication_error(tmp_path: Path) -> None:
    async with device(tmp_path, scenario="key-rotated") as phone, phone.served.openai(max_retries=2) as sdk:
        await sdk.chat.completions.create(**CREATE)
        with pytest.raises(openai.AuthenticationError):
            await sdk.chat.completions.create(**CREATE)
