"""Server-sent events: framing, headers and the end of a stream. It knows no API."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Protocol, Self

from aiohttp import web

from pocketserver.chat import Event
from pocketserver.errors import Refusal
from pocketserver.wire.context import ANSWER, Patience

HEADERS = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # a reverse proxy must not collect small events
}


class Renderer(Protocol):
    """One answer's events as framed bytes. `last` is read after the final event, and only if the answer is whole."""

    @property
    def first(self) -> bytes: ...

    @property
    def last(self) -> bytes: ...

    @property
    def keep_alive(self) -> bytes:
        """What may be written in a pause without meaning anything."""
        ...

    def render(self, event: Event) -> bytes: ...


COMMENT = b": keep-alive\n\n"
"""A line that every parser of server-sent events skips."""


def message(data: bytes) -> bytes:
    """One event without a name. Neither `id:` nor `retry:` is ever sent: official clients stumble over both."""
    return b"data: " + data + b"\n\n"


class Stream:
    """One streamed answer: headers once nothing can be refused any more, then one write a batch.

    ```
    async with Stream(…) as stream, access.turn(request) as turn, Choices(turn, …) as batches:
        await stream.send(batches)
    return stream.response
    ```

    While the block is being entered a client that has patience for it gets its headers early, and comments that tell
    its place in the line. A Refusal is raised as long as no header went out; after that it becomes `on_error`'s bytes,
    and the stream ends without `last`: a broken answer must not look whole.
    """

    def __init__(
        self,
        request: web.Request,
        renderer: Renderer,
        *,
        on_error: Callable[[Refusal], bytes],
        waiting: Patience,
    ) -> None:
        self.response = web.StreamResponse(headers=HEADERS)
        self._request = request
        self._renderer = renderer
        self._on_error = on_error
        self._waiting = waiting
        self._comments: asyncio.Task[None] | None = None
        self._last_write = time.monotonic()

    async def __aenter__(self) -> Self:
        if self._waiting.early_headers_after is not None:
            self._comments = asyncio.create_task(self._say_where_it_stands(self._waiting.early_headers_after))
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> bool:
        await self._end_comments()
        if not isinstance(error, Refusal) or not self.response.prepared:
            return False
        self._request[ANSWER].refusal = error
        await self.response.write(self._on_error(error))
        await self.response.write_eof()
        return True

    async def send(self, batches: AsyncIterator[Sequence[Event]]) -> None:
        """Write the whole answer. Raises ConnectionResetError when the client has gone."""
        await self._end_comments()
        if not self.response.prepared:
            await self.response.prepare(self._request)
        answer, renderer = self._request[ANSWER], self._renderer
        async with self._kept_alive():
            await self._write(renderer.first)
            async for batch in batches:
                answer.note(batch)
                data = b"".join(map(renderer.render, batch))
                if data:
                    await self._write(data)
                answer.written()
        await self._write(renderer.last)
        await self.response.write_eof()

    async def _write(self, data: bytes) -> None:
        self._last_write = time.monotonic()
        await self.response.write(data)

    async def _say_where_it_stands(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        with contextlib.suppress(ConnectionError):  # the request's own task sees it too
            await self.response.prepare(self._request)
            while True:
                turn = self._request[ANSWER].turn
                place = None if turn is None else turn.place
                await self._write(b": waiting\n\n" if place is None else f": queued {place}\n\n".encode())
                await asyncio.sleep(self._waiting.keep_alive_every or seconds)

    async def _end_comments(self) -> None:
        """Whatever the task was writing is whole afterwards: a write of a few bytes does not wait."""
        task, self._comments = self._comments, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @asynccontextmanager
    async def _kept_alive(self) -> AsyncIterator[None]:
        every = self._waiting.keep_alive_every
        if every is None:
            yield
            return
        task = asyncio.create_task(self._fill_pauses(every))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _fill_pauses(self, every: float) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                await asyncio.sleep(max(every - (time.monotonic() - self._last_write), 0.05))
                if time.monotonic() - self._last_write >= every:
                    await self._write(self._renderer.keep_alive)
