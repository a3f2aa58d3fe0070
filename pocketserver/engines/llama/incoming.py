"""Text that arrives in pieces, read by generators that pause wherever the next piece could change the decision.

So a reply is understood the same way whatever the borders of its pieces. Each reader `yield`s to ask for more text.
"""

import re
from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias, TypeVar

from pocketserver.engines.llama.tool_syntax import Pattern, Slot

T = TypeVar("T")
Reading: TypeAlias = Generator[None, None, T]
Pieces: TypeAlias = tuple[str | Slot, ...]

_SLOTS = {Slot.INDEX: re.compile(r"\d*"), Slot.ID: re.compile(r"[\w.:-]*")}
_NAME = re.compile(r"[\w.-]*")
_OUTSIDE_STRING = re.compile(r'[{}\[\]"]')
_INSIDE_STRING = re.compile(r'["\\]')
_SCALAR = re.compile(r"[^\s,}\]]*")


class NotACall(Exception):  # noqa: N818 - it is a finding
    """The text is no call after all, or it ended inside one."""


class Incoming:
    """The text so far, and the place up to which it has been understood."""

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.ended = False

    def more(self) -> Reading[None]:
        """Wait for the next piece; raise NotACall when there is none."""
        if self.ended:
            raise NotACall
        yield

    def forget(self) -> None:
        """Drop text that is understood, so that a long reply stays cheap."""
        if self.at > 2048:
            self.text, self.at = self.text[self.at :], 0

    def skip_space(self) -> Reading[None]:
        """Go past white space, up to a character that is none or to the end."""
        while True:
            rest = self.text[self.at :].lstrip()
            self.at = len(self.text) - len(rest)
            if rest or self.ended:
                return
            yield

    def match(self, pieces: Pieces) -> int | None:
        """Where `pieces` end when the text goes on with them; -1 when that is still open; None when it does not."""
        at = self.at
        for piece in pieces:
            if isinstance(piece, Slot):
                at = _SLOTS[piece].match(self.text, at).end()  # type: ignore[union-attr]
                if at == len(self.text) and not self.ended:
                    return -1
                continue
            at = _space_end(self.text, at)
            if not self.text.startswith(piece, at):
                return -1 if not self.ended and piece.startswith(self.text[at:]) else None
            at += len(piece)
        return at

    def choose(self, options: Sequence[Pieces], *, consume: bool = True) -> Reading[int | None]:
        """The first of the options that the text goes on with, or None. Earlier options win."""
        while True:
            for number, pieces in enumerate(options):
                end = self.match(pieces)
                if end == -1:
                    break
                if end is not None:
                    self.at = end if consume else self.at
                    return number
            else:
                return None
            yield

    def expect(self, pieces: Pieces) -> Reading[None]:
        if pieces and (yield from self.choose([pieces])) is None:
            raise NotACall

    def name(self) -> Reading[str]:
        """A function's name."""
        yield from self.skip_space()
        while (end := _NAME.match(self.text, self.at).end()) == len(self.text) and not self.ended:  # type: ignore[union-attr]
            yield
        name, self.at = self.text[self.at : end], end
        if not name:
            raise NotACall
        return name

    def until(self, mark: str) -> Reading[str]:
        """The text before `mark`, which stays unread."""
        searched = self.at
        while (end := self.text.find(mark, searched)) < 0:
            searched = max(self.at, len(self.text) - len(mark) + 1)
            yield from self.more()
        found, self.at = self.text[self.at : end], end
        return found

    def json_value(self, emit: Callable[[str], None]) -> Reading[None]:
        """One JSON value; its text is handed on as it comes."""
        yield from self.skip_space()
        if self.at == len(self.text):
            raise NotACall
        if self.text[self.at] in '{["':
            yield from self._json_nested(emit)
        else:
            yield from self._json_scalar(emit)

    def _json_scalar(self, emit: Callable[[str], None]) -> Reading[None]:
        while (end := _SCALAR.match(self.text, self.at).end()) == len(self.text) and not self.ended:  # type: ignore[union-attr]
            yield
        if end == self.at:
            raise NotACall
        text, self.at = self.text[self.at : end], end
        emit(text)

    def _json_nested(self, emit: Callable[[str], None]) -> Reading[None]:
        depth, inside, position = 0, False, self.at
        while True:
            found = (_INSIDE_STRING if inside else _OUTSIDE_STRING).search(self.text, position)
            if found is None:
                position = max(position, len(self.text))
                self._hand_on(len(self.text), emit)
                yield from self.more()
                continue
            mark, position = found.group(), found.end()
            if mark == "\\":
                position += 1
            elif mark == '"':
                inside = not inside
            else:
                depth += 1 if mark in "{[" else -1
            if depth == 0 and not inside:
                self._hand_on(position, emit)
                return

    def _hand_on(self, end: int, emit: Callable[[str], None]) -> None:
        if end > self.at:
            text, self.at = self.text[self.at : end], end
            emit(text)


def pieces_of(pattern: Pattern | str) -> Pieces:
    """A pattern cut at its white space, which is optional when a reply is read."""
    parts = (pattern,) if isinstance(pattern, str) else pattern
    made: list[str | Slot] = []
    for part in parts:
        made.extend([part] if isinstance(part, Slot) else part.split())
    return tuple(made)


def held_back(text: str, marks: Sequence[str]) -> int:
    """How many characters at the end of `text` could be the beginning of one of the marks."""
    longest = max(map(len, marks), default=1) - 1
    for length in range(min(longest, len(text)), 0, -1):
        if any(mark.startswith(text[-length:]) and len(mark) > length for mark in marks):
            return length
    return 0


def _space_end(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at
