"""One upstream server: its connections, its health, its models, and how a request is sent to it."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from pocketserver.chat import EmbeddingInput, Embeddings, ModelInfo
from pocketserver.engines.upstream import faults
from pocketserver.engines.upstream.vectors import embeddings

VIA_HEADER = "x-pocketserver-via"
"""The servers that a request has passed, so that none passes it twice."""
CONNECT_SECONDS = 3.0
PROBE_SECONDS = 5.0
MAX_BODY_BYTES = 32 * 1024 * 1024
REUSE_SECONDS = 4.0
"""How long an idle connection is kept: shorter than the 5 seconds after which uvicorn's servers end theirs."""
LAST_WORDS_SECONDS = 1.0
_FAULTS = (aiohttp.ClientError, OSError, TimeoutError)
_BAD_IN_A_ROW = 2


class _Model(msgspec.Struct):
    id: str
    created: int | None = None
    max_model_len: int | None = None
    context_size: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class Endpoint:
    """A base URL such as `http://127.0.0.1:8000/v1`. Healthy until two failures in a row; one success heals.

    `via` is our own name in the chain of servers, sent with every request. `model` is the only one of a server that
    lists none. `outcomes` counts requests: `accepted`, `refused` (the request was at fault), `failed`, and `broken` of
    those that had been accepted.
    """

    def __init__(self, base_url: str, key: str | None, via: str, model: str | None = None) -> None:
        self.base_url = base_url.rstrip("/")
        self.models: Sequence[ModelInfo] = ()
        self.outcomes = dict.fromkeys(("accepted", "refused", "failed", "broken"), 0)
        self.problem: faults.UpstreamFault | None = None
        """Why the last look at it failed."""
        self._key = key
        self._via = via
        self._model = model
        self._failures = 0
        self._known = False
        self._session: aiohttp.ClientSession | None = None
        self._settling: dict[aiohttp.ClientResponse, asyncio.Task[None]] = {}
        """Answers whose last event has come, and who reads what is left of their bodies."""

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
            async with asyncio.timeout(PROBE_SECONDS):
                self.models = await self._listed()
        except (*_FAULTS, faults.UpstreamFault) as error:
            self.problem = error if isinstance(error, faults.UpstreamFault) else faults.unreachable()
            self.failed()
        else:
            self.problem = None
            self._known = True
            self.answered()

    async def _listed(self) -> Sequence[ModelInfo]:
        request = self._connection().get(
            f"{self.base_url}/models", headers={VIA_HEADER: self._via}, allow_redirects=False
        )
        async with request as response:
            body = await _bounded(response)
            if response.status in (404, 405, 501) and self._model is not None:
                return [ModelInfo(id=self._model, loaded=True)]
            if response.status != 200:
                raise faults.from_status(response.status, response.headers, body)
            return _models(body)

    @asynccontextmanager
    async def stream(
        self, path: str, body: dict[str, Any], via: Sequence[str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer to a request, once its status is known to be good. Raises UpstreamFault.

        A body that was read to its end leaves its connection to the next request. Leaving the block earlier closes it:
        a connection never goes back half-read, and that is how an upstream learns to stop.
        """
        try:
            response = await self._posted(self.base_url + path, msgspec.json.encode(body), self._headers(via))
        except _FAULTS:
            self.failed()
            self.outcomes["failed"] += 1
            raise faults.unreachable() from None
        try:
            if response.status != 200:
                raise await self._fault_of(response)
            self.answered()
            self.outcomes["accepted"] += 1
            yield response
        finally:
            if response not in self._settling:
                response.close()

    def settle(self, response: aiohttp.ClientResponse) -> None:
        """Its last event has come: read its body to the end beside everything else, so that nobody waits for that."""
        task = asyncio.create_task(_read_to_end(response), name="upstream-last-words")
        self._settling[response] = task
        task.add_done_callback(lambda _: self._settling.pop(response, None))

    async def _posted(self, url: str, data: bytes, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        """A server may end an idle connection just when it is used again: then, and only then, once more."""
        way = _Way()
        try:
            return await self._post(url, data, headers, way)
        except (aiohttp.ServerDisconnectedError, ConnectionResetError):
            if not way.reused:
                raise
        return await self._post(url, data, headers, way)

    async def _post(self, url: str, data: bytes, headers: Mapping[str, str], way: "_Way") -> aiohttp.ClientResponse:
        return await self._connection().post(
            url, data=data, headers=headers, allow_redirects=False, trace_request_ctx=way
        )

    async def _fault_of(self, response: aiohttp.ClientResponse) -> faults.UpstreamFault:
        fault = faults.from_status(response.status, response.headers, await _beginning(response))
        if fault.unhealthy:
            self.failed()
        self.outcomes["refused" if 400 <= response.status < 500 else "failed"] += 1
        return fault

    async def embed(self, model: str, inputs: Sequence[EmbeddingInput], via: Sequence[str]) -> Embeddings:
        """Vectors as the upstream makes them. Raises UpstreamFault."""
        body = {"model": model, "input": list(inputs), "encoding_format": "float"}
        async with self.stream("/embeddings", body, via) as response:
            try:
                return embeddings(await whole_body(response), len(inputs))
            except faults.UpstreamFault:
                self.outcomes["broken"] += 1
                raise

    async def close(self) -> None:
        for task in self._settling.values():
            task.cancel()
        if self._settling:
            await asyncio.wait(set(self._settling.values()))
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
                cookie_jar=aiohttp.DummyCookieJar(),
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=REUSE_SECONDS),  # the door bounds requests
                trace_configs=[_noting_reuse()],
            )
        return self._session

    def _headers(self, via: Sequence[str]) -> dict[str, str]:
        return {
            "Content-Type": "application/json",
            "Accept": "text/event-stream, application/json",
            "Accept-Encoding": "identity",  # a compressed stream waits for its window to fill
            VIA_HEADER: ", ".join([*via, self._via]),
        }


class _Way:
    """On which connection a request went."""

    reused = False


def _noting_reuse() -> aiohttp.TraceConfig:
    trace = aiohttp.TraceConfig()

    async def note(_session: aiohttp.ClientSession, context: Any, _params: object) -> None:
        if isinstance(context.trace_request_ctx, _Way):
            context.trace_request_ctx.reused = True

    trace.on_connection_reuseconn.append(note)
    return trace


async def _read_to_end(response: aiohttp.ClientResponse) -> None:
    """Take what comes behind the last event, so that the connection can be used again; close it if that takes long."""
    try:
        async with asyncio.timeout(LAST_WORDS_SECONDS):
            async for _ in response.content.iter_any():
                pass
    except _FAULTS:
        pass
    finally:
        response.close()  # nothing happens to one that was read to its end


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
