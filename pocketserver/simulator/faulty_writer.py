"""A response writer that does something wrong with the bytes. It takes the place of aiohttp's own for one request."""

import asyncio
import re
from collections.abc import Callable
from typing import Any

from aiohttp import hdrs
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_writer import StreamWriter
from multidict import CIMultiDict

_SAYS_SOMETHING = re.compile(
    rb'"(?:content|text|reasoning_content|reasoning|thinking|partial_json|arguments|response|delta)":\s?"(?!")'
)
"""A message with a piece of answer, in any API: some field of these holds text that is not empty."""
_SEPARATORS = {"text/event-stream": b"\n\n", "application/x-ndjson": b"\n"}


class FaultyWriter(StreamWriter):
    """Writes a response with one fault of place BYTES; `hang_up` closes the connection."""

    def __init__(self, protocol: BaseProtocol, fault: str, hang_up: Callable[[], None]) -> None:
        super().__init__(protocol, asyncio.get_running_loop())
        self._fault = fault
        self._hang_up = hang_up
        self._separator: bytes | None = None
        self._rest = b""
        self._held: list[bytes] = []
        self._said = 0
        self._deaf = False
        """Whether nothing more of the body is sent: what follows was cut away."""

    async def write_headers(self, status_line: str, headers: "CIMultiDict[str]") -> None:
        self._separator = _SEPARATORS.get(headers.get(hdrs.CONTENT_TYPE, "").split(";")[0])
        match self._fault:
            case "wrong_content_type":
                headers[hdrs.CONTENT_TYPE] = "text/html"
            case "drop_inside_headers":
                self._write(f"{status_line}\r\n{hdrs.CONTENT_TYPE}: applica".encode())
                self._end_connection()
            case "truncated_json" if self.length is not None:
                self.length //= 2
                headers[hdrs.CONTENT_LENGTH] = str(self.length)
        await super().write_headers(status_line, headers)
        if self._fault == "drop_after_headers":
            super().send_headers()
            self._end_connection()

    async def write(self, chunk: Any, *, drain: bool = True, LIMIT: int = 0x10000) -> None:  # noqa: N803 - aiohttp's name
        if self._separator is None:
            await super().write(chunk, drain=drain, LIMIT=LIMIT)
            return
        *messages, self._rest = (self._rest + bytes(chunk)).split(self._separator)
        for message in messages:
            if not self._deaf:
                await self._message(message + self._separator)

    async def write_eof(self, chunk: bytes = b"") -> None:
        if self._separator is None:
            await self._whole(chunk)
            return
        if self._fault == "out_of_order_chunks":
            await self._send(*self._held)
        await super().write_eof(b"" if self._deaf else self._rest)

    async def _whole(self, body: bytes) -> None:
        """A body that is not a stream."""
        if self._fault == "truncated_json" and self.length is not None:
            body = body[: self.length]
        elif self._fault == "drop_inside_line":
            await self._send(body[: len(body) // 2])
            self._end_connection()
        elif self._fault == "drop_inside_character":
            await self._cut_character(body)
        await super().write_eof(body)

    async def _message(self, message: bytes) -> None:
        """One message of a stream, with its end mark."""
        says = _SAYS_SOMETHING.search(message) is not None
        self._said += says
        match self._fault:
            case "missing_done":
                await self._send(*self._held)
                self._held = [message]
            case "duplicate_chunks" if says:
                await self._send(message, message)
            case "out_of_order_chunks" if says and self._said == 2:
                self._held = [message]
            case "out_of_order_chunks":
                await self._send(message, *self._held)
                self._held = []
            case "drop_inside_line" if says:
                await self._send(message[: len(message) // 2])
                self._end_connection()
            case "drop_inside_character":
                await self._cut_character(message)
                await self._send(message)
            case "truncated_json" if says:
                self._deaf = True
                assert self._separator is not None
                await self._send(message[: len(message) // 2] + self._separator)
            case _:
                await self._send(message)

    async def _cut_character(self, data: bytes) -> None:
        found = re.search(rb"[\xc2-\xf4]", data)
        if found is not None:
            await self._send(data[: found.end()])
            self._end_connection()

    async def _send(self, *messages: bytes) -> None:
        for message in messages:
            await super().write(message)

    def _end_connection(self) -> None:
        self.send_headers()
        self._hang_up()
        raise ConnectionResetError("the simulator closed this connection on purpose")
