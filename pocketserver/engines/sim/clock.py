"""The device's own time: as fast as the wall clock, a multiple of it, or virtual, where waiting costs nothing."""

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field

EPOCH = 1_767_225_600
"""Unix time at which virtual time begins, so that the times in answers are the same in every run."""


@dataclass(slots=True, order=True)
class Timer:
    """A call that is due at a device time. Cancelling it is safe at any moment."""

    when: float
    order: int
    callback: Callable[[], None] = field(compare=False)
    cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        self.cancelled = True


class DeviceClock:
    """Seconds since the device was switched on.

    `speed` is device seconds for each real second; None is virtual time, which moves only by `advance`, so that the
    same requests meet the same device in every run. Timers fire in order of their time, at exactly that time when the
    clock is virtual. Not thread-safe; real timers need a running event loop.
    """

    def __init__(self, speed: float | None = 1.0) -> None:
        self._speed = speed
        self.virtual = speed is None
        self._base = 0.0
        self._since = time.perf_counter()
        self._timers: list[Timer] = []
        self._order = itertools.count()
        self._armed: asyncio.TimerHandle | None = None

    @property
    def speed(self) -> float | None:
        return self._speed

    def now(self) -> float:
        if self._speed is None:
            return self._base
        return self._base + (time.perf_counter() - self._since) * self._speed

    def unix_time(self) -> float:
        """What the device's calendar shows: the true time, or a fixed beginning plus virtual time."""
        return EPOCH + self._base if self._speed is None else time.time()

    def real_seconds(self, until: float) -> float:
        """How long to wait really until this device time; 0 when it is past, or when time is virtual."""
        if self._speed is None:
            return 0.0
        return max(0.0, (until - self.now()) / self._speed)

    def set_speed(self, speed: float | None) -> None:
        self._base = self.now()
        self._since = time.perf_counter()
        self._speed = speed
        self.virtual = speed is None
        self._arm()

    def advance(self, seconds: float) -> None:
        """Let device time pass at once, firing what becomes due on the way."""
        if self._speed is None and not self._timers:
            self._base += seconds
            return
        target = self.now() + seconds
        while self._timers and self._timers[0].when <= target:
            timer = heapq.heappop(self._timers)
            if not timer.cancelled:
                self._jump(max(timer.when, self.now()))
                timer.callback()
        self._jump(max(target, self.now()))
        self._arm()

    def next_timer(self) -> float | None:
        """When the next call is due."""
        while self._timers and self._timers[0].cancelled:
            heapq.heappop(self._timers)
        return self._timers[0].when if self._timers else None

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(when=when, order=next(self._order), callback=callback)
        heapq.heappush(self._timers, timer)
        self._arm()
        return timer

    def reset(self) -> None:
        """Back to the first second, without timers."""
        self._timers.clear()
        self._jump(0.0)
        self._arm()

    def close(self) -> None:
        self._timers.clear()
        self._arm()

    def _jump(self, to: float) -> None:
        self._base = to
        self._since = time.perf_counter()

    def _arm(self) -> None:
        if self._armed is not None:
            self._armed.cancel()
            self._armed = None
        due = self.next_timer()
        if due is not None and self._speed is not None:
            self._armed = asyncio.get_running_loop().call_later(self.real_seconds(due), self._fire)

    def _fire(self) -> None:
        self._armed = None
        self.advance(0.0)
