"""Requests as clients sent them: the latest ones, without their keys, with what became of them."""

import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from pocketserver.chat import JsonValue

MOST_REQUESTS = 1000
MOST_BYTES = 32 * 1024 * 1024
_SECRET_HEADERS = frozenset({"authorization", "x-api-key", "api-key", "proxy-authorization", "cookie"})


class CapturedRequest(msgspec.Struct, kw_only=True, eq=False):
    """One request. Times are in real seconds; `arrived` counts from the simulator's start, `at` is device time.

    `status` is 0 while it is being answered and 499 when its client or a fault ended the connection. `fault` is the
    name of the fault it met.
    """

    id: str
    method: str
    path: str
    raw_headers: Mapping[str, str]
    arrived: float
    at: float
    live_body: Callable[[], bytes | None] = lambda: None
    """What has been read of the body while the request is being answered."""
    kept_body: bytes | None = None
    status: int = 0
    error: str | None = None
    fault: str | None = None
    retry_after: float | None = None
    seconds: float | None = None
    time_to_first_token: float | None = None
    tokens: int = 0

    @property
    def done(self) -> bool:
        return self.seconds is not None

    @property
    def body(self) -> bytes:
        """The body as far as the server has read it."""
        return (self.live_body() if self.kept_body is None else self.kept_body) or b""

    @property
    def headers(self) -> dict[str, str]:
        """As they came, the keys in them hidden."""
        return {name: _hidden(name, value) for name, value in self.raw_headers.items()}

    @property
    def json(self) -> JsonValue:
        """The body as JSON. Raises ValueError when it is none."""
        return json.loads(self.body)

    def shown(self) -> dict[str, JsonValue]:
        try:
            body = {"json": self.json}
        except ValueError:
            body = {"text": self.body.decode(errors="replace")}
        return {
            "id": self.id,
            "method": self.method,
            "path": self.path,
            "headers": self.headers,
            **body,
            "arrived": round(self.arrived, 6),
            "at": round(self.at, 6),
            "status": self.status,
            "error": self.error,
            "fault": self.fault,
            "seconds": self.seconds,
            "time_to_first_token": self.time_to_first_token,
            "tokens": self.tokens,
        }


@dataclass(slots=True)
class CapturedRequests:
    """The latest requests, bounded in number and in bytes of their bodies."""

    _requests: deque[CapturedRequest] = field(default_factory=deque)
    _bytes: int = 0

    def add(self, request: CapturedRequest) -> None:
        self._requests.append(request)
        if len(self._requests) > MOST_REQUESTS:
            self._drop()

    def keep_body(self, request: CapturedRequest, body: bytes) -> None:
        request.kept_body = body
        self._bytes += len(body)
        while self._bytes > MOST_BYTES and len(self._requests) > 1:
            self._drop()

    def clear(self) -> None:
        self._requests.clear()
        self._bytes = 0

    def all(self) -> list[CapturedRequest]:
        return [*self._requests]

    def _drop(self) -> None:
        self._bytes -= len(self._requests.popleft().kept_body or b"")


def _hidden(name: str, value: str) -> str:
    if name.lower() not in _SECRET_HEADERS:
        return value
    scheme, space, _ = value.partition(" ")
    return f"{scheme} ***" if space else "***"
