"""`POST /v1/completions`, the answer: events as one document or as chunks, scores as parallel arrays.

Source: the OpenAI API reference, "The completion object". Choices come one after another; `Finished` ends each.
"""

import codecs
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, assert_never

import msgspec

from pocketserver.chat import (
    Event,
    Finished,
    FinishReason,
    GenerationRequest,
    ReasoningDelta,
    TextDelta,
    TokenScore,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)
from pocketserver.wire import sse

_encode = msgspec.json.Encoder().encode
_FINISH: Mapping[FinishReason, str] = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.TOOL_CALLS: "stop",  # a raw prompt knows no calls
}
_LEAST_LOGPROB = -9999.0


class Scores:
    """The scores of one choice in the older shape: parallel arrays with one entry for each token.

    `offset` is where the first token stands in the prompt and the answer as one text; `most` is how many alternatives
    each token has. Tokens whose texts are equal share one entry of a map: a limit of the format.
    """

    def __init__(self, offset: int, most: int) -> None:
        self._offset = offset
        self._most = most
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def arrays(self, scores: Sequence[TokenScore]) -> dict[str, Any] | None:
        """The next tokens' entries; None where there are none."""
        if not scores:
            return None
        return {
            "tokens": [_text(score) for score in scores],
            "token_logprobs": [_logprob(score) for score in scores],
            "top_logprobs": [self._alternatives(score) for score in scores],
            "text_offset": [self._place(score) for score in scores],
        }

    def _alternatives(self, score: TokenScore) -> dict[str, float | None] | None:
        if score.is_first:
            return None
        found = {_text(other): _logprob(other) for other in score.top[: self._most]}
        return found if _text(score) in found else {**found, _text(score): _logprob(score)}

    def _place(self, score: TokenScore) -> int:
        """A piece of a character stands where its character does."""
        place = self._offset
        self._offset += len(self._decoder.decode(score.bytes))
        return place


class Tally:
    """Counts of a whole request: each prompt once, what was written of all answers."""

    def __init__(self, choices: int) -> None:
        self._choices = choices
        self._finished = 0
        self.usage: Usage | None = None

    def add(self, usage: Usage) -> None:
        before = self.usage or Usage(prompt_tokens=0, completion_tokens=0)
        is_first = self._finished % self._choices == 0
        self._finished += 1
        self.usage = Usage(
            prompt_tokens=before.prompt_tokens + (usage.prompt_tokens if is_first else 0),
            cached_tokens=before.cached_tokens + (usage.cached_tokens if is_first else 0),
            completion_tokens=before.completion_tokens + usage.completion_tokens,
        )


class Chunks:
    """Renders the events of all choices as framed chunks. Everything that does not change is encoded once.

    `usage` only when the client asked: null in each chunk, and the counts in one more at the end.
    """

    first = b""
    keep_alive = sse.COMMENT

    def __init__(
        self,
        requests: Sequence[GenerationRequest],
        *,
        choices: int,
        created: int,
        model: str,
        include_usage: bool,
    ) -> None:
        head = _head(requests[0].id, created, model)
        self._head = b"data: " + _encode(head)[:-1]
        self._tail = (b',"usage":null' if include_usage else b"") + b"}\n\n"
        self._include_usage = include_usage
        self._requests = requests
        self._choices = choices
        self._tally = Tally(choices)
        self._begin(0)

    @property
    def usage(self) -> Usage | None:
        """The counts of the answers that are whole."""
        return self._tally.usage

    @property
    def last(self) -> bytes:
        end = sse.message(b"[DONE]")
        if not self._include_usage or self.usage is None:
            return end
        return self._head + b',"choices":[],"usage":' + _encode(_usage_fields(self.usage)) + b"}\n\n" + end

    def render(self, event: Event) -> bytes:
        match event:
            case TextDelta():
                scores = b"null" if self._scores is None else _encode(self._scores.arrays(event.scores))
                return self._text + _encode(event.text) + b',"logprobs":' + scores + self._goes_on
            case Finished():
                return self._finished(event)
            case ReasoningDelta() | ToolCallStarted() | ToolCallDelta():
                return b""  # a raw prompt knows neither
            case _:
                assert_never(event)

    def _begin(self, index: int) -> None:
        self._index = index
        self._text = self._head + b',"choices":[{"index":%d,"text":' % index
        self._goes_on = b',"finish_reason":null}]' + self._tail
        self._scores = _scores_of(self._requests, index // self._choices)

    def _finished(self, event: Finished) -> bytes:
        self._tally.add(event.usage)
        end = b'"","logprobs":null,"finish_reason":' + _encode(_FINISH[event.reason]) + b"}]" + self._tail
        data = self._text + end
        self._begin(self._index + 1)
        return data


class Document:
    """Collects the events of all choices into the single document of a request that is not streamed.

    `extra` members are put beside the others.
    """

    def __init__(
        self,
        requests: Sequence[GenerationRequest],
        *,
        choices: int,
        created: int,
        model: str,
        extra: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._head = _head(requests[0].id, created, model)
        self._extra = extra
        self._requests = requests
        self._per_prompt = choices
        self._tally = Tally(choices)
        self._choices: list[dict[str, Any]] = []
        self._begin()

    @property
    def usage(self) -> Usage | None:
        """The counts of the answers that are whole."""
        return self._tally.usage

    def add(self, event: Event) -> None:
        match event:
            case TextDelta():
                self._text.append(event.text)
                self._scored.extend(event.scores)
            case Finished():
                self._finished(event)
            case ReasoningDelta() | ToolCallStarted() | ToolCallDelta():
                pass  # a raw prompt knows neither
            case _:
                assert_never(event)

    def encode(self) -> bytes:
        assert self.usage is not None, "a complete stream ends with Finished"
        return _encode(
            {
                **self._head,
                "system_fingerprint": None,
                "choices": self._choices,
                "usage": _usage_fields(self.usage),
                **self._extra,
            }
        )

    def _begin(self) -> None:
        self._text: list[str] = []
        self._scored: list[TokenScore] = []

    def _finished(self, event: Finished) -> None:
        self._tally.add(event.usage)
        index = len(self._choices)
        scores = _scores_of(self._requests, index // self._per_prompt)
        self._choices.append(
            {
                "index": index,
                "text": "".join(self._text),
                "logprobs": None if scores is None else scores.arrays(self._scored) or _NO_SCORES,
                "finish_reason": _FINISH[event.reason],
            }
        )
        self._begin()


_NO_SCORES: Mapping[str, Sequence[object]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


def _head(request_id: str, created: int, model: str) -> dict[str, Any]:
    return {"id": f"cmpl-{request_id}", "object": "text_completion", "created": created, "model": model}


def _usage_fields(usage: Usage) -> dict[str, int]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _scores_of(requests: Sequence[GenerationRequest], place: int) -> Scores | None:
    """The scores of an answer to the prompt at this place; None when nobody wants them, or there is no such prompt."""
    request = requests[place] if place < len(requests) else None
    if request is None or request.top_logprobs is None:
        return None
    return Scores(0 if request.echo else len(request.prompt or ""), request.top_logprobs)


def _text(score: TokenScore) -> str:
    """A token's text; bytes that are no text by themselves as OpenAI spells them: `bytes:\\xe2\\x80`."""
    try:
        return score.bytes.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in score.bytes)


def _logprob(score: TokenScore) -> float | None:
    return None if score.is_first else max(score.logprob, _LEAST_LOGPROB)
