"""What happened in the simulator, in order: for tests that wait for it and for people who watch."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import msgspec

from pocketserver.chat import JsonValue

MOST_EVENTS = 2000


class SimEvent(msgspec.Struct, frozen=True, kw_only=True):
    """`number` counts from 1 since the last reset, `seconds` is device time."""

    number: int
    seconds: float
    kind: str
    fields: dict[str, JsonValue]

    def shown(self) -> dict[str, JsonValue]:
        return {"number": self.number, "seconds": round(self.seconds, 6), "event": self.kind, **self.fields}


@dataclass(slots=True)
class EventLog:
    """The latest events. Readers that fall behind miss the oldest, which the numbers show."""

    now: Callable[[], float]
    _events: deque[SimEvent] = field(default_factory=lambda: deque(maxlen=MOST_EVENTS))
    _made: int = 0
    _news: asyncio.Event | None = None

    def add(self, kind: str, fields: dict[str, JsonValue]) -> None:
        self._made += 1
        self._events.append(SimEvent(number=self._made, seconds=self.now(), kind=kind, fields=fields))
        if self._news is not None:
            self._news.set()
            self._news = None

    def past(self) -> list[SimEvent]:
        return [*self._events]

    def clear(self) -> None:
        self._events.clear()
        self._made = 0

    async def follow(self) -> AsyncIterator[SimEvent]:
        """Past events, then each new one; never ends."""
        seen = 0
        while True:
            seen = min(seen, self._made)  # a reset begins anew
            for event in self.past():
                if event.number > seen:
                    seen = event.number
                    yield event
            if seen >= self._made:
                self._news = self._news or asyncio.Event()
                await self._news.wait()
