"""`POST /v1/chat/completions`, the answer: events as one document or as chunks.

Source: the OpenAI API reference, "The chat completion object" and "The chat completion chunk object". Reasoning is
written as `reasoning_content`, the name that most clients read.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, assert_never

import msgspec

from pocketserver.chat import (
    Event,
    Finished,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    TokenScore,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)
from pocketserver.wire import sse
from pocketserver.wire.context import added

_encode = msgspec.json.Encoder().encode
_FINISH: Mapping[FinishReason, str] = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.TOOL_CALLS: "tool_calls",
}


def completion_id(request_id: str) -> str:
    return "chatcmpl-" + request_id


def usage_fields(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


class Chunks:
    """Renders the events of one or more choices as framed chunks. Everything that does not change is encoded once.

    Choices come one after another: `Finished` ends each. The role comes first in each, nowhere else; `id`, `type` and
    `name` of a call only in its first fragment: the SDKs join repeated strings. `usage` only when the client asked.
    """

    def __init__(
        self, *, request_id: str, created: int, model: str, include_usage: bool, scored: bool, choices: int = 1
    ) -> None:
        head = {"id": completion_id(request_id), "object": "chat.completion.chunk", "created": created, "model": model}
        self._head = b"data: " + _encode(head)[:-1]
        self._include_usage = include_usage
        self._scored = scored
        scores = b',"logprobs":null' if scored else b""
        tail = b',"usage":null' if include_usage else b""
        self._choices = choices
        self._begin(0)
        self._text_end = b"}" + scores + b',"finish_reason":null}]' + tail + b"}\n\n"
        self._delta_end = self._text_end[1:]
        self._tail = tail
        self._usage: Usage | None = None

    def _begin(self, index: int) -> None:
        self._index = index
        self._delta = self._head + b',"choices":[{"index":%d,"delta":' % index
        self._text = self._delta + b'{"content":'

    @property
    def first(self) -> bytes:
        return self._delta + b'{"role":"assistant","content":""}' + self._delta_end

    @property
    def keep_alive(self) -> bytes:
        return sse.COMMENT

    @property
    def last(self) -> bytes:
        """The usage chunk, when it was asked for, and the end mark. Only a complete answer gets them."""
        end = sse.message(b"[DONE]")
        if not self._include_usage or self._usage is None:
            return end
        return self._head + b',"choices":[],"usage":' + _encode(usage_fields(self._usage)) + b"}\n\n" + end

    def render(self, event: Event) -> bytes:
        match event:
            case TextDelta():
                if self._scored:
                    return self._scored_text(event)
                return self._text + _encode(event.text) + self._text_end
            case ReasoningDelta():
                return self._delta + b'{"reasoning_content":' + _encode(event.text) + self._text_end
            case ToolCallStarted() | ToolCallDelta():
                return self._delta + _encode({"tool_calls": [_fragment(event)]}) + self._delta_end
            case Finished():
                return self._finished(event)
            case _:
                assert_never(event)

    def _finished(self, event: Finished) -> bytes:
        """The end of a choice, and the beginning of the next one."""
        self._usage = added(self._usage, event.usage)
        reason = _encode(_FINISH[event.reason])
        scores = b',"logprobs":null' if self._scored else b""
        end = self._delta + b"{}" + scores + b',"finish_reason":' + reason + b"}]" + self._tail + b"}\n\n"
        if self._index + 1 == self._choices:
            return end
        self._begin(self._index + 1)
        return end + self.first

    def _scored_text(self, event: TextDelta) -> bytes:
        scores = b',"logprobs":' + _encode(_logprobs(event.scores)) + b',"finish_reason":null}]'
        return self._text + _encode(event.text) + b"}" + scores + self._tail + b"}\n\n"


class Document:
    """Collects the events of one or more choices into the single document of a request that is not streamed.

    `extra` members are put beside the others.
    """

    def __init__(
        self,
        *,
        request_id: str,
        created: int,
        model: str,
        scored: bool,
        extra: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.extra = extra
        self._request_id = request_id
        self._created = created
        self._model = model
        self._scored = scored
        self._choices: list[dict[str, Any]] = []
        self._usage: Usage | None = None
        self._choice: _Choice | None = None
        """The one that is being written."""

    def add(self, event: Event) -> None:
        choice = self._choice = self._choice or _Choice()
        if not isinstance(event, Finished):
            choice.add(event)
            return
        self._usage = added(self._usage, event.usage)
        self._choices.append(choice.document(len(self._choices), event, scored=self._scored))
        self._choice = None

    def encode(self) -> bytes:
        assert self._usage is not None, "a complete stream ends with Finished"
        return _encode(
            {
                "id": completion_id(self._request_id),
                "object": "chat.completion",
                "created": self._created,
                "model": self._model,
                "system_fingerprint": None,
                "choices": self._choices,
                "usage": usage_fields(self._usage),
                **self.extra,
            }
        )


class _Choice:
    """Collects one choice."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, tuple[ToolCallStarted, list[str]]] = {}
        self._scores: list[TokenScore] = []

    def add(self, event: TextDelta | ReasoningDelta | ToolCallStarted | ToolCallDelta) -> None:
        match event:
            case TextDelta():
                self._text.append(event.text)
                self._scores.extend(event.scores)
            case ReasoningDelta():
                self._reasoning.append(event.text)
            case ToolCallStarted():
                self._calls[event.index] = (event, [])
            case ToolCallDelta():
                self._calls[event.index][1].append(event.arguments)
            case _:
                assert_never(event)

    def document(self, index: int, finished: Finished, *, scored: bool) -> dict[str, Any]:
        return {
            "index": index,
            "message": self._message(),
            "logprobs": _logprobs(tuple(self._scores)) if scored else None,
            "finish_reason": _FINISH[finished.reason],
        }

    def _message(self) -> dict[str, Any]:
        text = "".join(self._text)
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        if self._calls:
            message["content"] = text or None
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": "".join(arguments)}}
                for call, arguments in self._calls.values()
            ]
        return message


def _fragment(event: ToolCallStarted | ToolCallDelta) -> dict[str, Any]:
    if isinstance(event, ToolCallDelta):
        return {"index": event.index, "function": {"arguments": event.arguments}}
    return {
        "index": event.index,
        "id": event.id,
        "type": "function",
        "function": {"name": event.name, "arguments": ""},
    }


def _logprobs(scores: tuple[TokenScore, ...]) -> dict[str, Any]:
    return {
        "content": [{**_score(score), "top_logprobs": [*map(_score, score.top)]} for score in scores],
        "refusal": None,
    }


def _score(score: TokenScore) -> dict[str, Any]:
    return {"token": score.token, "logprob": max(score.logprob, -9999.0), "bytes": list(score.bytes)}
