"""Watches what else the machine does while a sample is taken, and takes disturbed samples again."""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace

import psutil

from pocketserver.bench.client import ChatClient
from pocketserver.bench.measures import Figure, Sample
from pocketserver.bench.prompts import Prompts

DISTURBED_SHARE = 0.1
"""Above this share of the machine's processor time in other hands a sample is taken again."""
MAX_ATTEMPTS = 3

Ours = Callable[[], Iterable[psutil.Process]]


def watched(figure: Figure, ours: Ours, *, attempts: int = MAX_ATTEMPTS) -> Figure:
    """The same figure; a sample is the least disturbed of a few, and tells `others_share` in its details."""

    async def measure(client: ChatClient, prompts: Prompts, number: int) -> Sample:
        taken: list[tuple[float, Sample]] = []
        for attempt in range(attempts):
            before = _Clock(ours)
            sample = await figure.measure(client, prompts, number + 1000 * attempt)
            share = before.others_share()
            taken.append((share, replace(sample, details={**sample.details, "others_share": share})))
            if share <= DISTURBED_SHARE:
                break
        return min(taken, key=lambda pair: pair[0])[1]

    return replace(figure, measure=measure)


class _Clock:
    """Processor time spent since it was made: by everybody, and by our own processes."""

    def __init__(self, ours: Ours) -> None:
        self._ours = ours
        self._started = time.perf_counter()
        self._busy = _busy_seconds()
        self._own = _own_seconds(ours())

    def others_share(self) -> float:
        """The part of the whole machine that others had, stolen time of a virtual machine included."""
        elapsed = time.perf_counter() - self._started
        others = _busy_seconds() - self._busy - (_own_seconds(self._ours()) - self._own)
        return max(0.0, others / (elapsed * (psutil.cpu_count() or 1)))


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0))


def _own_seconds(processes: Iterable[psutil.Process]) -> float:
    total = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total
