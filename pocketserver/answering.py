"""The outermost layer of the application: a request id, refusals rendered, one line and one count for each request."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Protocol

import msgspec
from aiohttp import web

from pocketserver.errors import Code, Refusal
from pocketserver.gate.entrance import route_template, too_large
from pocketserver.wire.anthropic_models import asks_models_of_anthropic
from pocketserver.wire.context import ANSWER, KEY_NAME, Answer

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
CLIENT_GONE = 499
_MOST_HEADER_CHARACTERS = 1024


class ErrorShape(Protocol):
    """One API family's error table."""

    def status(self, code: Code) -> int: ...

    def id_headers(self, request_id: str) -> Mapping[str, str]: ...

    def response(self, refusal: Refusal, *, request_id: str | None = None) -> web.Response: ...


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """One finished request, for the log and the metrics. `route` is the template, `error` the code, if any."""

    route: str | None
    method: str
    path: str
    peer: str
    request_id: str
    key_name: str | None
    status: int
    error: Code | None
    seconds: float
    answer: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Answering:
    """`families` maps a path prefix to its error shape; the longest prefix that fits wins."""

    families: Mapping[str, ErrorShape]
    max_body_bytes: int
    record: Callable[[Exchange], None]
    log: logging.Logger
    new_id: Callable[[], str]
    unix_time: Callable[[], float] = time.time
    models_for_anthropic: ErrorShape | None = None
    """The shape for clients of Anthropic's API on the list of models, a path that two families share."""
    strict: bool = False
    """Whether a field that is not honoured as asked is refused."""
    shows_warnings: bool = False
    """Whether answers say which fields were not honoured as asked."""
    _longest_first: tuple[tuple[str, ErrorShape], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        longest_first = sorted(self.families.items(), key=lambda family: -len(family[0]))
        object.__setattr__(self, "_longest_first", tuple(longest_first))

    async def stamp(self, request: web.Request, response: web.StreamResponse) -> None:
        """Give every response its id; for `Application.on_response_prepare`."""
        answer = request.get(ANSWER)
        request_id = self.new_id() if answer is None else answer.request_id
        headers = response.headers
        headers["x-request-id"] = request_id
        own = self._shape(request).id_headers(request_id)
        if own:
            headers.update(own)
        if answer is None:
            return
        if answer.turn is not None and answer.turn.joined is not None:
            headers["x-pocketserver-queue"] = str(answer.turn.joined)
        if answer.warnings and self.shows_warnings:
            headers["x-pocketserver-warnings"] = _header_of(answer.warnings)

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """The outermost one of the application."""
        arrived = time.monotonic()
        answer = request[ANSWER] = Answer(
            request_id=self.new_id(),
            arrived=arrived,
            created=int(self.unix_time()),
            strict=self.strict,
            shows_warnings=self.shows_warnings,
        )
        status = CLIENT_GONE
        error: Code | None = Code.REQUEST_CANCELLED
        try:
            response = await handler(request)
            status, error = response.status, None if answer.refusal is None else answer.refusal.code
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception as fault:  # noqa: BLE001 - the top of a request: a fault of ours is an answer, no traceback
            refusal = self._refusal_of(request, fault)
            response = self._refused(request, refusal)
            status, error = response.status, refusal.code
        finally:
            if status == CLIENT_GONE and answer.delivered:
                status, error = HTTPStatus.OK, None
            self.record(
                Exchange(
                    route=route_template(request),
                    method=request.method,
                    path=request.path,
                    peer=request.remote or "",
                    request_id=answer.request_id,
                    key_name=request.get(KEY_NAME),
                    status=status,
                    error=error,
                    seconds=time.monotonic() - arrived,
                    answer=answer,
                )
            )
        return response

    def _refusal_of(self, request: web.Request, error: Exception) -> Refusal:
        if isinstance(error, Refusal):
            return error
        if isinstance(error, web.HTTPRequestEntityTooLarge):
            return too_large(self.max_body_bytes)
        return self._fault(request, error)

    def _fault(self, request: web.Request, error: Exception) -> Refusal:
        request_id = request[ANSWER].request_id
        self.log.error("request %s failed inside the server", request_id, exc_info=error)
        return Refusal(
            Code.INTERNAL_ERROR,
            f"Something went wrong inside the server; its log has the details under request {request_id}.",
        )

    def _refused(self, request: web.Request, refusal: Refusal) -> web.Response:
        response = self._shape(request).response(refusal, request_id=request[ANSWER].request_id)
        if request.content.exception() is not None:
            response.force_close()  # its body cannot be read to the end, so nobody knows where a next request begins
        return response

    def _shape(self, request: web.Request) -> ErrorShape:
        if self.models_for_anthropic is not None and asks_models_of_anthropic(request):
            return self.models_for_anthropic
        path = request.path
        for prefix, shape in self._longest_first:
            if path.startswith(prefix):
                return shape
        return self.families["/"]  # CONNECT and `OPTIONS *` have no path at all


def _header_of(warnings: list[str]) -> str:
    """The warnings as one header line: whole ones, ASCII, as many as fit."""
    line = ""
    for warning in warnings:
        text = warning.replace(",", ";").encode("ascii", "replace").decode()
        text = "".join(character if character.isprintable() else " " for character in text)
        longer = f"{line}, {text}" if line else text
        if len(longer) > _MOST_HEADER_CHARACTERS:
            break
        line = longer
    return line
