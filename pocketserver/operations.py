"""Every operation that this program can serve, as the API document and the documentation's tables tell of it."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from pocketserver.errors import Code
from pocketserver.wire import (
    anthropic_request,
    ollama_embed,
    ollama_progress,
    ollama_request,
    ollama_store,
    openai_chat_request,
    openai_completions_request,
    openai_embeddings,
    openai_responses_request,
)

SSE, NDJSON, TEXT = "text/event-stream", "application/x-ndjson", "text/plain"

GATE: frozenset[Code] = frozenset(
    {
        Code.HOST_NOT_ALLOWED,
        Code.ORIGIN_NOT_ALLOWED,
        Code.PEER_NOT_LOCAL,
        Code.UNKNOWN_ROUTE,
        Code.METHOD_NOT_ALLOWED,
        Code.REQUEST_TOO_LARGE,
        Code.UNSUPPORTED_ENCODING,
        Code.UPSTREAM_FAILED,
        Code.INTERNAL_ERROR,
    }
)
"""What any operation may be refused for. A server that is its own upstream is found out at the gate as well."""
KEYS: frozenset[Code] = frozenset(
    {Code.MISSING_API_KEY, Code.INVALID_API_KEY, Code.INSUFFICIENT_SCOPE, Code.TOO_MANY_ATTEMPTS}
)
"""What a missing or wrong key is refused with."""
READS: frozenset[Code] = frozenset({Code.INVALID_PARAMETER, Code.MODEL_NOT_FOUND})
BODY: frozenset[Code] = frozenset({Code.INVALID_JSON, Code.MALFORMED_REQUEST, Code.INVALID_PARAMETER})
STORED: frozenset[Code] = frozenset({Code.RESPONSE_NOT_FOUND, Code.INVALID_PARAMETER})
MODEL: frozenset[Code] = frozenset(Code) - GATE - KEYS - {Code.RESPONSE_NOT_FOUND, Code.PREVIOUS_RESPONSE_NOT_FOUND}
"""Everything that may go wrong with a request to a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path.

    `body` is the type that its JSON body is read as, `needs` are members that it must have beyond what that type says.
    `members` are those that every answer in JSON has. `streams` is the media type of a streamed answer, which comes
    with `stream: true`, or by itself with `streams_unasked`. `fails` are the codes of its refusals beyond the gate's.
    """

    method: str
    path: str
    summary: str
    body: type[msgspec.Struct] | None = None
    needs: Sequence[str] = ()
    members: Sequence[str] = ()
    streams: str | None = None
    streams_unasked: bool = False
    fails: frozenset[Code] = frozenset()
    answers: str = "application/json"
    query: Sequence[tuple[str, str]] = ()


OPERATIONS: Sequence[Operation] = (
    Operation(method="get", path="/", summary="What this server is, for people and probes.", answers=TEXT),
    Operation(method="get", path="/health", summary="Liveness and state; shows more with the key."),
    Operation(method="get", path="/metrics", summary="Figures for Prometheus.", answers=TEXT),
    Operation(
        method="get",
        path="/v1/models",
        summary="The models, in OpenAI's shape, or in Anthropic's for its clients.",
        members=("data",),
        query=(
            ("limit", "entries in a page of Anthropic's list, 1 to 1000"),
            ("after_id", "the page behind this model"),
            ("before_id", "the page before this model"),
        ),
        fails=READS,
    ),
    Operation(method="get", path="/v1/models/{id}", summary="One model.", members=("id",), fails=READS),
    Operation(
        method="post",
        path="/v1/chat/completions",
        summary="Chat completion (OpenAI).",
        body=openai_chat_request.Body,
        members=("id", "object", "created", "model", "choices", "usage"),
        streams=SSE,
        fails=MODEL,
    ),
    Operation(
        method="post",
        path="/v1/completions",
        summary="Text completion (OpenAI, legacy).",
        body=openai_completions_request.Body,
        needs=("prompt",),
        members=("id", "object", "created", "model", "choices", "usage"),
        streams=SSE,
        fails=MODEL,
    ),
    Operation(
        method="post",
        path="/v1/responses",
        summary="Response (OpenAI).",
        body=openai_responses_request.Body,
        members=("id", "object", "created_at", "model", "status", "output"),
        streams=SSE,
        fails=MODEL | {Code.PREVIOUS_RESPONSE_NOT_FOUND},
    ),
    Operation(
        method="get",
        path="/v1/responses/{id}",
        summary="A stored response.",
        members=("id", "object", "status", "output"),
        query=(("stream", "true is refused: a stored response is not streamed again"),),
        fails=STORED,
    ),
    Operation(
        method="delete",
        path="/v1/responses/{id}",
        summary="Delete a stored response.",
        members=("id", "object", "deleted"),
        fails=STORED,
    ),
    Operation(
        method="get",
        path="/v1/responses/{id}/input_items",
        summary="What a stored response answered.",
        members=("object", "data", "first_id", "last_id", "has_more"),
        query=(
            ("limit", "1 to 100"),
            ("order", "asc or desc"),
            ("after", "the items behind this one"),
        ),
        fails=STORED,
    ),
    Operation(
        method="post",
        path="/v1/embeddings",
        summary="Vectors of texts (OpenAI).",
        body=openai_embeddings.Body,
        needs=("input",),
        members=("object", "data", "model", "usage"),
        fails=MODEL,
    ),
    Operation(
        method="post",
        path="/v1/messages",
        summary="Message (Anthropic).",
        body=anthropic_request.Body,
        needs=("max_tokens",),
        members=("id", "type", "role", "model", "content", "stop_reason", "usage"),
        streams=SSE,
        fails=MODEL,
    ),
    Operation(
        method="post",
        path="/v1/messages/count_tokens",
        summary="Prompt tokens of a message (Anthropic).",
        body=anthropic_request.Body,
        members=("input_tokens",),
        fails=MODEL,
    ),
    Operation(
        method="post",
        path="/v1/explain",
        summary="What a body of any generating API would become, without generating.",
        members=("object", "api", "model", "prompt", "prompt_tokens", "fits", "problems", "queue", "tokens"),
        query=(
            ("api", "chat, responses, messages, completions, ollama_chat or ollama_generate; told by the fields else"),
        ),
        fails=MODEL | {Code.PREVIOUS_RESPONSE_NOT_FOUND},
    ),
    Operation(method="get", path="/api/version", summary="The version (Ollama).", members=("version",)),
    Operation(
        method="post",
        path="/api/chat",
        summary="Chat (Ollama).",
        body=ollama_request.ChatBody,
        members=("model", "created_at", "message", "done"),
        streams=NDJSON,
        streams_unasked=True,
        fails=MODEL,
    ),
    Operation(
        method="post",
        path="/api/generate",
        summary="Generate (Ollama).",
        body=ollama_request.GenerateBody,
        members=("model", "created_at", "response", "done"),
        streams=NDJSON,
        streams_unasked=True,
        fails=MODEL,
    ),
    Operation(
        method="post",
        path="/api/embed",
        summary="Vectors of texts (Ollama).",
        body=ollama_embed.EmbedBody,
        members=("model", "embeddings"),
        fails=MODEL,
    ),
    Operation(
        method="post",
        path="/api/embeddings",
        summary="The vector of one text (Ollama, older).",
        body=ollama_embed.EmbeddingsBody,
        members=("embedding",),
        fails=MODEL,
    ),
    Operation(
        method="post",
        path="/api/create",
        summary="Make a model over another one (Ollama).",
        body=ollama_progress.CreateBody,
        streams=NDJSON,
        streams_unasked=True,
        fails=MODEL,
    ),
    Operation(
        method="post",
        path="/api/show",
        summary="What a model is made of (Ollama).",
        body=ollama_store.ShowBody,
        members=("details", "model_info", "capabilities"),
        fails=MODEL,
    ),
    Operation(method="get", path="/api/ps", summary="Models in memory (Ollama).", members=("models",)),
    Operation(method="get", path="/api/tags", summary="Installed models (Ollama).", members=("models",)),
    Operation(
        method="post",
        path="/api/pull",
        summary="Fetch a model of the catalogue (Ollama).",
        body=ollama_progress.PullBody,
        streams=NDJSON,
        streams_unasked=True,
        fails=MODEL,
    ),
    Operation(
        method="post",
        path="/api/copy",
        summary="Give a model a second name (Ollama).",
        body=ollama_store.CopyBody,
        answers="",
        fails=MODEL,
    ),
    Operation(
        method="delete",
        path="/api/delete",
        summary="Remove a model (Ollama).",
        body=ollama_store.NameBody,
        answers="",
        fails=MODEL,
    ),
    Operation(
        method="get",
        path="/api/system/ai/providers",
        summary="Where this server listens; the shape is approximate.",
        members=("providers",),
    ),
)
