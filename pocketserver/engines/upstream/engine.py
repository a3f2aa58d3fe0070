"""The upstream engine: requests go to another server that speaks OpenAI's API, its chunks become event streams."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp

from pocketserver.chat import (
    EmbeddingInput,
    Embeddings,
    EngineState,
    EngineStatus,
    Event,
    GenerationRequest,
    LoadedModel,
    ModelInfo,
)
from pocketserver.engines.engine import EventStream
from pocketserver.engines.upstream import faults
from pocketserver.engines.upstream.body import cannot, path_and_body
from pocketserver.engines.upstream.chunks import ChunkReader
from pocketserver.engines.upstream.endpoint import Endpoint, whole_body
from pocketserver.engines.upstream.faults import UpstreamFault
from pocketserver.engines.upstream.sse_reader import SseReader, TooLongError

_PROBE_EVERY_SECONDS = 5.0
_IDLE_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamOptions:
    """Where the upstreams are, in order of preference. `model` is the one to offer; None takes the first one listed.

    `idle_seconds` is how long an answer may pause once it has begun to come. `concurrency` is how many requests are
    sent on at a time.
    """

    base_urls: tuple[str, ...]
    key: str | None = None
    model: str | None = None
    probe_every_seconds: float = _PROBE_EVERY_SECONDS
    idle_seconds: float = _IDLE_SECONDS
    concurrency: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamFigures:
    """What became of the requests that one upstream was given, for metrics. `name` is its host and port."""

    name: str
    healthy: bool
    outcomes: Mapping[str, int]


class UpstreamEngine:
    """Implements `engines.engine.Engine` over other servers. Before the first token another one may take over."""

    name = "upstream"

    def __init__(self, options: UpstreamOptions) -> None:
        self.instance = secrets.token_hex(8)
        """Our name in the chain of servers that a request passes."""
        self._options = options
        self._endpoints = [Endpoint(url, options.key, self.instance, options.model) for url in options.base_urls]
        self._probing: asyncio.Task[None] | None = None
        self._model: str | None = None

    @property
    def concurrency(self) -> int:
        return self._options.concurrency

    def figures(self) -> Sequence[UpstreamFigures]:
        """One for each upstream, in the order of the settings."""
        names = [urlsplit(endpoint.base_url).netloc for endpoint in self._endpoints]
        return [
            UpstreamFigures(
                name=name if names.count(name) == 1 else endpoint.base_url.partition("://")[2],
                healthy=endpoint.healthy,
                outcomes=dict(endpoint.outcomes),
            )
            for name, endpoint in zip(names, self._endpoints, strict=True)
        ]

    @property
    def status(self) -> EngineStatus:
        models = self.models()
        if not any(endpoint.healthy for endpoint in self._endpoints):
            problem = next((endpoint.problem for endpoint in self._endpoints if endpoint.problem), faults.unreachable())
            return EngineStatus(
                state=EngineState.NO_MODEL, problem=problem.refusal.message, problem_code=problem.refusal.code
            )
        if not models:
            return EngineStatus(state=EngineState.NO_MODEL, problem="The engine behind this server lists no model.")
        chosen = next((model for model in models if model.id == self._options.model), models[0])
        return EngineStatus(
            state=EngineState.READY, model=chosen.id, context_size=chosen.context_size, counts_tokens=False
        )

    def models(self) -> Sequence[ModelInfo]:
        """The models of all upstreams that answer."""
        found = {
            model.id: model for endpoint in reversed(self._endpoints) if endpoint.healthy for model in endpoint.models
        }
        first = self._options.model
        return sorted(found.values(), key=lambda model: model.id != first)

    async def start(self) -> None:
        """Look at the upstreams now, and go on looking."""
        await asyncio.gather(*(endpoint.probe() for endpoint in self._endpoints))
        self._probing = asyncio.create_task(self._keep_probing(), name="upstream-health")

    async def close(self) -> None:
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.gather(self._probing, return_exceptions=True)
            self._probing = None
        for endpoint in self._endpoints:
            await endpoint.close()

    @asynccontextmanager
    async def generate(self, request: GenerationRequest) -> AsyncIterator[EventStream]:
        """Open the answer's event stream; see `Engine.generate`. Entered when an upstream has accepted the request."""
        path, body = path_and_body(request)
        stream = EventStream()
        exchange = _Exchange(
            self._in_order(request.model), path, body, request, stream, idle_seconds=self._options.idle_seconds
        )
        async with exchange.opened():
            reading = asyncio.create_task(exchange.read(), name="upstream-answer")
            try:
                yield stream
            finally:
                reading.cancel()
                await asyncio.wait([reading])

    async def count(self, request: GenerationRequest) -> int:  # noqa: ARG002 - whatever it is
        raise cannot("model", "token counts")

    async def load_model(self, model: str, keep_alive: float | None = None) -> float:  # noqa: ARG002 - it is not ours to keep
        """Choose the model for `embed`; whatever the upstream has is loaded there when it is asked."""
        self._model = model
        return 0.0

    async def unload_model(self, model: str) -> None:
        """Upstreams look after their memory themselves."""

    def loaded_models(self) -> Sequence[LoadedModel]:
        return [LoadedModel(id=model.id, context_size=model.context_size or 0) for model in self.models()]

    async def embed(self, inputs: Sequence[EmbeddingInput], *, truncate: bool) -> Embeddings:
        return await self.forward_embed(inputs, model=self._model or self.status.model or "", truncate=truncate, via=())

    async def forward_embed(
        self,
        inputs: Sequence[EmbeddingInput],
        *,
        model: str,
        truncate: bool,  # noqa: ARG002
        via: tuple[str, ...],
    ) -> Embeddings:
        """See `Forwarder`; whether to cut long inputs is the upstream's decision."""
        fault = faults.unreachable()
        for endpoint in self._in_order(model):
            try:
                return await endpoint.embed(model, inputs, via)
            except UpstreamFault as error:
                fault = error
                if not error.elsewhere:
                    break
        raise fault.refusal

    def _in_order(self, model: str) -> list[Endpoint]:
        """Who may be asked: the healthy ones that list the model first, in the order of the settings."""
        return sorted(
            self._endpoints,
            key=lambda endpoint: (not endpoint.healthy, all(listed.id != model for listed in endpoint.models)),
        )

    async def _keep_probing(self) -> None:
        while True:
            await asyncio.sleep(self._options.probe_every_seconds)
            await asyncio.gather(*(endpoint.probe() for endpoint in self._endpoints))


class _Exchange:
    """One request on its way through the upstreams, until one of them has begun to answer."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        path: str,
        body: dict[str, object],
        request: GenerationRequest,
        stream: EventStream,
        *,
        idle_seconds: float,
    ) -> None:
        self._waiting = list(endpoints)
        self._path = path
        self._body = body
        self._request = request
        self._stream = stream
        self._idle_seconds = idle_seconds
        self._stack = AsyncExitStack()
        self._endpoint: Endpoint | None = None
        self._response: aiohttp.ClientResponse | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Have an upstream's good status. Raises the Refusal of the last one that was asked."""
        try:
            await self._next(faults.unreachable())
            yield
        except UpstreamFault as fault:
            raise fault.refusal from None
        finally:
            await self._stack.aclose()

    async def read(self) -> None:
        """Put everything into the stream; whatever goes wrong before the first token is tried elsewhere."""
        while True:
            reader = ChunkReader(self._request)
            try:
                await self._read_with(reader)
            except UpstreamFault as fault:
                if self._endpoint is not None:
                    self._endpoint.outcomes["broken"] += 1
                if reader.started or not fault.elsewhere:
                    await self._stream.fail_after_unread(fault.refusal)
                    return
                try:
                    await self._next(fault)
                except UpstreamFault as last:
                    await self._stream.fail_after_unread(last.refusal)
                    return
            else:
                return

    async def _next(self, fault: UpstreamFault) -> None:
        """The next upstream that accepts. Raises the last fault when there is none left."""
        await self._stack.aclose()
        self._stack = AsyncExitStack()
        while self._waiting:
            endpoint = self._endpoint = self._waiting.pop(0)
            try:
                self._response = await self._stack.enter_async_context(
                    endpoint.stream(self._path, self._body, self._request.via)
                )
            except UpstreamFault as error:
                fault = error
                if not error.elsewhere:
                    break
            else:
                return
        raise fault

    async def _read_with(self, reader: ChunkReader) -> None:
        assert self._response is not None, "opened"
        assert self._endpoint is not None, "opened"
        if self._response.content_type == "text/event-stream":
            last = await self._read_events(self._response, reader)
        else:
            last = [*reader.read_document(await whole_body(self._response)), *reader.end()]
        self._endpoint.settle(self._response)  # first: whoever has read the end leaves, and that ends this task
        await self._put(last)
        self._stream.close()

    async def _read_events(self, response: aiohttp.ClientResponse, reader: ChunkReader) -> list[Event]:
        """Put all events but the last ones into the stream."""
        lines = SseReader()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as pause:  # how long a prompt may take is the door's to say
                async for piece in response.content.iter_any():
                    pause.reschedule(None)  # a client that reads slowly is not the upstream's fault
                    await self._take(lines.feed(piece), reader)
                    if reader.done:
                        break
                    if reader.started:
                        pause.reschedule(loop.time() + self._idle_seconds)
        except TimeoutError:
            raise faults.silent(self._idle_seconds) from None
        except (aiohttp.ClientError, OSError, TooLongError):
            raise faults.broken() from None
        return [*(event for data in lines.finish() for event in reader.read(data)), *reader.end()]

    async def _take(self, chunks: Sequence[bytes], reader: ChunkReader) -> None:
        """Put the events of these chunks into the stream, those before a broken one too."""
        batch: list[Event] = []
        try:
            for chunk in chunks:
                batch += reader.read(chunk)
        finally:
            await self._put(batch)

    async def _put(self, batch: Sequence[Event]) -> None:
        if batch:
            self._stream.put(batch)
            await self._stream.room()
        else:
            self._stream.touch()
