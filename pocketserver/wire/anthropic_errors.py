"""What the Anthropic family makes of each error code: status, type and envelope.

Source: the Anthropic API reference, "Errors"; 529 is its own status for an overloaded server.
"""

import re
from collections.abc import Mapping

import msgspec

from pocketserver.errors import Code, Refusal
from pocketserver.wire.error_table import ErrorTable

_INVALID = "invalid_request_error"
_AUTHENTICATION = "authentication_error"
_PERMISSION = "permission_error"
_NOT_FOUND = "not_found_error"
_TOO_LARGE = "request_too_large"
_RATE = "rate_limit_error"
_OVERLOADED = "overloaded_error"
_TIMEOUT = "timeout_error"
_API = "api_error"

SHAPES: Mapping[Code, tuple[int, str]] = {
    Code.INVALID_JSON: (400, _INVALID),
    Code.MALFORMED_REQUEST: (400, _INVALID),
    Code.INVALID_PARAMETER: (400, _INVALID),
    Code.CONTEXT_LENGTH_EXCEEDED: (400, _INVALID),
    Code.TOOLS_UNSUPPORTED: (400, _INVALID),
    Code.TEMPLATE_UNSUPPORTED: (400, _INVALID),
    Code.MISSING_API_KEY: (401, _AUTHENTICATION),
    Code.INVALID_API_KEY: (401, _AUTHENTICATION),
    Code.INSUFFICIENT_SCOPE: (403, _PERMISSION),
    Code.INVALID_PAIRING_CODE: (403, _PERMISSION),
    Code.HOST_NOT_ALLOWED: (403, _PERMISSION),
    Code.ORIGIN_NOT_ALLOWED: (403, _PERMISSION),
    Code.PEER_NOT_LOCAL: (403, _PERMISSION),
    Code.UNKNOWN_ROUTE: (404, _NOT_FOUND),
    Code.MODEL_NOT_FOUND: (404, _NOT_FOUND),
    Code.RESPONSE_NOT_FOUND: (404, _NOT_FOUND),
    Code.PREVIOUS_RESPONSE_NOT_FOUND: (400, _INVALID),
    Code.METHOD_NOT_ALLOWED: (405, _INVALID),
    Code.REQUEST_TOO_LARGE: (413, _TOO_LARGE),
    Code.UNSUPPORTED_ENCODING: (415, _INVALID),
    Code.TOO_MANY_ATTEMPTS: (429, _RATE),
    Code.MODEL_BUSY: (529, _OVERLOADED),
    Code.QUEUE_FULL: (529, _OVERLOADED),
    Code.REQUEST_CANCELLED: (529, _OVERLOADED),
    Code.MODEL_NOT_LOADED: (529, _OVERLOADED),
    Code.HOST_GONE: (529, _OVERLOADED),
    Code.DISCONNECTED_BY_HOST: (529, _OVERLOADED),
    Code.INSUFFICIENT_MEMORY: (529, _OVERLOADED),
    Code.CONTEXT_ALLOCATION_FAILED: (529, _OVERLOADED),
    Code.UPSTREAM_FAILED: (502, _API),
    Code.UPSTREAM_UNREACHABLE: (529, _OVERLOADED),
    Code.GENERATION_STALLED: (504, _TIMEOUT),
    Code.WORKER_LOST: (500, _API),
    Code.GENERATION_FAILED: (500, _API),
    Code.INTERNAL_ERROR: (500, _API),
}
"""Status and `type` of each code. A profile may override a status (`Profile.statuses`)."""


def public_id(request_id: str) -> str:
    """A request's id as this family writes it, in headers and error documents."""
    return "req_" + request_id


class AnthropicErrors(ErrorTable):
    """`{"type": "error", "error": {"type", "message"}, "request_id"}`, also as the data of an error event."""

    SHAPES = SHAPES

    def envelope(self, refusal: Refusal, *, request_id: str | None = None) -> bytes:
        document = {"type": "error", "error": {"type": self.type_of(refusal.code), "message": _message(refusal)}}
        if request_id is not None:
            document["request_id"] = public_id(request_id)
        return msgspec.json.encode(document)

    def id_headers(self, request_id: str) -> Mapping[str, str]:
        return {"request-id": public_id(request_id)}


def _message(refusal: Refusal) -> str:
    """The sentence, behind the place that it speaks of: this shape has no other member for it.

    Two sentences are read by programs: agents shorten their conversation by the numbers, or give up the model.
    """
    tokens, most = refusal.details.get("prompt_tokens"), refusal.details.get("context_size")
    if refusal.code is Code.CONTEXT_LENGTH_EXCEEDED and tokens is not None and most is not None:
        return f"prompt is too long: {tokens} tokens > {most} maximum"
    if refusal.code is Code.MODEL_NOT_FOUND:
        return f"model: {refusal.message}"
    if refusal.param is None or refusal.param in refusal.message:
        return refusal.message
    return f"{_place(refusal.param)}: {refusal.message}"


def _place(param: str) -> str:
    """A field as this family's clients know it; engines name it by OpenAI's words."""
    for pattern, words in _PLACES:
        param = re.sub(pattern, words, param)
    return param


_PLACES = (
    (r"^response_format\.json_schema\.schema", "output_config.format.schema"),
    (r"\.function\.parameters\b", ".input_schema"),
    (r"\[(\d+)\]", r".\1"),
)
