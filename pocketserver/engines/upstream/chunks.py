"""An upstream's chunks as events. It reads what the engines in use send, extra and missing members included."""

import time
from collections.abc import Iterator
from typing import Any

import msgspec

from pocketserver.chat import (
    Event,
    Finished,
    FinishReason,
    GenerationRequest,
    ReasoningDelta,
    TextDelta,
    Timings,
    TokenScore,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)
from pocketserver.engines.upstream.faults import broken, failed, message_of

_REASONS = {
    "length": FinishReason.LENGTH,
    "max_tokens": FinishReason.LENGTH,
    "tool_calls": FinishReason.TOOL_CALLS,
    "function_call": FinishReason.TOOL_CALLS,
}


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: Any = None


class _Call(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | None = None


class _Score(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int] | None = None
    top_logprobs: list["_Score"] | None = None


class _Scores(msgspec.Struct):
    content: list[_Score] | None = None


class _Choice(msgspec.Struct):
    index: int | None = 0
    delta: _Delta | None = None
    message: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: Any = None
    logprobs: Any = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _CompletionDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = 0
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")


_decode = msgspec.json.Decoder(_Chunk).decode


class ChunkReader:
    """Collects one answer's chunks. `started` is true once something of the answer has come."""

    def __init__(self, request: GenerationRequest) -> None:
        self._request = request
        self._began = time.monotonic()
        self._first: float | None = None
        self._calls: dict[int, tuple[str, bool]] = {}
        """By index: the call's id, and whether any arguments came."""
        self._reason: FinishReason | None = None
        self._stop: str | None = None
        self._usage: _Usage | None = None
        self._pieces = 0
        self.started = False
        self.done = False
        """Whether the end mark has come; what follows it is nobody's."""

    def read(self, data: bytes) -> list[Event]:
        """The events of one chunk. Raises UpstreamFault for an error inside it and for what is no chunk."""
        if self.done:
            return []
        if data == b"[DONE]":
            self.done = True
            return []
        try:
            chunk = _decode(data)
        except (msgspec.DecodeError, RecursionError):
            raise broken() from None
        error = bytes(chunk.error)
        if error != b"null":
            raise failed(message_of(b'{"error":' + error + b"}")[0])
        self._usage = chunk.usage or self._usage
        events = [event for choice in chunk.choices or () if not choice.index for event in self._of(choice)]
        if events and self._first is None:
            self._first = time.monotonic()
        self.started = self.started or bool(events)
        return events

    def read_document(self, data: bytes) -> list[Event]:
        """The events of a whole answer, from an upstream that does not stream. Raises UpstreamFault."""
        events = self.read(data)
        if self._reason is None:
            raise broken()
        return events

    def end(self) -> list[Event]:
        """The last events. Raises UpstreamFault when the answer broke off."""
        if self._reason is None and not self.done:
            raise broken()
        missing: list[Event] = [
            ToolCallDelta(index=index, arguments="{}", tokens=0) for index, (_, came) in self._calls.items() if not came
        ]
        reason = self._reason or FinishReason.STOP
        if self._calls and reason is FinishReason.STOP:
            reason = FinishReason.TOOL_CALLS
        return [*missing, self._finished(reason)]

    def _finished(self, reason: FinishReason) -> Finished:
        now, usage = time.monotonic(), self._usage or _Usage()
        first = now if self._first is None else self._first
        prompt, completion = usage.prompt_tokens_details, usage.completion_tokens_details
        return Finished(
            reason=reason,
            usage=Usage(
                prompt_tokens=usage.prompt_tokens or 0,
                completion_tokens=self._pieces if usage.completion_tokens is None else usage.completion_tokens,
                cached_tokens=(prompt and prompt.cached_tokens) or 0,
                reasoning_tokens=(completion and completion.reasoning_tokens) or 0,
            ),
            timings=Timings(prompt_seconds=first - self._began, generation_seconds=now - first),
            stop_sequence=self._stop,
        )

    def _of(self, choice: _Choice) -> Iterator[Event]:
        delta = choice.delta or choice.message or _Delta()
        thought = delta.reasoning_content or delta.reasoning
        if thought:
            self._pieces += 1
            yield ReasoningDelta(text=thought)
        text = delta.content or choice.text
        if text:
            self._pieces += 1
            yield TextDelta(text=text, scores=self._scores(choice.logprobs))
        for call in delta.tool_calls or ():
            yield from self._of_call(call)
        if choice.finish_reason:
            self._reason = _REASONS.get(choice.finish_reason, FinishReason.STOP)
        if isinstance(choice.stop_reason, str) and choice.stop_reason in self._request.stop:
            self._stop = choice.stop_reason

    def _of_call(self, call: _Call) -> Iterator[Event]:
        index = call.index if call.index is not None else self._next_index(call)
        function = call.function or _Function()
        if index not in self._calls:
            call_id = call.id or f"call_{self._request.id}_{index}"
            self._calls[index] = (call_id, False)
            yield ToolCallStarted(index=index, id=call_id, name=function.name or "")
        arguments = function.arguments
        if arguments is not None and not isinstance(arguments, str):
            arguments = msgspec.json.encode(arguments).decode()
        if arguments:
            self._pieces += 1
            self._calls[index] = (self._calls[index][0], True)
            yield ToolCallDelta(index=index, arguments=arguments)

    def _next_index(self, call: _Call) -> int:
        """Some engines do not number their calls: one with an id or a name is a new one."""
        new = call.id is not None or (call.function is not None and call.function.name is not None)
        return len(self._calls) if new or not self._calls else len(self._calls) - 1

    def _scores(self, given: Any) -> tuple[TokenScore, ...]:
        if self._request.top_logprobs is None or given is None:
            return ()
        try:
            scores = msgspec.convert(given, _Scores)
        except msgspec.ValidationError:
            return ()
        return tuple(map(_score, scores.content or ()))


def _score(score: _Score) -> TokenScore:
    spelled = score.token.encode() if score.bytes is None else bytes(byte & 0xFF for byte in score.bytes)
    return TokenScore(
        token=score.token, logprob=score.logprob, bytes=spelled, top=tuple(map(_score, score.top_logprobs or ()))
    )
