"""Waiting for a condition, under a limit that only a hang meets."""

import asyncio
import time
from collections.abc import Callable

LIMIT_SECONDS = 30.0


async def until(condition: Callable[[], bool], limit: float = LIMIT_SECONDS) -> None:
    """Let other tasks run until the condition holds."""
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        await asyncio.sleep(0.005)
