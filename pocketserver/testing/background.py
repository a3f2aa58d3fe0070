"""An event loop in a thread, so that tests without asyncio can have a server beside them."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

Result = TypeVar("Result")
_LIMIT_SECONDS = 60.0


class Background:
    """`with Background() as background`: coroutines and calls run in its loop and give their results here."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pocketserver", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.run(_end_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_LIMIT_SECONDS)
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine to its end; its exception is raised here."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_LIMIT_SECONDS)

    def call(self, work: Callable[[], Result]) -> Result:
        """Call something in the loop's thread."""

        async def called() -> Result:
            return work()

        return self.run(called())


async def _end_tasks() -> None:
    """What is still there when the run ends is cancelled, so that no test run hangs at its end."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_default_executor()
