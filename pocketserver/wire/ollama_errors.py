"""What the Ollama family makes of each error code: a status and `{"error": "text"}`, also as a line in mid-stream."""

from collections.abc import Mapping

import msgspec

from pocketserver.errors import Code, Refusal
from pocketserver.wire.error_table import ErrorTable

_TEXT = "error"

SHAPES: Mapping[Code, tuple[int, str]] = {
    Code.INVALID_JSON: (400, _TEXT),
    Code.MALFORMED_REQUEST: (400, _TEXT),
    Code.INVALID_PARAMETER: (400, _TEXT),
    Code.CONTEXT_LENGTH_EXCEEDED: (400, _TEXT),
    Code.TOOLS_UNSUPPORTED: (400, _TEXT),
    Code.TEMPLATE_UNSUPPORTED: (400, _TEXT),
    Code.MISSING_API_KEY: (401, _TEXT),
    Code.INVALID_API_KEY: (401, _TEXT),
    Code.INSUFFICIENT_SCOPE: (403, _TEXT),
    Code.INVALID_PAIRING_CODE: (403, _TEXT),
    Code.HOST_NOT_ALLOWED: (403, _TEXT),
    Code.ORIGIN_NOT_ALLOWED: (403, _TEXT),
    Code.PEER_NOT_LOCAL: (403, _TEXT),
    Code.UNKNOWN_ROUTE: (404, _TEXT),
    Code.MODEL_NOT_FOUND: (404, _TEXT),
    Code.RESPONSE_NOT_FOUND: (404, _TEXT),
    Code.PREVIOUS_RESPONSE_NOT_FOUND: (400, _TEXT),
    Code.METHOD_NOT_ALLOWED: (405, _TEXT),
    Code.REQUEST_TOO_LARGE: (413, _TEXT),
    Code.UNSUPPORTED_ENCODING: (415, _TEXT),
    Code.TOO_MANY_ATTEMPTS: (429, _TEXT),
    Code.MODEL_BUSY: (503, _TEXT),
    Code.QUEUE_FULL: (503, _TEXT),
    Code.REQUEST_CANCELLED: (503, _TEXT),
    Code.MODEL_NOT_LOADED: (503, _TEXT),
    Code.HOST_GONE: (503, _TEXT),
    Code.DISCONNECTED_BY_HOST: (503, _TEXT),
    Code.INSUFFICIENT_MEMORY: (500, _TEXT),
    Code.CONTEXT_ALLOCATION_FAILED: (500, _TEXT),
    Code.UPSTREAM_FAILED: (502, _TEXT),
    Code.UPSTREAM_UNREACHABLE: (503, _TEXT),
    Code.GENERATION_STALLED: (504, _TEXT),
    Code.WORKER_LOST: (500, _TEXT),
    Code.GENERATION_FAILED: (500, _TEXT),
    Code.INTERNAL_ERROR: (500, _TEXT),
}
"""Status of each code. This family has no word for an error's type; the text is all there is."""

_OWN_WORDS: Mapping[Code, str] = {
    # two blanks, as Ollama writes it: programs compare the text
    Code.QUEUE_FULL: "server busy, please try again.  maximum pending requests exceeded",
}
"""Sentences that clients of this family look for, in place of ours."""


class OllamaErrors(ErrorTable):
    """`{"error": "text"}`, the only shape that Ollama's clients read."""

    SHAPES = SHAPES

    def envelope(self, refusal: Refusal, *, request_id: str | None = None) -> bytes:  # noqa: ARG002 - the shape has no place for it
        return msgspec.json.encode({"error": _OWN_WORDS.get(refusal.code, refusal.message)})
