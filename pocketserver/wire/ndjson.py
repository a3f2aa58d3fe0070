"""Newline-delimited JSON: framing, headers and the end of a stream. It knows no API."""

from collections.abc import AsyncIterator, Callable

from aiohttp import web

from pocketserver.errors import Refusal
from pocketserver.wire.context import ANSWER

HEADERS = {
    "Content-Type": "application/x-ndjson",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # a reverse proxy must not collect lines
}


async def respond(
    request: web.Request, pieces: AsyncIterator[bytes], *, on_error: Callable[[Refusal], bytes]
) -> web.StreamResponse:
    """One write for each piece, which holds whole lines.

    Headers wait for the first piece: until then a Refusal still is an answer with its own status. Later it becomes
    `on_error`'s bytes as the last line. Nothing else is ever written: clients parse each line as JSON, empty ones too.
    Raises ConnectionResetError when the client has gone.
    """
    first = await anext(pieces, b"")
    response = web.StreamResponse(headers=HEADERS)
    await response.prepare(request)
    try:
        await response.write(first)
        request[ANSWER].written()
        async for piece in pieces:
            await response.write(piece)
            request[ANSWER].written()
    except Refusal as refusal:
        request[ANSWER].refusal = refusal
        await response.write(on_error(refusal) + b"\n")
    await response.write_eof()
    return response
