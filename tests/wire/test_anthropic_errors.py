"""Every code has a status and a type, and the sentences that programs read are exact."""

import json
from typing import Any

import pytest

from pocketserver.errors import Code, Refusal
from pocketserver.wire.anthropic_errors import SHAPES, AnthropicErrors

ERRORS = AnthropicErrors(statuses={}, codes={})
TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    500: "api_error",
    502: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def document(refusal: Refusal, request_id: str | None = "r1") -> Any:
    return json.loads(ERRORS.envelope(refusal, request_id=request_id))


def test_every_code_has_a_shape() -> None:
    assert set(SHAPES) == set(Code)


@pytest.mark.parametrize("code", Code)
def test_the_type_is_the_one_of_the_status(code: Code) -> None:
    status, kind = SHAPES[code]
    assert kind == TYPES[status]
    assert status not in (429, 503) or code is Code.TOO_MANY_ATTEMPTS


def test_the_envelope_holds_type_message_and_the_requests_id() -> None:
    error = {"type": "invalid_request_error", "message": "No."}
    assert document(Refusal(Code.INVALID_PARAMETER, "No.")) == {
        "type": "error",
        "error": error,
        "request_id": "req_r1",
    }
    assert document(Refusal(Code.INVALID_PARAMETER, "No."), None) == {"type": "error", "error": error}


def test_a_prompt_that_is_too_long_is_told_in_the_words_that_agents_look_for() -> None:
    details = {"prompt_tokens": 9000, "context_size": 8192}
    refusal = Refusal(Code.CONTEXT_LENGTH_EXCEEDED, "This model's …", details=details)
    assert document(refusal)["error"]["message"] == "prompt is too long: 9000 tokens > 8192 maximum"


def test_an_unknown_model_is_named_behind_the_field() -> None:
    message = document(Refusal(Code.MODEL_NOT_FOUND, "The model 'x' does not exist here."))["error"]["message"]
    assert message == "model: The model 'x' does not exist here."


@pytest.mark.parametrize(
    ("param", "place"),
    [
        ("tools[1].function.parameters", "tools.1.input_schema"),
        ("response_format.json_schema.schema", "output_config.format.schema"),
        ("messages[0].tool_calls[2]", "messages.0.tool_calls.2"),
    ],
)
def test_a_place_that_the_sentence_leaves_out_stands_before_it(param: str, place: str) -> None:
    message = document(Refusal(Code.INVALID_PARAMETER, "It cannot be held.", param=param))["error"]["message"]
    assert message == f"{place}: It cannot be held."
    named = Refusal(Code.INVALID_PARAMETER, "`top_p` must be between 0 and 1.", param="top_p")
    assert document(named)["error"]["message"] == named.message


def test_waiting_times_and_methods_are_headers() -> None:
    busy = ERRORS.response(Refusal(Code.QUEUE_FULL, "Full.", retry_after=5), request_id="r1")
    assert (busy.status, busy.headers["Retry-After"]) == (529, "5")
    wrong = ERRORS.response(Refusal(Code.METHOD_NOT_ALLOWED, "No.", allow=("POST",)), request_id="r1")
    assert (wrong.status, wrong.headers["Allow"]) == (405, "POST")
    for code in (Code.INSUFFICIENT_MEMORY, Code.CONTEXT_ALLOCATION_FAILED):
        assert ERRORS.response(Refusal(code, "No.")).headers["x-should-retry"] == "false"


def test_a_profile_may_have_a_status_of_its_own() -> None:
    assert AnthropicErrors(statuses={Code.MODEL_BUSY: 503}, codes={}).status(Code.MODEL_BUSY) == 503
