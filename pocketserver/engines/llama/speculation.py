"""Guesses how a text goes on from what it has said before (prompt-lookup speculation). Knows no model."""

from collections import deque
from collections.abc import Collection, Sequence

from pocketserver.engines.llama.runtime import Drafts

_KEY_TOKENS = 3
_REMEMBERED_PLACES = 8
_LONGEST_COMPARED = 32
_SURE_TOKENS = 8
"""After so many tokens in common the whole draft is worth its batch, before that half of it."""
_LEAST_MATCH = _KEY_TOKENS
_MOST_DEMANDING = 24


class Drafter:
    """Drafts for one answer. Each wrong guess makes it ask for longer matches, each right one for shorter."""

    def __init__(self, prompt: Sequence[int], drafts: Drafts, end_tokens: Collection[int]) -> None:
        """No draft contains an end token."""
        self._drafts = drafts
        self._end_tokens = end_tokens
        self._text: list[int] = []
        self._places: dict[tuple[int, ...], deque[int]] = {}
        self._demanded = _KEY_TOKENS + 1 if drafts.break_even <= 0.5 else _SURE_TOKENS
        for token in prompt:
            self.add(token)

    def add(self, token: int) -> None:
        """A token was added to the text."""
        key = tuple(self._text[-_KEY_TOKENS:])
        if len(key) == _KEY_TOKENS:
            self._places.setdefault(key, deque(maxlen=_REMEMBERED_PLACES)).append(len(self._text))
        self._text.append(token)

    def draft(self, most: int) -> list[int]:
        """How the text may go on: up to `most` tokens, none when there is nothing to go by."""
        start, length = self._best_place()
        if length < self._demanded:
            return []
        wanted = self._drafts.tokens if length >= _SURE_TOKENS else self._drafts.tokens // 2
        found = self._text[start : start + max(0, min(wanted, most))]
        ends = (index for index, token in enumerate(found) if token in self._end_tokens)
        return found[: next(ends, len(found))]

    def learn(self, drafted: int, accepted: int) -> None:
        """A draft of so many tokens was right for so many."""
        if accepted >= drafted * self._drafts.break_even:
            self._demanded = max(_LEAST_MATCH, self._demanded // 2)
        else:
            self._demanded = min(_MOST_DEMANDING, self._demanded * 2)

    def _best_place(self) -> tuple[int, int]:
        """Where the longest earlier copy of the text's end goes on, the latest of equals, and its length."""
        best = (0, 0)
        for place in self._places.get(tuple(self._text[-_KEY_TOKENS:]), ()):
            length = self._common(place)
            if length >= best[1]:
                best = (place, length)
        return best

    def _common(self, place: int) -> int:
        text, length = self._text, _KEY_TOKENS
        end = len(text)
        while length < min(place, _LONGEST_COMPARED) and text[place - length - 1] == text[end - length - 1]:
            length += 1
        return length
