"""Every reason a request can fail, once. A wire API renders a code in its own shape from a table of its own."""

from enum import StrEnum


class Code(StrEnum):
    """The word that a client's program can compare. The sentence beside it is for the person."""

    INVALID_JSON = "invalid_json"
    MALFORMED_REQUEST = "malformed_request"
    INVALID_PARAMETER = "invalid_parameter"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    TOOLS_UNSUPPORTED = "tools_unsupported"
    TEMPLATE_UNSUPPORTED = "template_unsupported"
    MISSING_API_KEY = "missing_api_key"
    INVALID_API_KEY = "invalid_api_key"
    INSUFFICIENT_SCOPE = "insufficient_scope"
    INVALID_PAIRING_CODE = "invalid_pairing_code"
    HOST_NOT_ALLOWED = "host_not_allowed"
    ORIGIN_NOT_ALLOWED = "origin_not_allowed"
    PEER_NOT_LOCAL = "peer_not_local"
    UNKNOWN_ROUTE = "unknown_route"
    MODEL_NOT_FOUND = "model_not_found"
    RESPONSE_NOT_FOUND = "response_not_found"
    PREVIOUS_RESPONSE_NOT_FOUND = "previous_response_not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    REQUEST_TOO_LARGE = "request_too_large"
    UNSUPPORTED_ENCODING = "unsupported_encoding"
    TOO_MANY_ATTEMPTS = "too_many_attempts"
    MODEL_BUSY = "model_busy"
    QUEUE_FULL = "queue_full"
    REQUEST_CANCELLED = "request_cancelled"
    MODEL_NOT_LOADED = "model_not_loaded"
    HOST_GONE = "host_gone"
    DISCONNECTED_BY_HOST = "disconnected_by_host"
    INSUFFICIENT_MEMORY = "insufficient_memory"
    CONTEXT_ALLOCATION_FAILED = "context_allocation_failed"
    UPSTREAM_FAILED = "upstream_failed"
    UPSTREAM_UNREACHABLE = "upstream_unreachable"
    GENERATION_STALLED = "generation_stalled"
    WORKER_LOST = "worker_lost"
    GENERATION_FAILED = "generation_failed"
    INTERNAL_ERROR = "internal_error"


class Refusal(Exception):  # noqa: N818 - it is an answer, not always a fault
    """A request that is not (or no longer) answered: a code, a sentence that says what to do, and where it applies.

    `param` is the field at fault (`messages[0].content`); `retry_after` is in seconds; `details` are extra numbers for
    the error body (`prompt_tokens`, `context_size`); `allow` lists the methods that a 405 names.
    """

    def __init__(
        self,
        code: Code,
        message: str,
        *,
        param: str | None = None,
        retry_after: float | None = None,
        details: dict[str, int] | None = None,
        allow: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.retry_after = retry_after
        self.details = details or {}
        self.allow = allow


class StartupError(Exception):
    """What keeps a command from doing its work, as one line that says what to do. The command exits with 1."""


class UsageError(StartupError):
    """A setting or argument that cannot be. The command exits with 2."""
