"""The answer of the Responses API as output items: collected from events, strictly one after another.

Source: the OpenAI API reference, "The response object"; the Open Responses specification. What the model thought is
given as a summary: the only form that both specifications and their clients read.
"""

import re
from collections.abc import Mapping
from typing import Any, TypeAlias, assert_never

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
    Usage,
)
from pocketserver.wire.openai_responses_items import Item, sealed
from pocketserver.wire.openai_responses_tools import Offered, Toolbox

_BEFORE_INPUT = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_COULD_BECOME = re.compile(r'\s*(?:\{\s*(?:"(?:i(?:n(?:p(?:u(?:t(?:"\s*(?::\s*)?)?)?)?)?)?)?)?)?')
_ESCAPE = re.compile(r'\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4}|u(?![dD][89abAB])[0-9a-fA-F]{4}|["\\/bfnrt])')
_UNFINISHED_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,4}(?:\\(?:u[0-9a-fA-F]{0,3})?)?)?")


class InputText:
    """Reads a custom tool's text out of the arguments that the model writes, `{"input": "…"}`, while they come.

    Arguments of any other form are the text themselves. What is cut before it is certain is not told.
    """

    def __init__(self) -> None:
        self._held = ""
        self._inside = False
        self._plain = False
        self._over = False

    def feed(self, piece: str) -> str:
        """The text that this piece makes certain."""
        if self._plain:
            return piece
        if self._over:
            return ""
        self._held += piece
        if not self._inside and not self._enter():
            return self._flush() if self._plain else ""
        return self._decoded()

    def _enter(self) -> bool:
        found = _BEFORE_INPUT.match(self._held)
        if found is not None:
            self._inside = True
            self._held = self._held[found.end() :]
        elif not _COULD_BECOME.fullmatch(self._held):
            self._plain = True
        return self._inside

    def _flush(self) -> str:
        held, self._held = self._held, ""
        return held

    def _decoded(self) -> str:
        """Everything up to the closing quote, or to an escape that is not whole yet."""
        made: list[str] = []
        while self._held:
            plain = re.match(r'[^"\\]*', self._held)
            assert plain is not None, "it matches nothing too"
            made.append(plain[0])
            self._held = self._held[plain.end() :]
            if self._held.startswith('"'):
                self._over, self._held = True, ""
            elif self._held:
                escape = _ESCAPE.match(self._held)
                if escape is None and _UNFINISHED_ESCAPE.fullmatch(self._held):
                    break
                length = 1 if escape is None else escape.end()
                made.append(self._held[:1] if escape is None else msgspec.json.decode(f'"{escape[0]}"'))
                self._held = self._held[length:]
        return "".join(made)


class Reasoning:
    """What the model thought."""

    def __init__(self, item_id: str, *, encrypts: bool) -> None:
        self.id = item_id
        self.pieces: list[str] = []
        self._encrypts = encrypts

    def opened(self) -> Item:
        return {"id": self.id, "type": "reasoning", "status": "in_progress", "summary": []}

    def document(self, status: str) -> Item:
        text = "".join(self.pieces)
        item: Item = {"id": self.id, "type": "reasoning", "status": status}
        item["summary"] = [{"type": "summary_text", "text": text}]
        if self._encrypts:
            item["encrypted_content"] = sealed(text)
        return item


class Text:
    """What the model said."""

    def __init__(self, item_id: str) -> None:
        self.id = item_id
        self.pieces: list[str] = []
        self.scores: list[JsonValue] = []

    def opened(self) -> Item:
        return {"id": self.id, "type": "message", "status": "in_progress", "role": "assistant", "content": []}

    def part(self) -> Item:
        return {
            "type": "output_text",
            "text": "".join(self.pieces),
            "annotations": [],
            "logprobs": self.scores,
        }

    def document(self, status: str) -> Item:
        return {"id": self.id, "type": "message", "status": status, "role": "assistant", "content": [self.part()]}


class Call:
    """A call of a function, or of a custom tool, whose text is `input`."""

    def __init__(self, item_id: str, event: ToolCallStarted, tool: Offered | None) -> None:
        self.id = item_id
        self.index = event.index
        self.custom = tool is not None and tool.custom
        self.pieces: list[str] = []
        self.reader = InputText()
        self._head: Item = {"call_id": event.id, "name": event.name if tool is None else tool.name}
        if tool is not None and tool.namespace is not None:
            self._head["namespace"] = tool.namespace

    @property
    def name(self) -> str:
        return str(self._head["name"])

    @property
    def _kind(self) -> tuple[str, str]:
        return ("custom_tool_call", "input") if self.custom else ("function_call", "arguments")

    def opened(self) -> Item:
        kind, field = self._kind
        return {"id": self.id, "type": kind, "status": "in_progress", **self._head, field: ""}

    def document(self, status: str) -> Item:
        kind, field = self._kind
        return {"id": self.id, "type": kind, "status": status, **self._head, field: "".join(self.pieces)}

    def read(self, arguments: str) -> str:
        """More of the client's text, from more of the model's."""
        return self.reader.feed(arguments) if self.custom else arguments

    def rest(self, *, complete: bool) -> str:
        """What is still missing at the end: a whole call of a function has arguments, if only an empty object."""
        return "{}" if complete and not self.custom and not self.pieces else ""


OutputItem: TypeAlias = Reasoning | Text | Call


class Output:
    """The items of one answer so far. `add` says what an event did, so that a stream can tell it."""

    def __init__(self, *, request_id: str, toolbox: Toolbox, encrypts: bool) -> None:
        self._request_id = request_id
        self._toolbox = toolbox
        self._encrypts = encrypts
        self.done: list[Item] = []
        self.current: OutputItem | None = None
        self.usage: Usage | None = None
        self.finish: FinishReason | None = None

    def open(self, kind: type[Text | Reasoning] | ToolCallStarted) -> OutputItem:
        """Begin an item. The one before must be closed."""
        assert self.current is None, "items come one after another"
        number = f"{self._request_id}{len(self.done):04x}"
        if isinstance(kind, ToolCallStarted):
            tool = self._toolbox.called(kind.name)
            self.current = Call(f"{'ctc' if tool and tool.custom else 'fc'}_{number}", kind, tool)
        elif kind is Text:
            self.current = Text(f"msg_{number}")
        else:
            self.current = Reasoning(f"rs_{number}", encrypts=self._encrypts)
        return self.current

    def close(self, status: str) -> Item:
        """End the present item."""
        assert self.current is not None, "one is open"
        self.done.append(self.current.document(status))
        self.current = None
        return self.done[-1]

    def is_within(self, event: Event) -> bool:
        """Whether an event goes on with the present item."""
        match event:
            case TextDelta():
                return isinstance(self.current, Text)
            case ReasoningDelta():
                return isinstance(self.current, Reasoning)
            case ToolCallDelta():
                return isinstance(self.current, Call) and self.current.index == event.index
            case ToolCallStarted() | Finished():
                return False
            case _:
                assert_never(event)

    def so_far(self) -> list[Item]:
        """All items of an answer that breaks off here."""
        return self.done if self.current is None else [*self.done, self.current.document("incomplete")]


def opening(event: Event) -> type[Text | Reasoning] | ToolCallStarted:
    """The kind of item that an event begins."""
    match event:
        case TextDelta() | Finished():
            return Text
        case ReasoningDelta():
            return Reasoning
        case ToolCallStarted():
            return event
        case ToolCallDelta():
            raise AssertionError("a call is started before its arguments come, and goes on until the next begins")
        case _:
            assert_never(event)


def collected(output: Output, event: Event) -> None:
    """Take an event of an answer that is not streamed."""
    if isinstance(event, Finished):
        end(output, event)
        return
    if not output.is_within(event):
        shut(output)
        output.open(opening(event))
    take(output, event)


def take(output: Output, event: Event) -> str:
    """Add an event to the present item; returns the text that it brought."""
    item = output.current
    match event:
        case TextDelta():
            assert isinstance(item, Text), "opened for it"
            item.scores += [shown_score(score) for score in event.scores]
            piece = event.text
        case ReasoningDelta():
            piece = event.text
        case ToolCallDelta():
            assert isinstance(item, Call), "opened for it"
            piece = item.read(event.arguments)
        case ToolCallStarted() | Finished():
            piece = ""
        case _:
            assert_never(event)
    if piece and item is not None:
        item.pieces.append(piece)
    return piece


def shut(output: Output, status: str = "completed") -> None:
    """End the present item, if there is one, with what is still missing of it."""
    if isinstance(output.current, Call):
        rest = output.current.rest(complete=status == "completed")
        output.current.pieces += [rest] if rest else []
    if output.current is not None:
        output.close(status)


def end(output: Output, event: Finished) -> None:
    """The answer is over. One that said nothing at all still has a message, which is empty."""
    output.usage, output.finish = event.usage, event.reason
    if output.current is None and not output.done:
        output.open(Text)
    shut(output, item_status(event.reason))


def item_status(reason: FinishReason) -> str:
    """The status of the last item."""
    return "incomplete" if reason is FinishReason.LENGTH else "completed"


def shown_score(score: TokenScore) -> dict[str, JsonValue]:
    return {**_token(score), "top_logprobs": [_token(other) for other in score.top]}


def _token(score: TokenScore) -> dict[str, JsonValue]:
    return {"token": score.token, "logprob": max(score.logprob, -9999.0), "bytes": list(score.bytes)}


def usage_fields(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


class ResponseObject:
    """The response object in each of its states. `echo` is what it repeats of the request."""

    def __init__(self, *, response_id: str, created: int, model: str, echo: Mapping[str, JsonValue]) -> None:
        self.id = response_id
        self._created = created
        self._model = model
        self._echo = echo

    def in_progress(self) -> dict[str, JsonValue]:
        return self._document("in_progress", [])

    def finished(self, output: Output, completed_at: int) -> dict[str, JsonValue]:
        assert output.usage is not None, "a complete stream ends with Finished"
        usage = usage_fields(output.usage)
        if output.finish is FinishReason.LENGTH:
            details = {"reason": "max_output_tokens"}
            return self._document("incomplete", output.done, usage=usage, incomplete_details=details)
        return self._document("completed", output.done, usage=usage, completed_at=max(completed_at, self._created))

    def failed(self, output: Output, code: str, message: str) -> dict[str, JsonValue]:
        return self._document("failed", output.so_far(), error={"code": code, "message": message})

    def _document(self, status: str, output: list[Item], **known: JsonValue) -> dict[str, JsonValue]:
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "completed_at": None,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self._model,
            "output": output,
            **self._echo,
            "usage": None,
            **known,
        }
