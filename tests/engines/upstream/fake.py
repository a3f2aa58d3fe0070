"""An upstream that answers with exactly the bytes a test wants. A stand-in for engines that cannot be had here."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

MODELS = b'{"object":"list","data":[{"id":"org/real-name","object":"model","created":0,"max_model_len":4096}]}'

Answer = Callable[["Asked", asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Asked:
    """One request as it came, and whether its peer has left."""

    path: str
    headers: dict[str, str]
    body: bytes
    left: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class FakeUpstream:
    """`answer` writes the whole response, status line included; `/models` always works."""

    answer: Answer
    port: int = 0
    asked: list[Asked] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            asked = await _read(reader)
            if asked.path.endswith("/models"):
                writer.write(plain(200, MODELS))
                await writer.drain()
                return
            self.asked.append(asked)
            watching = asyncio.create_task(_watch(reader, asked))
            try:
                await self.answer(asked, writer)
                await writer.drain()
            finally:
                watching.cancel()
        except ConnectionError:
            if self.asked:
                self.asked[-1].left.set()
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def fake_upstream(answer: Answer) -> AsyncIterator[FakeUpstream]:
    upstream = FakeUpstream(answer)
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
    upstream.port = server.sockets[0].getsockname()[1]
    try:
        yield upstream
    finally:
        server.close()
        await server.wait_closed()


def plain(status: int, body: bytes, kind: str = "application/json", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Type: {kind}", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def saying(data: bytes) -> Answer:
    """An answer that writes these bytes at once."""

    async def answer(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(data)

    return answer


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


async def _read(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Asked(first.split(" ")[1], headers, body)


async def _watch(reader: asyncio.StreamReader, asked: Asked) -> None:
    """A client that says nothing more and then ends has left."""
    with suppress(ConnectionError):
        await reader.read(1)
    asked.left.set()
