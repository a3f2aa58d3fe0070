"""Every fault the simulator can provoke, once: its name, what it does, and where it acts."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from pocketserver.errors import Code


class Place(StrEnum):
    """Where a fault acts: in place of the answer, before it, in mid-stream, or on the bytes of the response."""

    REFUSAL = "refusal"
    BEFORE = "before"
    ANSWER = "answer"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One kind of fault. `needs` are the fields without which it means nothing."""

    summary: str
    place: Place
    needs: tuple[str, ...] = ()


SENTENCES: Mapping[Code, tuple[str, float | None]] = {
    Code.INVALID_JSON: ("The body is not valid JSON.", None),
    Code.MALFORMED_REQUEST: ("The body must be a JSON object with `messages`.", None),
    Code.INVALID_PARAMETER: ("A field of the body is not valid.", None),
    Code.CONTEXT_LENGTH_EXCEEDED: (
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens.",
        None,
    ),
    Code.TOOLS_UNSUPPORTED: ("The loaded model's chat template cannot express tool calls.", None),
    Code.TEMPLATE_UNSUPPORTED: ("The model's chat template could not be applied to these messages.", None),
    Code.MISSING_API_KEY: ("Send the API key as `Authorization: Bearer sk-…`.", None),
    Code.INVALID_API_KEY: ("This API key is not valid here.", None),
    Code.INSUFFICIENT_SCOPE: ("This key may not use this route.", None),
    Code.INVALID_PAIRING_CODE: ("This pairing code is wrong, used, or older than two minutes.", None),
    Code.HOST_NOT_ALLOWED: ("This server does not answer to that Host name.", None),
    Code.ORIGIN_NOT_ALLOWED: ("Pages of that origin may not use this server.", None),
    Code.PEER_NOT_LOCAL: ("Only devices on the local network may use this server.", None),
    Code.UNKNOWN_ROUTE: ("There is no such endpoint here.", None),
    Code.MODEL_NOT_FOUND: ("The model does not exist here or is not loaded.", None),
    Code.RESPONSE_NOT_FOUND: ("The response does not exist here.", None),
    Code.PREVIOUS_RESPONSE_NOT_FOUND: ("The previous response does not exist here.", None),
    Code.METHOD_NOT_ALLOWED: ("This endpoint takes another method.", None),
    Code.REQUEST_TOO_LARGE: ("The body is larger than 4,194,304 bytes. Send less text in one request.", None),
    Code.UNSUPPORTED_ENCODING: ("The body's Content-Encoding is not understood.", None),
    Code.TOO_MANY_ATTEMPTS: ("Too many wrong API keys came from this address.", 6),
    Code.MODEL_BUSY: ("The model is answering another request. Try again shortly.", 1),
    Code.QUEUE_FULL: ("Too many requests are running or waiting already. Try again later.", 5),
    Code.REQUEST_CANCELLED: ("The generation was cancelled on the server. Send it again to retry.", None),
    Code.MODEL_NOT_LOADED: ("No model is loaded.", 5),
    Code.HOST_GONE: ("The room's host is gone.", 5),
    Code.DISCONNECTED_BY_HOST: ("The room's host disconnected this client.", 5),
    Code.INSUFFICIENT_MEMORY: ("Not enough memory for the model.", None),
    Code.CONTEXT_ALLOCATION_FAILED: ("Not enough memory for the context.", None),
    Code.UPSTREAM_FAILED: ("The server behind this one answered with an error.", None),
    Code.UPSTREAM_UNREACHABLE: ("The server behind this one cannot be reached.", None),
    Code.GENERATION_STALLED: ("The model made no progress for 120 seconds; it is being restarted.", 5),
    Code.WORKER_LOST: ("The model process ended while it was answering.", None),
    Code.GENERATION_FAILED: ("The generation failed.", None),
    Code.INTERNAL_ERROR: ("Something went wrong inside the server.", None),
}
"""What a server says with each code, and the seconds of its Retry-After."""

_KINDS: Mapping[str, Fault] = {
    "refuse": Fault(
        summary="answer with the status and body of `code`, before any header", place=Place.REFUSAL, needs=("code",)
    ),
    "rate_limit": Fault(
        summary="429 model_busy with Retry-After (`retry_after`, 1 second when absent)", place=Place.REFUSAL
    ),
    "rate_limit_without_hint": Fault(summary="429 model_busy without Retry-After", place=Place.REFUSAL),
    "delay_headers": Fault(summary="wait `seconds` before the headers", place=Place.BEFORE, needs=("seconds",)),
    "delay_first_token": Fault(
        summary="send the headers, then wait `seconds` before the first token", place=Place.ANSWER, needs=("seconds",)
    ),
    "delay_tokens": Fault(summary="wait `seconds` before every token", place=Place.ANSWER, needs=("seconds",)),
    "stall": Fault(summary="say nothing more, for ever, after `after_tokens` tokens", place=Place.ANSWER),
    "stall_headers": Fault(summary="accept the request and never answer it", place=Place.BEFORE),
    "drop_before_headers": Fault(summary="close the connection in place of an answer", place=Place.BEFORE),
    "drop_inside_headers": Fault(summary="close the connection in the middle of the headers", place=Place.BYTES),
    "drop_after_headers": Fault(summary="close the connection right after the headers", place=Place.BYTES),
    "drop_after_tokens": Fault(
        summary="close the connection after `after_tokens` tokens; what is not streamed gets no headers",
        place=Place.ANSWER,
        needs=("after_tokens",),
    ),
    "drop_inside_character": Fault(
        summary="close the connection between the bytes of one character (the reply begins with one)",
        place=Place.BYTES,
    ),
    "drop_inside_line": Fault(
        summary="close the connection in the middle of the first line with content", place=Place.BYTES
    ),
    "error_chunk": Fault(
        summary="end the stream with the error `code` after `after_tokens` tokens (internal_error when absent)",
        place=Place.ANSWER,
    ),
    "truncated_json": Fault(
        summary="end the response as usual, with its JSON (a stream's last content line) cut in half", place=Place.BYTES
    ),
    "missing_done": Fault(
        summary="leave out the stream's last message: [DONE], message_stop, or the line with done", place=Place.BYTES
    ),
    "duplicate_chunks": Fault(summary="send every content message of the stream twice", place=Place.BYTES),
    "out_of_order_chunks": Fault(summary="swap the second and third content message", place=Place.BYTES),
    "wrong_content_type": Fault(summary="say Content-Type: text/html", place=Place.BYTES),
}

FAULTS: Mapping[str, Fault] = {
    **_KINDS,
    **{
        code.value: Fault(summary=f"answer with the profile's row for {code.value}: {sentence}", place=Place.REFUSAL)
        for code, (sentence, _) in SENTENCES.items()
    },
}
"""By name. Every error code is the name of a fault too."""
