"""One upstream server: its connections, its health, its models, and how a request is sent to it."""

import asyncio
import base64
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from pocketserver.chat import EmbeddingInput, Embeddings, ModelInfo
from pocketserver.engines.upstream import faults

VIA_HEADER = "x-pocketserver-via"
"""The servers that a request has passed, so that none passes it twice."""
CONNECT_SECONDS = 3.0
PROBE_SECONDS = 5.0
MAX_BODY_BYTES = 32 * 1024 * 1024
_BAD_IN_A_ROW = 2


class _Model(msgspec.Struct):
    id: str
    created: int | None = None
    max_model_len: int | None = None
    context_size: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _Vector(msgspec.Struct):
    embedding: Any
    index: int = 0


class _VectorUsage(msgspec.Struct):
    prompt_tokens: int = 0


class _Vectors(msgspec.Struct):
    data: list[_Vector]
    usage: _VectorUsage = msgspec.field(default_factory=_VectorUsage)


class Endpoint:
    """A base URL such as `http://127.0.0.1:8000/v1`. Healthy until two failures in a row; one success heals.

    `via` is our own name in the chain of servers, sent with every request.
    """

    def __init__(self, base_url: str, key: str | None, via: str) -> None:
        self.base_url = base_url.rstrip("/")
        self.models: Sequence[ModelInfo] = ()
        self._key = key
        self._via = via
        self._failures = 0
        self._known = False
        self._session: aiohttp.ClientSession | None = None

    @property
    def healthy(self) -> bool:
        return self._known and self._failures < _BAD_IN_A_ROW

    def failed(self) -> None:
        self._failures += 1

    def answered(self) -> None:
        self._failures = 0

    async def probe(self) -> None:
        """Ask for its models, which also tells whether it lives."""
        try:
            async with asyncio.timeout(PROBE_SECONDS), self._connection().get(f"{self.base_url}/models") as response:
                body = await _bounded(response)
                if response.status != 200:
                    raise faults.from_status(response.status, response.headers, body)
                self.models = _models(body)
        except (aiohttp.ClientError, OSError, TimeoutError, faults.UpstreamFault):
            self.failed()
        else:
            self._known = True
            self.answered()

    @asynccontextmanager
    async def stream(
        self, path: str, body: dict[str, Any], via: Sequence[str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer to a request, once its status is known to be good. Leaving the block closes its connection.

        Raises UpstreamFault.
        """
        try:
            response = await self._connection().post(
                self.base_url + path, data=msgspec.json.encode(body), headers=self._headers(via)
            )
        except (aiohttp.ClientError, OSError, TimeoutError):
            self.failed()
            raise faults.unreachable() from None
        try:
            if response.status != 200:
                fault = faults.from_status(response.status, response.headers, await _beginning(response))
                if fault.unhealthy:
                    self.failed()
                raise fault
            self.answered()
            yield response
        finally:
            response.close()  # never back into the pool half-read; that is also how an upstream learns to stop

    async def embed(self, model: str, inputs: Sequence[EmbeddingInput], via: Sequence[str]) -> Embeddings:
        """Vectors as the upstream makes them. Raises UpstreamFault."""
        body = {"model": model, "input": list(inputs), "encoding_format": "float"}
        async with self.stream("/embeddings", body, via) as response:
            try:
                found = msgspec.json.decode(await _bounded(response), type=_Vectors)
                vectors = [_floats(entry.embedding) for entry in sorted(found.data, key=lambda entry: entry.index)]
            except (msgspec.DecodeError, ValueError, struct.error, aiohttp.ClientError, OSError):
                raise faults.broken() from None
        if len(vectors) != len(inputs):
            raise faults.broken()
        return Embeddings(vectors=tuple(vectors), prompt_tokens=found.usage.prompt_tokens)

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _connection(self) -> aiohttp.ClientSession:
        """Made at the first use, since it belongs to the running loop."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, connect=CONNECT_SECONDS),
                auto_decompress=True,
                headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
                connector=aiohttp.TCPConnector(limit=64, keepalive_timeout=30),
            )
        return self._session

    def _headers(self, via: Sequence[str]) -> dict[str, str]:
        return {
            "Content-Type": "application/json",
            "Accept": "text/event-stream, application/json",
            "Accept-Encoding": "identity",  # a compressed stream waits for its window to fill
            VIA_HEADER: ", ".join([*via, self._via]),
        }


async def whole_body(response: aiohttp.ClientResponse) -> bytes:
    """A body that is not streamed. Raises UpstreamFault when it is larger than anybody would send in earnest."""
    try:
        return await _bounded(response)
    except (aiohttp.ClientError, OSError):
        raise faults.broken() from None


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise faults.broken()
    return bytes(body)


async def _beginning(response: aiohttp.ClientResponse) -> bytes:
    """As much of an error's body as can hold a sentence."""
    body = bytearray()
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            async for piece in response.content.iter_any():
                body += piece
                if len(body) > faults.MAX_ERROR_BYTES:
                    break
    except (aiohttp.ClientError, OSError, TimeoutError):
        pass  # what came is all there is
    return bytes(body[: faults.MAX_ERROR_BYTES])


def _models(body: bytes) -> Sequence[ModelInfo]:
    try:
        listed = msgspec.json.decode(body, type=_Models).data
    except (msgspec.DecodeError, RecursionError):
        raise faults.broken() from None
    return [
        ModelInfo(
            id=model.id, loaded=True, created=model.created or 0, context_size=model.max_model_len or model.context_size
        )
        for model in listed
    ]


def _floats(vector: Any) -> tuple[float, ...]:
    """Numbers, or base64 of little-endian float32, from upstreams that send that unasked."""
    if isinstance(vector, str):
        data = base64.b64decode(vector, validate=True)
        return struct.unpack(f"<{len(data) // 4}f", data)
    return tuple(msgspec.convert(vector, list[float]))
