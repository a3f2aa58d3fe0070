"""`POST /v1/messages`, the answer: events as one message or as Anthropic's event stream.

Source: the Anthropic API reference, "Messages" and "Streaming Messages". Blocks come in the order in which the model
wrote them, one open at a time.
"""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, assert_never

import msgspec

from pocketserver.chat import (
    Event,
    Finished,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)
from pocketserver.wire import sse
from pocketserver.wire.anthropic_request import Display

SIGNATURE = "local"
"""What stands for a thinking block's signature. Nobody verifies it."""
_encode = msgspec.json.Encoder().encode
_UNFINISHED: Mapping[str, str | None] = {"stop_reason": None, "stop_sequence": None}
_STOP: Mapping[FinishReason, str] = {
    FinishReason.STOP: "end_turn",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.TOOL_CALLS: "tool_use",
}


ContextSize = Callable[[], int | None]
"""How many tokens the context of the model holds, None when nobody knows."""


class Opened(msgspec.Struct, frozen=True):
    """A block begins. `block` is its empty form, which the deltas fill."""

    block: Mapping[str, Any]


class Grown(msgspec.Struct, frozen=True):
    """More of the open block."""

    delta: Mapping[str, str]


class Closed(msgspec.Struct, frozen=True):
    """The open block is complete."""


Step = Opened | Grown | Closed


class Blocks:
    """Turns events into blocks; the same for an answer that is streamed and one that is not.

    White space before a call or after one makes no block: Anthropic's API refuses such a block when it comes back.
    """

    def __init__(self, *, request_id: str, display: Display) -> None:
        self._request_id = request_id
        self._display = display
        self._open: str | None = None
        self._opened = 0
        self._blank = ""

    def steps(self, event: Event) -> Iterator[Step]:
        match event:
            case TextDelta():
                yield from self._text(event.text)
            case ReasoningDelta():
                yield from self._thought(event.text)
            case ToolCallStarted():
                yield from self._begin("tool_use", self._call(event))
            case ToolCallDelta():
                if event.arguments:
                    yield Grown({"type": "input_json_delta", "partial_json": event.arguments})
            case Finished():
                yield from self._end()
            case _:
                assert_never(event)

    def _call(self, event: ToolCallStarted) -> Mapping[str, Any]:
        call_id = f"toolu_{self._request_id}_{event.index}"
        return {"type": "tool_use", "id": call_id, "name": event.name, "input": {}}

    def _text(self, text: str) -> Iterator[Step]:
        if self._open != "text":
            text = self._blank + text
            if not text.strip():
                self._blank = text
                return
            yield from self._begin("text", {"type": "text", "text": ""})
        yield Grown({"type": "text_delta", "text": text})

    def _thought(self, text: str) -> Iterator[Step]:
        if self._display is Display.NONE:
            return
        if self._open != "thinking":
            yield from self._begin("thinking", {"type": "thinking", "thinking": "", "signature": ""})
        if self._display is Display.SHOWN:
            yield Grown({"type": "thinking_delta", "thinking": text})

    def _begin(self, kind: str, block: Mapping[str, Any]) -> Iterator[Step]:
        yield from self._close()
        self._blank = ""
        self._open = kind
        self._opened += 1
        yield Opened(block)

    def _close(self) -> Iterator[Step]:
        if self._open == "thinking":
            yield Grown({"type": "signature_delta", "signature": SIGNATURE})
        if self._open is not None:
            yield Closed()
        self._open = None

    def _end(self) -> Iterator[Step]:
        """An answer without any block gets an empty text, which clients read unasked."""
        yield from self._close()
        if self._opened == 0:
            yield Opened({"type": "text", "text": ""})
            if self._blank:
                yield Grown({"type": "text_delta", "text": self._blank})
            yield Closed()


class Events:
    """Renders one answer as named events.

    `prompt_tokens` may be set until the stream begins. What was read from the cache is known only at the end, where
    the counts replace the first ones. `context_size` is asked at the end: an answer may have filled the context.
    """

    def __init__(
        self, *, request_id: str, model: str, display: Display, context_size: ContextSize = lambda: None
    ) -> None:
        self._request_id = request_id
        self._context_size = context_size
        self._model = model
        self._blocks = Blocks(request_id=request_id, display=display)
        self._index = 0
        self._began = False
        self.prompt_tokens = 0

    @property
    def first(self) -> bytes:
        self._began = True
        usage = Usage(prompt_tokens=self.prompt_tokens, completion_tokens=0)
        message = _message(self._request_id, self._model, content=[], stop=_UNFINISHED, usage=usage)
        return named("message_start", {"message": message})

    @property
    def last(self) -> bytes:
        """Only a complete answer gets this end."""
        return named("message_stop", {})

    @property
    def keep_alive(self) -> bytes:
        """The SDKs skip comments at any time, but raise for any event before the message's start."""
        return named("ping", {}) if self._began else sse.COMMENT

    def render(self, event: Event) -> bytes:
        data = b"".join(map(self._step, self._blocks.steps(event)))
        return data + self._finish(event) if isinstance(event, Finished) else data

    def _finish(self, finished: Finished) -> bytes:
        stop = stop_fields(finished, self._context_size())
        return named("message_delta", {"delta": stop, "usage": usage_fields(finished.usage)})

    def _step(self, step: Step) -> bytes:
        match step:
            case Opened():
                return named("content_block_start", {"index": self._index, "content_block": step.block})
            case Grown():
                return named("content_block_delta", {"index": self._index, "delta": step.delta})
            case Closed():
                self._index += 1
                return named("content_block_stop", {"index": self._index - 1})
            case _:
                assert_never(step)


def named(name: str, fields: Mapping[str, Any]) -> bytes:
    """One framed event. The SDKs skip events without a name, and read the type from the data."""
    return framed(name, _encode({"type": name, **fields}))


def framed(name: str, data: bytes) -> bytes:
    return b"event: " + name.encode() + b"\n" + sse.message(data)


class Document:
    """Collects the events of one answer into the message of a request that is not streamed.

    A call whose arguments were cut off is left out: its `input` could not be an object, and nobody should run it.
    `extra` members are put beside the others.
    """

    def __init__(
        self,
        *,
        request_id: str,
        model: str,
        display: Display,
        extra: Mapping[str, Any] = MappingProxyType({}),
        context_size: ContextSize = lambda: None,
    ) -> None:
        self._request_id = request_id
        self._model = model
        self.extra = extra
        self._blocks = Blocks(request_id=request_id, display=display)
        self._content: list[dict[str, Any]] = []
        self._pieces: list[str] = []
        self._context_size = context_size
        self._stop: Mapping[str, str | None] = _UNFINISHED
        self._usage: Usage | None = None

    def add(self, event: Event) -> None:
        for step in self._blocks.steps(event):
            self._take(step)
        if isinstance(event, Finished):
            self._stop = stop_fields(event, self._context_size())
            self._usage = event.usage

    def encode(self) -> bytes:
        assert self._usage is not None, "a complete stream ends with Finished"
        message = _message(self._request_id, self._model, self._content, self._stop, self._usage)
        return _encode({**message, **self.extra})

    def _take(self, step: Step) -> None:
        match step:
            case Opened():
                self._content.append(dict(step.block))
                self._pieces = []
            case Grown():
                self._grow(step.delta)
            case Closed():
                self._complete()
            case _:
                assert_never(step)

    def _grow(self, delta: Mapping[str, str]) -> None:
        if delta["type"] == "signature_delta":
            self._content[-1]["signature"] = delta["signature"]
        else:
            self._pieces.append(delta[_PIECE[delta["type"]]])

    def _complete(self) -> None:
        block, text = self._content[-1], "".join(self._pieces)
        if block["type"] != "tool_use":
            block[block["type"]] = text
            return
        try:
            block["input"] = msgspec.json.decode(text or "{}", type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError):
            self._content.pop()


_PIECE = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}


def usage_fields(usage: Usage) -> dict[str, Any]:
    """Counts as this API writes them: `input_tokens` are those that were not in the cache."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }


def _message(
    request_id: str, model: str, content: list[dict[str, Any]], stop: Mapping[str, str | None], usage: Usage
) -> dict[str, Any]:
    return {
        "id": "msg_" + request_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        **stop,
        "usage": {**usage_fields(usage), "service_tier": "standard"},
    }


def stop_fields(finished: Finished, context_size: int | None) -> dict[str, str | None]:
    """Why the answer ended. A stop string is named; it is no part of the text.

    A context that is full is another reason than the client's limit: agents shorten their conversation then.
    """
    usage = finished.usage
    if finished.reason is FinishReason.STOP and finished.stop_sequence is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": finished.stop_sequence}
    is_full = context_size is not None and usage.prompt_tokens + usage.completion_tokens >= context_size
    if finished.reason is FinishReason.LENGTH and is_full:
        return {"stop_reason": "model_context_window_exceeded", "stop_sequence": None}
    return {"stop_reason": _STOP[finished.reason], "stop_sequence": None}
