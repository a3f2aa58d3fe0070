"""A web server for downloads that does what servers do on bad days."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

PATH = "/models/tiny.gguf"


@dataclass(slots=True)
class DownloadServer:
    """Serves one file. `bad_days` are taken one a request; without any left it behaves."""

    content: bytes
    etag: str = '"one"'
    bad_days: list[Callable[["DownloadServer", web.Request], web.StreamResponse | None]] = field(default_factory=list)
    break_after: int | None = None
    stall_after: int | None = None
    ignore_range: bool = False
    requests: list[web.Request] = field(default_factory=list)
    sent_bytes: int = 0
    released: asyncio.Event = field(default_factory=asyncio.Event)
    host: str = "127.0.0.1"
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}{PATH}"

    @property
    def asked(self) -> list[str]:
        """The ranges that were asked for."""
        return [request.headers.get("Range", "") for request in self.requests]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        if self.bad_days:
            answered = self.bad_days.pop(0)(self, request)
            if answered is not None:
                return answered
        return await self._send(request)

    async def _send(self, request: web.Request) -> web.StreamResponse:
        start = self._start(request)
        body = self.content[start:]
        response = web.StreamResponse(status=206 if start else 200, headers={"ETag": self.etag} if self.etag else {})
        if start:
            response.headers["Content-Range"] = f"bytes {start}-{len(self.content) - 1}/{len(self.content)}"
        response.content_length = len(body)
        await response.prepare(request)
        limit, self.break_after = self.break_after, None
        stall, self.stall_after = self.stall_after, None
        cut = limit if limit is not None else stall
        await response.write(body if cut is None else body[:cut])
        self.sent_bytes += len(body) if cut is None else cut
        if stall is not None:
            await self.released.wait()
            await response.write(body[stall:])
        if limit is not None:
            assert request.transport is not None
            request.transport.close()
        return response

    def _start(self, request: web.Request) -> int:
        asked = request.headers.get("Range")
        if asked is None or self.ignore_range or request.headers.get("If-Range", self.etag) != self.etag:
            return 0
        return int(asked.removeprefix("bytes=").removesuffix("-"))


@asynccontextmanager
async def serving(content: bytes, *, host: str = "127.0.0.1") -> AsyncIterator[DownloadServer]:
    server = DownloadServer(content, host=host)
    application = web.Application()
    application.router.add_get("/{path:.*}", server.answer)
    runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.port = runner.addresses[0][1]
        yield server
    finally:
        server.released.set()
        await runner.cleanup()
