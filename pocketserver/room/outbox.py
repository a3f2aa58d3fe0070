"""What is to be sent on one link: in order, by one task, never more than a bounded number of bytes."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

MOST_UNSENT_BYTES = 1024 * 1024
"""An answer of ten thousand tokens: whoever reads more slowly than the model writes delays nobody before that."""

_MOST_FRAME_BYTES = 8 * 1024 * 1024
"""One large frame may be under way, whatever is behind it."""


class Outbox:
    """Frames on their way out. `send` is the connection's own; it may wait for a slow reader."""

    def __init__(self, send: Callable[[bytes], Awaitable[None]], *, most_bytes: int = MOST_UNSENT_BYTES) -> None:
        self._send = send
        self._most_bytes = most_bytes
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()

    @property
    def overfull(self) -> bool:
        """Whether even what does not wait for room has become too much."""
        return self._bytes > 2 * self._most_bytes + _MOST_FRAME_BYTES

    def put(self, frame: bytes) -> None:
        """Send this when everything before it has gone. For messages that are few; events go by `put_in_turn`."""
        self._frames.append(frame)
        self._bytes += len(frame)
        self._filled.set()

    async def put_in_turn(self, frame: bytes, seconds: float) -> None:
        """As `put`, once there is room for it. Raises TimeoutError when there is none within so many seconds."""
        if self._bytes and self._bytes + len(frame) > self._most_bytes:
            async with asyncio.timeout(seconds):
                while self._bytes and self._bytes + len(frame) > self._most_bytes:
                    self._emptied.clear()
                    await self._emptied.wait()
        self.put(frame)

    async def run(self) -> None:
        """Send until cancelled, or until the connection fails."""
        while True:
            while self._frames:
                frame = self._frames[0]
                await self._send(frame)
                self._frames.popleft()
                self._bytes -= len(frame)
                self._emptied.set()
            self._filled.clear()
            await self._filled.wait()
