"""Server-sent events: framing, headers and the end of a stream. It knows no API."""

from collections.abc import AsyncIterator, Callable, Sequence

from aiohttp import web

from pocketserver.chat import Event
from pocketserver.errors import Refusal

HEADERS = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # a reverse proxy must not collect small events
}


def message(data: bytes) -> bytes:
    """One event without a name. Neither `id:` nor `retry:` is ever sent: official clients stumble over both."""
    return b"data: " + data + b"\n\n"


async def respond(
    request: web.Request,
    batches: AsyncIterator[Sequence[Event]],
    *,
    first: bytes,
    render: Callable[[Event], bytes],
    last: bytes,
    on_error: Callable[[Refusal], bytes],
) -> web.StreamResponse:
    """Send headers at once, then one write a batch. `render` gives framed bytes.

    A Refusal in mid-stream becomes `on_error`'s bytes and the stream ends without `last`: a broken answer must not
    look whole. Raises ConnectionResetError when the client has gone.
    """
    response = web.StreamResponse(headers=HEADERS)
    await response.prepare(request)
    try:
        await response.write(first)
        async for batch in batches:
            data = b"".join(map(render, batch))
            if data:
                await response.write(data)
        await response.write(last)
    except Refusal as refusal:
        request["refusal"] = refusal
        await response.write(on_error(refusal))
    await response.write_eof()
    return response
