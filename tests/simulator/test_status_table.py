"""Every row of PocketLLM Server's status table, provoked by one control call and seen over a socket."""

from typing import Any

import pytest

from pocketserver.errors import Code
from pocketserver.simulator.faults import FAULTS, SENTENCES
from pocketserver.wire.openai_errors import SHAPES
from tests.simulator.driving import Device

ROWS = [
    (400, "invalid_json"),
    (400, "invalid_parameter"),
    (400, "malformed_request"),
    (400, "tools_unsupported"),
    (400, "template_unsupported"),
    (401, "missing_api_key"),
    (401, "invalid_api_key"),
    (404, "unknown_route"),
    (404, "model_not_found"),
    (405, "method_not_allowed"),
    (429, "model_busy"),
    (499, "request_cancelled"),
    (503, "model_not_loaded"),
    (503, "insufficient_memory"),
    (503, "context_allocation_failed"),
    (500, "internal_error"),
    (500, "generation_failed"),
    (500, "worker_lost"),
    (500, "generation_stalled"),
]


@pytest.mark.parametrize(("status", "code"), ROWS)
@pytest.mark.parametrize("stream", [False, True])
async def test_one_control_call_provokes_the_row(phone: Device, status: int, code: str, stream: bool) -> None:
    await phone.control("POST", "/faults", {"fault": code})

    got, document = await phone.ask(stream=stream)

    assert (got, document["error"]["code"]) == (status, code)
    assert set(document["error"]) >= {"message", "type", "code"}
    assert await phone.text()


@pytest.mark.parametrize(
    ("state", "status", "code"),
    [
        ({"model": None}, 503, "model_not_loaded"),
        ({"app": "killed"}, 503, "model_not_loaded"),
        ({"memory_limit_bytes": 500_000_000}, 503, "insufficient_memory"),
        ({"memory_limit_bytes": 1_000_000_000}, 503, "context_allocation_failed"),
        ({"key": "rotated"}, 401, "invalid_api_key"),
    ],
)
async def test_a_state_of_the_device_provokes_its_row(
    phone: Device, state: dict[str, Any], status: int, code: str
) -> None:
    await phone.control("PATCH", "/state", state)
    if "app" in state:
        await phone.control("PATCH", "/state", {"app": "foreground"})

    got, document = await phone.ask()

    assert (got, document["error"]["code"]) == (status, code)


def test_every_code_is_a_fault_with_a_sentence() -> None:
    assert set(SENTENCES) == set(Code) == set(SHAPES)
    assert {code.value for code in Code} <= set(FAULTS)
    assert all(fault.summary for fault in FAULTS.values())
