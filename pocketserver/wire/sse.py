"""Server-sent events: framing, headers and the end of a stream. It knows no API."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from aiohttp import web

from pocketserver.chat import Event
from pocketserver.errors import Refusal
from pocketserver.wire.context import ANSWER

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

    def render(self, event: Event) -> bytes: ...


def message(data: bytes) -> bytes:
    """One event without a name. Neither `id:` nor `retry:` is ever sent: official clients stumble over both."""
    return b"data: " + data + b"\n\n"


async def respond(
    request: web.Request,
    batches: AsyncIterator[Sequence[Event]],
    renderer: Renderer,
    *,
    on_error: Callable[[Refusal], bytes],
) -> web.StreamResponse:
    """Send headers at once, then one write a batch.

    A Refusal in mid-stream becomes `on_error`'s bytes and the stream ends without `last`: a broken answer must not
    look whole. Raises ConnectionResetError when the client has gone.
    """
    response = web.StreamResponse(headers=HEADERS)
    await response.prepare(request)
    answer = request[ANSWER]
    try:
        await response.write(renderer.first)
        async for batch in batches:
            answer.note(batch)
            data = b"".join(map(renderer.render, batch))
            if data:
                await response.write(data)
        await response.write(renderer.last)
    except Refusal as refusal:
        answer.refusal = refusal
        await response.write(on_error(refusal))
    await response.write_eof()
    return response
