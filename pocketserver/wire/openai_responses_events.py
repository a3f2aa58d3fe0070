"""A streamed answer of the Responses API: events numbered from 0, each item told from its beginning to its end.

Source: the OpenAI API reference, "Streaming events"; the Open Responses specification.
"""

from collections.abc import Callable, Mapping

import msgspec

from pocketserver.chat import Event, Finished, FinishReason, JsonValue, TextDelta
from pocketserver.errors import Code, Refusal
from pocketserver.wire import sse
from pocketserver.wire.openai_responses_answer import (
    Call,
    Output,
    OutputItem,
    Reasoning,
    ResponseObject,
    Text,
    end,
    item_status,
    opening,
    shown_score,
    shut,
    take,
)

_encode = msgspec.json.Encoder().encode
_DONE = b"data: [DONE]\n\n"
_FAILURES: Mapping[Code, str] = {
    Code.CONTEXT_LENGTH_EXCEEDED: "context_length_exceeded",
    Code.MODEL_BUSY: "rate_limit_exceeded",
    Code.QUEUE_FULL: "rate_limit_exceeded",
    Code.TOO_MANY_ATTEMPTS: "rate_limit_exceeded",
    Code.INVALID_PARAMETER: "invalid_prompt",
    Code.MALFORMED_REQUEST: "invalid_prompt",
    Code.TOOLS_UNSUPPORTED: "invalid_prompt",
    Code.TEMPLATE_UNSUPPORTED: "invalid_prompt",
}
"""The words that clients of this API compare; everything else is `server_error`."""


def failure_code(code: Code) -> str:
    return _FAILURES.get(code, "server_error")


class Events:
    """Renders one answer.

    `ended` is given the final object before a client can read it: the next request may name it at once. `now` dates it.
    """

    def __init__(
        self,
        response: ResponseObject,
        output: Output,
        *,
        now: Callable[[], float],
        ended: Callable[[dict[str, JsonValue]], None] = lambda _document: None,
    ) -> None:
        self._object = response
        self._output = output
        self._now = now
        self._ended = ended
        self._number = 0
        self._begun = False
        self._text = b""
        self._progress = _encode(response.in_progress())

    @property
    def first(self) -> bytes:
        self._begun = True
        return self._lifecycle("response.created") + self._lifecycle("response.in_progress")

    @property
    def last(self) -> bytes:
        return _DONE

    @property
    def keep_alive(self) -> bytes:
        """An event rather than a comment: some clients count the time since the last event, and break off."""
        return self._lifecycle("response.in_progress") if self._begun else sse.COMMENT

    def render(self, event: Event) -> bytes:
        if isinstance(event, Finished):
            return self._finished(event)
        begun = b""
        if not self._output.is_within(event):
            begun = self._closed("completed") + self._opened(self._output.open(opening(event)))
        piece = take(self._output, event)
        if not piece:
            return begun
        scores = [*map(shown_score, event.scores)] if isinstance(event, TextDelta) and event.scores else ()
        return begun + self._delta(piece, scores)

    def failed(self, refusal: Refusal) -> bytes:
        """The end of a broken answer. It has no end mark: it must not look whole."""
        begun = b"" if self._begun else self.first
        response = self._object.failed(self._output, failure_code(refusal.code), refusal.message)
        self._ended(response)
        return begun + self._event("response.failed", {"response": response})

    def _finished(self, event: Finished) -> bytes:
        output, status = self._output, item_status(event.reason)
        opened = b""
        if output.current is None and not output.done:
            opened = self._opened(output.open(Text))
        closed = self._closed(status)
        end(output, event)
        response = self._object.finished(output, int(self._now()))
        self._ended(response)
        name = "response.incomplete" if event.reason is FinishReason.LENGTH else "response.completed"
        return opened + closed + self._event(name, {"response": response})

    def _opened(self, item: OutputItem) -> bytes:
        index = len(self._output.done)
        place = {"item_id": item.id, "output_index": index}
        added = self._event("response.output_item.added", {"output_index": index, "item": item.opened()})
        match item:
            case Text():
                self._begin_deltas("response.output_text.delta", {**place, "content_index": 0})
                part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
                fields = {**place, "content_index": 0, "part": part}
                return added + self._event("response.content_part.added", fields)
            case Reasoning():
                self._begin_deltas("response.reasoning_summary_text.delta", {**place, "summary_index": 0})
                fields = {**place, "summary_index": 0, "part": {"type": "summary_text", "text": ""}}
                return added + self._event("response.reasoning_summary_part.added", fields)
            case Call():
                self._begin_deltas(f"response.{_field_of(item)}.delta", place)
                return added

    def _closed(self, status: str) -> bytes:
        """The end of the present item, if there is one."""
        item = self._output.current
        if item is None:
            return b""
        before = b""
        if isinstance(item, Call) and (rest := item.rest(complete=status == "completed")):
            item.pieces.append(rest)
            before = self._delta(rest, ())
        index = len(self._output.done)
        place: dict[str, JsonValue] = {"item_id": item.id, "output_index": index}
        ended = self._content_done(item, place)
        shut(self._output, status)
        done = {"output_index": index, "item": self._output.done[-1]}
        return before + ended + self._event("response.output_item.done", done)

    def _content_done(self, item: OutputItem, place: Mapping[str, JsonValue]) -> bytes:
        text = "".join(item.pieces)
        match item:
            case Text():
                place = {**place, "content_index": 0}
                done = self._event("response.output_text.done", {**place, "text": text, "logprobs": item.scores})
                return done + self._event("response.content_part.done", {**place, "part": item.part()})
            case Reasoning():
                place = {**place, "summary_index": 0}
                done = self._event("response.reasoning_summary_text.done", {**place, "text": text})
                part = {"type": "summary_text", "text": text}
                return done + self._event("response.reasoning_summary_part.done", {**place, "part": part})
            case Call():
                kind = _field_of(item)
                said = {"input": text} if item.custom else {"arguments": text, "name": item.name}
                return self._event(f"response.{kind}.done", {**place, **said})

    def _begin_deltas(self, name: str, place: Mapping[str, JsonValue]) -> None:
        """Encode once what all deltas of an item have in common; of one that says much, nothing else changes."""
        head = _encode({"type": name, **place})
        self._text = b"event: " + name.encode() + b"\ndata: " + head[:-1] + b',"sequence_number":'

    def _delta(self, piece: str, scores: list[JsonValue] | tuple[()]) -> bytes:
        logprobs = b""
        if isinstance(self._output.current, Text):
            logprobs = b',"logprobs":' + (_encode(scores) if scores else b"[]")
        return self._text + b'%d,"delta":' % self._next() + _encode(piece) + logprobs + b"}\n\n"

    def _lifecycle(self, name: str) -> bytes:
        head = b'event: %s\ndata: {"type":"%s","sequence_number":%d' % (name.encode(), name.encode(), self._next())
        return head + b',"response":' + self._progress + b"}\n\n"

    def _event(self, name: str, fields: Mapping[str, JsonValue]) -> bytes:
        data = _encode({"type": name, "sequence_number": self._next(), **fields})
        return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"

    def _next(self) -> int:
        number = self._number
        self._number += 1
        return number


def _field_of(call: Call) -> str:
    return "custom_tool_call_input" if call.custom else "function_call_arguments"
