"""The two middlewares that a simulated device adds to the server: one sees every request, one lets faults strike."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from pocketserver.errors import Refusal
from pocketserver.simulator.fault_book import ArmedFault, Asked, refusal_of
from pocketserver.simulator.faults import FAULTS, Place
from pocketserver.simulator.faulty_writer import FaultyWriter
from pocketserver.simulator.interruptions import Break, Delay, Opening
from pocketserver.simulator.network import hang_up
from pocketserver.simulator.words import NewFault
from pocketserver.wire.context import ANSWER

if TYPE_CHECKING:
    from pocketserver.simulator.simulator import Simulator

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
PAGE = "/page/"
"""What a person looks at the device with: it is no client, so it is neither captured nor struck."""


@dataclass(frozen=True, slots=True)
class Injection:
    """Watches the requests of one simulator and lets its faults strike them."""

    simulator: "Simulator"

    @web.middleware
    async def watching(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Stands before the gate, so that refused requests are captured too."""
        if request.path.startswith(PAGE):
            return await handler(request)
        answer = request[ANSWER]
        captured = self.simulator.arrived(request.method, request.path_qs, request.headers, answer.request_id)
        captured.live_body = lambda: request._read_bytes  # noqa: SLF001 - aiohttp keeps what a handler has read
        try:
            return await handler(request)
        except Refusal as refusal:
            captured.retry_after = refusal.retry_after
            raise
        finally:
            captured.tokens, captured.time_to_first_token = answer.tokens, answer.time_to_first_token
            captured.live_body = _nothing
            self.simulator.keep_body(captured, request._read_bytes or b"")  # noqa: SLF001

    @web.middleware
    async def striking(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Stands behind the gate: a request that may not come in uses no fault up."""
        if not len(self.simulator.faults) or request.path.startswith(PAGE):
            return await handler(request)
        return await self._struck(request, handler)

    async def _struck(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        asked = Asked(method=request.method, path=request.path, document=_document(await request.read()))
        fault = self.simulator.faults.strike(asked)
        if fault is None:
            return await handler(request)
        self.simulator.struck(fault, request[ANSWER].request_id)
        match FAULTS[fault.asked.fault].place:
            case Place.REFUSAL:
                raise refusal_of(fault.asked)
            case Place.BEFORE:
                await self._before(request, fault.asked)
                return await handler(request)
            case Place.ANSWER:
                return await self._during(request, handler, fault)
            case Place.BYTES:
                return await self._bytes(request, handler, fault)

    async def _before(self, request: web.Request, asked: NewFault) -> None:
        match asked.fault:
            case "delay_headers":
                await asyncio.sleep(asked.seconds or 0.0)
            case "stall_headers":
                await asyncio.get_running_loop().create_future()
            case _:
                _hang_up(request, asked)()
                raise ConnectionResetError("the simulator closed this connection on purpose")

    async def _during(self, request: web.Request, handler: Handler, fault: ArmedFault) -> web.StreamResponse:
        asked, interruptions = fault.asked, self.simulator.engine.interruptions
        after = float(asked.after_tokens or 0)
        match asked.fault:
            case "delay_first_token" | "delay_tokens":
                interruption: Delay | Break = Delay(seconds=asked.seconds or 0.0, every=asked.fault == "delay_tokens")
            case "error_chunk":
                interruption = Break(after_tokens=after, refusal=refusal_of(asked))
            case "stall":
                interruption = Break(after_tokens=after)
            case _:
                interruption = Break(after_tokens=after, hang_up=_hang_up(request, asked))
        interruptions[request[ANSWER].request_id] = interruption
        try:
            return await handler(request)
        finally:
            interruptions.pop(request[ANSWER].request_id, None)

    async def _bytes(self, request: web.Request, handler: Handler, fault: ArmedFault) -> web.StreamResponse:
        name = fault.asked.fault
        if name == "drop_inside_character":
            self.simulator.engine.interruptions[request[ANSWER].request_id] = Opening()
        # aiohttp writes every response through this writer; nothing was written to it yet.
        request._payload_writer = FaultyWriter(request.protocol, name, _hang_up(request, fault.asked))  # noqa: SLF001
        try:
            return await handler(request)
        finally:
            self.simulator.engine.interruptions.pop(request[ANSWER].request_id, None)


def _hang_up(request: web.Request, asked: NewFault) -> Callable[[], None]:
    def now() -> None:
        if request.transport is not None:
            hang_up(request.transport, reset=asked.reset)

    return now


def _nothing() -> None:
    """A request that is answered holds on to nothing."""


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return {}
    return document if isinstance(document, dict) else {}
