"""When an answer's events leave the model process. Knows no model."""

import time
from collections.abc import Callable, Sequence

from pocketserver.chat import Event

Emit = Callable[[Sequence[Event]], None]

_QUICK_SECONDS = 0.03
"""A step that takes longer is not made noticeably faster by waiting, and waiting for it would be noticed."""


class Outbox:
    """Events go out at once, or while the next token is chosen where tokens come faster than anybody reads.

    Choosing keeps one processor busy and decoding all of them. So what the server does with an event costs nothing
    beside the one, and holds up every thread of the other. Measured on two cores: 2.8 % more tokens a second.
    """

    def __init__(self, emit: Emit, clock: Callable[[], float] = time.perf_counter) -> None:
        self._emit = emit
        self._clock = clock
        self._waiting: list[Event] = []
        self._stepped: float | None = None
        self._is_quick = False

    def put(self, events: Sequence[Event]) -> None:
        self._waiting += events
        if not self._is_quick:
            self.flush()

    def step(self) -> None:
        """A decode is over and the next token is about to be chosen."""
        self.flush()
        now = self._clock()
        self._is_quick = self._stepped is not None and now - self._stepped < _QUICK_SECONDS
        self._stepped = now

    def flush(self) -> None:
        if self._waiting:
            events, self._waiting = self._waiting, []
            self._emit(events)
