"""Lines on their way to a stream that may be slow, full or gone: a bounded queue and one thread that writes."""

import os
import queue
import select
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Generic, TextIO, TypeVar

Item = TypeVar("Item")

_MOST_LINES_AT_ONCE = 256
_CLOSE_SECONDS = 1.0
_FULL_PIPE_SECONDS = 1.0
_GATHER_SECONDS = 0.02
"""How long a first line waits for others: waking this thread for each one would cost a busy server its GIL."""


class LineWriter(Generic[Item]):
    """Writes items as lines, in order. `put` never waits: a line that finds no place, or cannot be written, is
    dropped and counted, and the number is told (`tell_dropped` makes that line) as soon as lines go through again.
    """

    def __init__(
        self,
        stream: TextIO,
        line: Callable[[Item], str],
        tell_dropped: Callable[[int], Item],
        *,
        most_waiting: int = 10_000,
    ) -> None:
        self._stream = stream
        self._descriptor = _descriptor(stream)
        self._line = line
        self._tell_dropped = tell_dropped
        self._most_waiting = most_waiting
        self._items: queue.SimpleQueue[Item | None] = queue.SimpleQueue()  # its `put` costs a tenth of Queue's
        self._counting = threading.Lock()
        self._dropped = 0
        self._told = 0
        self._closed = False
        self._closing = threading.Event()
        # A daemon, because a write to a pipe that nobody reads cannot be ended from outside.
        self._thread = threading.Thread(target=self._run, name="log writer", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Lines that were not written since the start."""
        return self._dropped

    def put(self, item: Item) -> None:
        if self._closed:
            return
        if self._items.qsize() >= self._most_waiting:
            self._drop(1)
        else:
            self._items.put(item)

    def close(self) -> None:
        """Write what is waiting, for a second at most; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._closing.set()
        self._items.put(None)
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        going = True
        while going:
            items = self._take()
            going = None not in items
            self._write([item for item in items if item is not None])

    def _take(self) -> list[Item | None]:
        """Wait for one item and take what else is there: a busy server's lines cost one write for many."""
        items = [self._items.get()]
        self._closing.wait(_GATHER_SECONDS)
        with suppress(queue.Empty):
            while items[-1] is not None and len(items) < _MOST_LINES_AT_ONCE:
                items.append(self._items.get_nowait())
        return items

    def _write(self, items: Sequence[Item]) -> None:
        untold = self._dropped - self._told
        if untold:
            items = [self._tell_dropped(untold), *items]
        try:
            self._send("".join(f"{self._line(item)}\n" for item in items))
        except Exception:  # noqa: BLE001 - the top of this thread: a log that fails must not end anything
            self._drop(len(items) - bool(untold))
        else:
            self._told += untold

    def _drop(self, lines: int) -> None:
        with self._counting:
            self._dropped += lines

    def _send(self, text: str) -> None:
        if self._descriptor is None:
            self._stream.write(text)
            self._stream.flush()
            return
        # Past the stream's buffer: a thread that hangs in a write would hold its lock and so hang the exit too.
        rest = memoryview(text.encode("utf-8", "backslashreplace"))
        while rest:
            rest = rest[self._write_some(self._descriptor, rest) :]

    def _write_some(self, descriptor: int, data: memoryview) -> int:
        try:
            return os.write(descriptor, data)
        except BlockingIOError:  # somebody made the terminal or pipe non-blocking, and it is full
            if not select.select([], [descriptor], [], _FULL_PIPE_SECONDS)[1]:
                raise
            return 0


def _descriptor(stream: TextIO) -> int | None:
    try:
        stream.flush()
        return stream.fileno()
    except (OSError, ValueError, AttributeError):
        return None
