"""What the OpenAI family makes of each error code: status, type and envelope."""

from collections.abc import Mapping

import msgspec

from pocketserver.errors import Code, Refusal
from pocketserver.wire.error_table import ErrorTable

_INVALID = "invalid_request_error"
_AUTHENTICATION = "authentication_error"
_PERMISSION = "permission_error"
_NOT_FOUND = "not_found_error"
_RATE = "rate_limit_error"
_SERVER = "server_error"

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
    Code.RESPONSE_NOT_FOUND: (404, _INVALID),
    Code.PREVIOUS_RESPONSE_NOT_FOUND: (400, _INVALID),
    Code.METHOD_NOT_ALLOWED: (405, _INVALID),
    Code.REQUEST_TOO_LARGE: (413, _INVALID),
    Code.UNSUPPORTED_ENCODING: (415, _INVALID),
    Code.TOO_MANY_ATTEMPTS: (429, _RATE),
    Code.MODEL_BUSY: (429, _RATE),
    Code.QUEUE_FULL: (429, _RATE),
    Code.REQUEST_CANCELLED: (503, _SERVER),
    Code.MODEL_NOT_LOADED: (503, _SERVER),
    Code.HOST_GONE: (503, _SERVER),
    Code.DISCONNECTED_BY_HOST: (503, _SERVER),
    Code.INSUFFICIENT_MEMORY: (503, _SERVER),
    Code.CONTEXT_ALLOCATION_FAILED: (503, _SERVER),
    Code.UPSTREAM_FAILED: (502, _SERVER),
    Code.UPSTREAM_UNREACHABLE: (503, _SERVER),
    Code.GENERATION_STALLED: (504, _SERVER),
    Code.WORKER_LOST: (500, _SERVER),
    Code.GENERATION_FAILED: (500, _SERVER),
    Code.INTERNAL_ERROR: (500, _SERVER),
}
"""Status and `type` of each code. A profile may override a status (`Profile.statuses`)."""

_WORDLESS = frozenset({Code.RESPONSE_NOT_FOUND})
"""Codes for which OpenAI itself sends `code: null`."""


class OpenAIErrors(ErrorTable):
    """`{"error": {"message", "type", "param", "code"}}`; see https://platform.openai.com/docs/guides/error-codes."""

    SHAPES = SHAPES

    def envelope(self, refusal: Refusal, *, request_id: str | None = None) -> bytes:  # noqa: ARG002 - Anthropic's alone holds it
        error = {
            "message": refusal.message,
            "type": self.type_of(refusal.code),
            "param": refusal.param,
            "code": None if refusal.code in _WORDLESS else self.code(refusal.code),
            **refusal.details,
        }
        return msgspec.json.encode({"error": error})
