"""Steps of a pull or a creation on their way to one reader, who may be slow: of each kind only the newest is kept."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from pocketserver.errors import Refusal
from pocketserver.models.stored import Step

MAX_UNREAD = 100


class StepStream:
    """Written in the event loop by whoever does the work, read by one reader. Iteration ends after `close`."""

    def __init__(self) -> None:
        self._steps: deque[Step] = deque(maxlen=MAX_UNREAD)
        self._changed = asyncio.Event()
        self._failure: Refusal | None = None
        self._closed = False

    def put(self, step: Step) -> None:
        """A step; it takes the place of an unread one that says the same with an older number."""
        if self._steps and self._steps[-1].status == step.status:
            self._steps.pop()
        self._steps.append(step)
        self._changed.set()

    def fail(self, refusal: Refusal) -> None:
        """End the stream with an error, after the steps that came before."""
        self._failure = refusal
        self._changed.set()

    def close(self) -> None:
        self._closed = True
        self._changed.set()

    def reporter(self) -> Callable[[Step], None]:
        """`put` for use in threads."""
        loop = asyncio.get_running_loop()

        def report(step: Step) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(self.put, step)

        return report

    def __aiter__(self) -> "StepStream":
        return self

    async def __anext__(self) -> Step:
        while not self._steps:
            if self._failure is not None:
                raise self._failure
            if self._closed:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return self._steps.popleft()
