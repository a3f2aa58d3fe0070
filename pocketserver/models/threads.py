"""Blocking work beside the event loop, told to stop when nobody waits for it any more."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

_Result = TypeVar("_Result")


async def in_thread(work: Callable[[threading.Event], _Result]) -> _Result:
    """Run blocking work that looks at its argument now and then; when we are cancelled it is told, and waited for."""
    stop = threading.Event()
    running = asyncio.ensure_future(asyncio.to_thread(work, stop))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait({running})
        running.exception()  # taken note of: the work ended because it was told to
        raise
