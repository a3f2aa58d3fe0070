"""Tokens a second over the last minutes, in a ring of equal spans: what the page's little chart draws."""

import math
from collections.abc import Iterable

import msgspec

SPAN_SECONDS = 2.0
SPANS = 90


class Writing(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens that came evenly between two moments of the monotonic clock."""

    start: float
    end: float
    tokens: int


class RateChart:
    """Spreads each answer's tokens over the spans in which it was written. Bounded, and cheap: no timer runs."""

    def __init__(self) -> None:
        self._tokens = [0.0] * SPANS
        self._newest = 0
        """The number of the newest span that the ring holds, counted from the clock's zero."""

    def add(self, writing: Writing) -> None:
        """Keep an answer that has come to its end."""
        newest = writing.end // SPAN_SECONDS
        if newest == self._newest and writing.start // SPAN_SECONDS == newest:
            self._tokens[self._newest % SPANS] += writing.tokens  # as short answers are: begun and ended just now
            return
        self._advance(writing.end)
        _spread(self._tokens, self._newest, writing)

    def shown(self, now: float, unfinished: Iterable[Writing] = ()) -> list[float]:
        """Tokens a second for each span, oldest first; answers that are still being written are added for this once."""
        self._advance(now)
        tokens = list(self._tokens)
        for writing in unfinished:
            _spread(tokens, self._newest, writing)
        oldest = self._newest + 1
        return [round(tokens[number % SPANS] / SPAN_SECONDS, 1) for number in range(oldest, oldest + SPANS)]

    def _advance(self, moment: float) -> None:
        number = math.floor(moment / SPAN_SECONDS)
        for passed in range(max(self._newest + 1, number - SPANS + 1), number + 1):
            self._tokens[passed % SPANS] = 0.0
        self._newest = max(self._newest, number)


def _spread(tokens: list[float], newest: int, writing: Writing) -> None:
    """Add a writing's share to each span that the ring still holds."""
    first = max(math.floor(writing.start / SPAN_SECONDS), newest - SPANS + 1)
    last = min(math.floor(writing.end / SPAN_SECONDS), newest)
    seconds = writing.end - writing.start
    if seconds <= 0:
        if first <= last:
            tokens[last % SPANS] += writing.tokens
        return
    for number in range(first, last + 1):
        begin, end = number * SPAN_SECONDS, (number + 1) * SPAN_SECONDS
        shared = min(end, writing.end) - max(begin, writing.start)
        tokens[number % SPANS] += writing.tokens * max(shared, 0.0) / seconds
