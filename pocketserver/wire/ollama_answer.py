"""The answers of `/api/chat` and `/api/generate`: events as lines, or collected into one document.

Source: Ollama's API documentation. Durations are in nanoseconds and measured; they stand on the last line only.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol, assert_never

import msgspec

from pocketserver.chat import (
    Event,
    Finished,
    FinishReason,
    JsonValue,
    ReasoningDelta,
    TextDelta,
    TokenScore,
    ToolCallDelta,
    ToolCallStarted,
)

_encode = msgspec.json.Encoder().encode
_REASONS: Mapping[FinishReason, str] = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.TOOL_CALLS: "stop",
}
"""Ollama has no reason of its own for an answer that ends in calls."""


def rfc3339(unix_seconds: float) -> str:
    """UTC with a fraction, as Go writes it."""
    moment = datetime.fromtimestamp(unix_seconds, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond:06}000Z"


def nanoseconds(seconds: float) -> int:
    return max(0, round(seconds * 1e9))


class Shape(Protocol):
    """Where an API keeps what was said."""

    def __call__(
        self, text: str = "", *, thinking: str = "", calls: Sequence[Mapping[str, JsonValue]] = ()
    ) -> dict[str, Any]: ...


def chat_shape(text: str = "", *, thinking: str = "", calls: Sequence[Mapping[str, JsonValue]] = ()) -> dict[str, Any]:
    """`message`: the role on every line, `content` always, the rest when there is some."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if thinking:
        message["thinking"] = thinking
    if calls:
        message["tool_calls"] = calls
    return {"message": message}


def generate_shape(
    text: str = "",
    *,
    thinking: str = "",
    calls: Sequence[Mapping[str, JsonValue]] = (),  # noqa: ARG001 - this route takes no tools
) -> dict[str, Any]:
    return {"response": text, "thinking": thinking} if thinking else {"response": text}


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """What does not change in one answer. `model` is the name as the client wrote it, `arrived` on the monotonic clock.

    `was_loaded` says that nobody waited for the model to be loaded. `context` makes the numbers that continue the
    conversation from what the model said; None leaves them out. `extra` stands in a whole document only.
    """

    shape: Shape
    model: str
    created: float
    arrived: float
    was_loaded: bool = True
    scored: bool = False
    context: Callable[[str], list[int]] | None = None
    extra: Mapping[str, JsonValue] = field(default_factory=dict)

    @property
    def fields(self) -> dict[str, Any]:
        return {"model": self.model, "created_at": rfc3339(self.created)}

    def end(self, finished: Finished, said: str) -> dict[str, Any]:
        """The fields that only the last line has."""
        timings, usage = finished.timings, finished.usage
        load = 0.0 if self.was_loaded else timings.load_seconds
        parts = load + timings.prompt_seconds + timings.generation_seconds
        context = {"context": self.context(said)} if self.context else {}
        return {
            "done": True,
            "done_reason": _REASONS[finished.reason],
            **context,
            # a simulated device's time may run faster than ours
            "total_duration": nanoseconds(max(time.monotonic() - self.arrived, parts)),
            "load_duration": nanoseconds(load),
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": nanoseconds(timings.prompt_seconds),
            "eval_count": usage.completion_tokens,
            "eval_duration": nanoseconds(timings.generation_seconds),
        }


class Lines:
    """Renders one answer's events as lines. A call is one line, once it is whole."""

    def __init__(self, heading: Heading) -> None:
        self._heading = heading
        self._head = _encode(heading.fields)[:-1] + b","
        self._said: list[str] = []
        self._calls = _Calls()

    def render(self, event: Event) -> bytes:
        shape = self._heading.shape
        match event:
            case TextDelta():
                if self._heading.context:
                    self._said.append(event.text)
                return self._line(shape(event.text), event.scores)
            case ReasoningDelta():
                return self._line(shape(thinking=event.text))
            case ToolCallStarted():
                ended = self._calls.ended()
                self._calls.start(event)
                return self._call_line(ended)
            case ToolCallDelta():
                self._calls.add(event)
                return b""
            case Finished():
                return self._call_line(self._calls.ended()) + self._last(event)
            case _:
                assert_never(event)

    def _call_line(self, calls: Sequence[Mapping[str, JsonValue]]) -> bytes:
        return self._line(self._heading.shape(calls=calls)) if calls else b""

    def _line(self, fields: Mapping[str, JsonValue], scores: tuple[TokenScore, ...] = ()) -> bytes:
        if self._heading.scored and scores:
            fields = {**fields, "logprobs": _logprobs(scores)}
        return self._head + _encode(fields)[1:-1] + b',"done":false}\n'

    def _last(self, event: Finished) -> bytes:
        end = self._heading.end(event, "".join(self._said))
        return self._head + _encode({**self._heading.shape(), **end})[1:] + b"\n"


class Document:
    """Collects one answer's events into the single document of a request that is not streamed."""

    def __init__(self, heading: Heading) -> None:
        self._heading = heading
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._scores: list[TokenScore] = []
        self._called: list[dict[str, Any]] = []
        self._calls = _Calls()
        self._finished: Finished | None = None

    def add(self, event: Event) -> None:
        match event:
            case TextDelta():
                self._text.append(event.text)
                self._scores.extend(event.scores)
            case ReasoningDelta():
                self._thinking.append(event.text)
            case ToolCallStarted():
                self._called += self._calls.ended()
                self._calls.start(event)
            case ToolCallDelta():
                self._calls.add(event)
            case Finished():
                self._called += self._calls.ended()
                self._finished = event
            case _:
                assert_never(event)

    def encode(self) -> bytes:
        assert self._finished is not None, "a complete stream ends with Finished"
        heading, text = self._heading, "".join(self._text)
        said = heading.shape(text, thinking="".join(self._thinking), calls=self._called)
        scores = {"logprobs": _logprobs(self._scores)} if heading.scored else {}
        return _encode({**heading.fields, **said, **scores, **heading.end(self._finished, text), **heading.extra})


class _Calls:
    """The call that is being written. One whose arguments never became an object is not a call."""

    def __init__(self) -> None:
        self._started: ToolCallStarted | None = None
        self._arguments: list[str] = []
        self._count = 0

    def start(self, event: ToolCallStarted) -> None:
        self._started = event

    def add(self, event: ToolCallDelta) -> None:
        self._arguments.append(event.arguments)

    def ended(self) -> list[dict[str, Any]]:
        """The call so far, if there is one, and ready for the next."""
        started, text = self._started, "".join(self._arguments).strip() or "{}"
        self._started, self._arguments = None, []
        if started is None or not _is_object(text):
            return []
        self._count += 1
        # the model's own order and spelling of numbers, but none of its line breaks
        arguments = msgspec.Raw(msgspec.json.format(text.encode(), indent=-1))
        function = {"index": self._count - 1, "name": started.name, "arguments": arguments}
        return [{"id": started.id, "function": function}]


def _is_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, RecursionError):
        return False


def _logprobs(scores: Sequence[TokenScore]) -> list[dict[str, Any]]:
    return [
        {**_score(score), "top_logprobs": [*map(_score, score.top)]} if score.top else _score(score) for score in scores
    ]


def _score(score: TokenScore) -> dict[str, Any]:
    return {"token": score.token, "logprob": max(score.logprob, -9999.0), "bytes": list(score.bytes)}
