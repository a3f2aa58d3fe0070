"""What every family's error table does alike: status, code and headers by code. The envelope is the family's own."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from aiohttp import web

from pocketserver.errors import Code, Refusal

_HEADERS: Mapping[Code, Mapping[str, str]] = {
    Code.MISSING_API_KEY: {"WWW-Authenticate": "Bearer"},
    Code.INVALID_API_KEY: {"WWW-Authenticate": 'Bearer error="invalid_token"'},
    Code.UNSUPPORTED_ENCODING: {"Accept-Encoding": "gzip, deflate, identity"},
    # The SDKs retry every 5xx; these two do not pass by themselves.
    Code.INSUFFICIENT_MEMORY: {"x-should-retry": "false"},
    Code.CONTEXT_ALLOCATION_FAILED: {"x-should-retry": "false"},
}


class ErrorTable(ABC):
    """Renders refusals in one API family's shape, with a profile's own statuses, codes and waiting times.

    `SHAPES` gives each code's status and the family's word for its type.
    """

    SHAPES: ClassVar[Mapping[Code, tuple[int, str]]]

    def __init__(
        self,
        *,
        statuses: Mapping[Code, int],
        codes: Mapping[Code, Code],
        retry_after: Mapping[Code, float] | None = None,
    ) -> None:
        self._statuses = {code: statuses.get(code, shape[0]) for code, shape in self.SHAPES.items()}
        self._codes = codes
        self._retry_after = retry_after or {}

    def status(self, code: Code) -> int:
        return self._statuses[code]

    def type_of(self, code: Code) -> str:
        return self.SHAPES[code][1]

    def code(self, code: Code) -> Code:
        """The word that this profile uses for a code."""
        return self._codes.get(code, code)

    def id_headers(self, request_id: str) -> Mapping[str, str]:  # noqa: ARG002 - most families have none of their own
        """What names a request to this family's clients, on every response."""
        return {}

    @abstractmethod
    def envelope(self, refusal: Refusal, *, request_id: str | None = None) -> bytes:
        """The JSON error document; also the body of an error in mid-stream."""

    def response(self, refusal: Refusal, *, request_id: str | None = None) -> web.Response:
        headers = dict(_HEADERS.get(refusal.code, {}))
        seconds = self._retry_after.get(refusal.code, refusal.retry_after)
        if seconds is not None:
            headers["Retry-After"] = f"{seconds:g}"
        if refusal.allow:
            headers["Allow"] = ", ".join(refusal.allow)
        return web.Response(
            body=self.envelope(refusal, request_id=request_id),
            status=self.status(refusal.code),
            headers=headers,
            content_type="application/json",
        )
