"""From the pieces that a model writes to events: thinking, text and tool calls, told apart as they arrive.

Pure: no model, no template, no clock. Any way of cutting the same reply into pieces gives the same answer.
"""

import json
import re
import secrets
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from pocketserver.chat import (
    Event,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    TokenScore,
    Tool,
    ToolCallDelta,
    ToolCallStarted,
)
from pocketserver.engines.llama.call_reader import CallReader
from pocketserver.engines.llama.incoming import Incoming, NotACall, Reading, held_back, pieces_of
from pocketserver.engines.llama.tool_syntax import THINK, ReplyFormat, Slot, ToolSyntax

_FIRST_MARKER = 0xDC00
_MARKERS = re.compile("[\udc00-\udfff]")
_LETTERS = string.ascii_letters + string.digits


def new_call_id() -> str:
    return "call_" + "".join(secrets.choice(_LETTERS) for _ in range(24))


class Markers:
    """The special tokens that matter to one reply format, each standing in the text as one character.

    That character is a lone surrogate, which decoded text never contains: so a marker is recognised by its token where
    it is one, by its text where it is not, and never by both.
    """

    def __init__(self, reply_format: ReplyFormat, special_tokens: Mapping[str, int]) -> None:
        """`special_tokens` are all control and user-defined tokens of the vocabulary by their text."""
        literals = [*reply_format.literals(), THINK.open, THINK.close]
        used = [text for text in special_tokens if text and any(text in literal for literal in literals)]
        self._texts = sorted(used, key=len, reverse=True)[: 0xDFFF - _FIRST_MARKER]
        self._by_id = {special_tokens[text]: chr(_FIRST_MARKER + at) for at, text in enumerate(self._texts)}

    def is_marker(self, token_id: int) -> bool:
        return token_id in self._by_id

    def encode(self, token_id: int | None, text: str) -> str:
        """A piece as it stands in the reader's text."""
        return self._by_id.get(token_id, text) if token_id is not None else text

    def literal(self, text: str) -> str:
        """A literal with its special tokens replaced."""
        for at, marker in enumerate(self._texts):
            text = text.replace(marker, chr(_FIRST_MARKER + at))
        return text

    def plain(self, text: str) -> str:
        """The text with markers written out."""
        return _MARKERS.sub(lambda found: self._texts[ord(found.group()) - _FIRST_MARKER], text)


class ReplyReader:
    """Reads one reply. Feed it each token, then finish it; both give the events that have become certain.

    `opened`: the prompt ends inside the thinking marks. `trusted`: the reply is held to a grammar, so arguments are
    passed on as they are written; otherwise a call is given when it is whole, and text that only looked like one is
    given back as text. `must_call`: the grammar leaves no place for text, so that what a cut-off reply ends with is a
    part of a call and not shown. `stops` end the answer (look at `stop_sequence` after each feed). `make_id` names
    calls.
    """

    def __init__(
        self,
        reply_format: ReplyFormat,
        *,
        tools: Sequence[Tool] = (),
        special_tokens: Mapping[str, int] | None = None,
        opened: bool = False,
        trusted: bool = False,
        must_call: bool = False,
        stops: Sequence[str] = (),
        make_id: Callable[[], str] = new_call_id,
    ) -> None:
        self.stop_sequence: str | None = None
        """The stop string that ended the answer, when one did. Nothing is given after it."""
        self.reasoning_tokens = 0
        """Tokens that were fed while the model was thinking, its closing mark included."""
        self.in_reasoning = opened
        self.closing_mark = reply_format.reasoning.close
        """The text that ends the thinking the model is in."""
        self._markers = Markers(reply_format, special_tokens or {})
        self._format = (reply_format if tools else replace(reply_format, syntax=None)).mapped(self._markers.literal)
        self._tools = tuple(tools)
        self._trusted = trusted
        self._must_call = must_call
        self._stops = tuple(stop for stop in stops if stop)
        self._incoming = Incoming()
        self._out = _Out(self._incoming, frozenset(tool.name for tool in tools), trusted=trusted, make_id=make_id)
        self._run = self._reply(opened=opened)
        self._is_done = False

    def feed(self, token_id: int | None, text: str, *, score: TokenScore | None = None) -> list[Event]:
        """One more token: `text` is what it adds to the reply, whole characters, possibly none."""
        self.reasoning_tokens += self.in_reasoning
        self._out.count(None if token_id is not None and self._markers.is_marker(token_id) else score)
        if self.stop_sequence is None and not self._is_done:
            self._incoming.text += self._markers.encode(token_id, text)
            self._advance()
        return self._out.take()

    def goes_on_after(self, token_id: int) -> bool:
        """True for a token that ends a turn by the vocabulary, but here only the thinking: the answer follows."""
        return self.in_reasoning and self._markers.encode(token_id, "") == self._format.reasoning.close

    def finish(self, reason: FinishReason) -> tuple[list[Event], FinishReason]:
        """The rest, and the reason to report: `tool_calls` when whole calls were made and nothing cut them off."""
        self._incoming.ended = True
        if self.stop_sequence is None and not self._is_done:
            self._advance()
        called = self._out.calls > 0 and reason is FinishReason.STOP and not self._out.is_open
        return self._out.take(), FinishReason.TOOL_CALLS if called else reason

    def _advance(self) -> None:
        try:
            next(self._run)
        except StopIteration:
            self._is_done = True

    def _reply(self, *, opened: bool) -> Reading[None]:
        yield from self._thinking_at_start(opened=opened)
        yield from self._bare_calls()
        while not self._incoming.ended or self._incoming.at < len(self._incoming.text):
            if not (yield from self._text()):
                return

    def _thinking_at_start(self, *, opened: bool) -> Reading[None]:
        incoming, marks = self._incoming, self._format.reasoning
        if opened and not marks.open:
            return
        begin = incoming.at
        options = [pieces_of(marks.open) or ("\0",), pieces_of(self._markers.literal(THINK.open))]
        found = yield from incoming.choose(options)
        if found is None and not opened:
            incoming.at = begin
            return
        close = self._markers.literal(THINK.close) if found == 1 else marks.close
        yield from self._thinking(close)

    def _thinking(self, close: str) -> Reading[None]:
        """Thoughts up to the closing mark, without white space at either end."""
        incoming = self._incoming
        self.in_reasoning = True
        self.closing_mark = self._markers.plain(close)
        yield from incoming.skip_space()
        while (end := incoming.text.find(close, incoming.at)) < 0:
            rest = incoming.text[incoming.at :]
            sure = rest[: len(rest) - held_back(rest, (close,))]
            self._think(len(sure if incoming.ended else sure.rstrip()))
            if incoming.ended:
                self._think(len(incoming.text) - incoming.at)
                return
            yield
        self._think(len(incoming.text[incoming.at : end].rstrip()))
        incoming.at = end + len(close)
        self.in_reasoning = False
        yield from incoming.skip_space()

    def _think(self, length: int) -> None:
        text = self._incoming.text[self._incoming.at : self._incoming.at + length]
        self._incoming.at += length
        self._out.reasoning(self._markers.plain(text))

    def _bare_calls(self) -> Reading[None]:
        """A model without a mark for calls calls when its answer begins as JSON."""
        syntax = self._format.syntax
        if syntax is None or not syntax.is_bare:
            return
        begin = self._incoming.at
        yield from self._incoming.skip_space()
        starts_so = self._incoming.text.startswith("{", self._incoming.at)
        self._incoming.at = begin
        if starts_so:
            yield from self._calls(syntax, begin)

    @cached_property
    def _openings(self) -> Mapping[str, ToolSyntax]:
        """The first mark of each way to call."""
        syntax = self._format.syntax
        found: dict[str, ToolSyntax] = {}
        for way in (syntax, *syntax.also) if syntax is not None else ():
            pieces = pieces_of(way.opening)
            if pieces and not isinstance(pieces[0], Slot):
                found.setdefault(pieces[0], way)
        return found

    @cached_property
    def _marks(self) -> Sequence[str]:
        marks = self._format.reasoning
        known = self._format.reasoning_known
        thinking = (marks.open if marks.reopens else "", marks.close) if known else ()
        named = (*self._openings, *self._stops, *self._format.wrappers, *thinking, self._format.turn_end)
        return sorted({mark for mark in named if mark}, key=len, reverse=True)

    @cached_property
    def _any_mark(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, self._marks)) or r"(?!)")

    def _text(self) -> Reading[bool]:
        """Text up to a mark, and what the mark begins. False when the answer has ended."""
        incoming, searched = self._incoming, self._incoming.at
        while True:
            found = self._any_mark.search(incoming.text, max(searched, incoming.at))
            if found is not None and (incoming.ended or not self._could_be_longer(found)):
                return (yield from self._at_mark(found))
            rest = incoming.text[incoming.at :] if found is None else incoming.text[incoming.at : found.start()]
            sure = rest if found is not None or incoming.ended else rest[: len(rest) - held_back(rest, self._marks)]
            self._say(len(sure if incoming.ended else self._certain(sure)))
            if incoming.ended:
                return False
            incoming.forget()
            searched = incoming.at
            yield

    def _could_be_longer(self, found: re.Match[str]) -> bool:
        rest = self._incoming.text[found.start() :]
        return any(mark.startswith(rest) and len(mark) > len(found.group()) for mark in self._marks)

    def _certain(self, text: str) -> str:
        """White space before a mark is not part of the answer, so it waits for what follows."""
        return text.rstrip() if self._openings or self._format.turn_end else text

    def _at_mark(self, found: re.Match[str]) -> Reading[bool]:
        incoming, mark = self._incoming, found.group()
        before = incoming.text[incoming.at : found.start()]
        is_stop = mark in self._stops
        self._say(len(before if is_stop else self._certain(before)))
        begin, incoming.at = incoming.at, found.start() if mark in self._openings else found.end()
        if is_stop:
            self.stop_sequence = mark
            return False
        if mark == self._format.turn_end:
            return False
        if mark in self._openings:
            yield from self._calls(self._openings[mark], begin)
        elif mark == self._format.reasoning.open:
            yield from self._thinking(self._format.reasoning.close)
        return True

    def _calls(self, syntax: ToolSyntax, begin: int) -> Reading[None]:
        """The calls of a block; text that turns out to be none is said, from its first mark or the last whole call."""
        self._out.begin(begin)
        reader = CallReader(self._incoming, syntax, self._tools, self._out, self._markers.plain)
        try:
            yield from reader.read()
        except NotACall:
            self._incoming.at = self._out.resume_at()
            self._after_no_call(syntax, begin)
        else:
            yield from self._incoming.skip_space()

    def _after_no_call(self, syntax: ToolSyntax, begin: int) -> None:
        incoming = self._incoming
        if self._trusted and incoming.ended:
            incoming.at = len(incoming.text)  # a call for certain, cut off
        elif incoming.at == begin:
            mark = str((pieces_of(syntax.opening) or ("{",))[0])
            self._say(incoming.text.find(mark, begin) + len(mark) - begin)
        elif self._out.is_open and incoming.ended:
            incoming.at = len(incoming.text)

    def _say(self, length: int) -> None:
        text = self._incoming.text[self._incoming.at : self._incoming.at + length]
        self._incoming.at += length
        if not self._must_call:
            self._out.text(self._markers.plain(text))


class _Out:
    """Collects events, counts what each is made of, and holds a call back until it can be trusted."""

    def __init__(self, incoming: Incoming, names: Iterable[str], *, trusted: bool, make_id: Callable[[], str]) -> None:
        self.calls = 0
        """Whole calls so far."""
        self.is_open = False
        """True while a call's name was given and its end was not."""
        self._incoming = incoming
        self._names = frozenset(names)
        self._trusted = trusted
        self._make_id = make_id
        self._events: list[Event] = []
        self._tokens = 0
        self._scores: list[TokenScore] = []
        self._name = ""
        self._held: list[str] = []
        self._accepted_at = 0

    def count(self, score: TokenScore | None) -> None:
        self._tokens += 1
        if score is not None:
            self._scores.append(score)

    def take(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def text(self, text: str) -> None:
        if text:
            scores, self._scores = tuple(self._scores), []
            self._put(TextDelta(text=text, tokens=self._counted(), scores=scores))

    def reasoning(self, text: str) -> None:
        self._scores.clear()
        if text:
            self._put(ReasoningDelta(text=text, tokens=self._counted()))

    def begin(self, at: int) -> None:
        self._accepted_at = at

    def resume_at(self) -> int:
        """Where reading goes on after a call that was none: behind what was given, at the start of what was not."""
        self._name, self._held = "", []
        return self._incoming.at if self.is_open else self._accepted_at

    def started(self, name: str) -> None:
        if name not in self._names:
            raise NotACall
        self._name = name
        if self._trusted:
            self._announce()

    def arguments(self, text: str) -> None:
        if not text:
            return
        if self._trusted:
            self._put(ToolCallDelta(index=self.calls, arguments=text, tokens=self._counted()))
        else:
            self._held.append(text)

    def finished(self) -> None:
        if not self._trusted:
            self._give_held()
        self._scores.clear()  # they belong to the arguments, and not to text behind the call
        self.calls += 1
        self.is_open = False
        self._accepted_at = self._incoming.at

    def _give_held(self) -> None:
        arguments = "".join(self._held)
        try:
            is_object = isinstance(json.loads(arguments), dict)
        except (ValueError, RecursionError) as error:
            raise NotACall from error
        if not is_object:
            raise NotACall
        self._announce()
        self._put(ToolCallDelta(index=self.calls, arguments=arguments, tokens=self._counted()))
        self._held = []

    def _announce(self) -> None:
        self._scores.clear()
        self.is_open = True
        self._events.append(ToolCallStarted(index=self.calls, id=self._make_id(), name=self._name))

    def _counted(self) -> int:
        tokens, self._tokens = self._tokens, 0
        return tokens

    def _put(self, event: TextDelta | ReasoningDelta | ToolCallDelta) -> None:
        """Add an event, as part of the one before where both are of a kind."""
        match self._events[-1:], event:
            case [TextDelta() as last], TextDelta():
                self._events[-1] = TextDelta(
                    text=last.text + event.text,
                    tokens=last.tokens + event.tokens,
                    scores=last.scores + event.scores,
                )
            case [ReasoningDelta() as last], ReasoningDelta():
                self._events[-1] = ReasoningDelta(text=last.text + event.text, tokens=last.tokens + event.tokens)
            case [ToolCallDelta() as last], ToolCallDelta() if last.index == event.index:
                self._events[-1] = ToolCallDelta(
                    index=event.index, arguments=last.arguments + event.arguments, tokens=last.tokens + event.tokens
                )
            case _:
                self._events.append(event)
