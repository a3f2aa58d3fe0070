"""Any installed model on request: one in memory at a time, loaded when it is asked for and unloaded when it is not."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import msgspec

from pocketserver.chat import (
    EmbeddingInput,
    Embeddings,
    EngineState,
    EngineStatus,
    Explanation,
    GenerationRequest,
    LoadedModel,
    ModelInfo,
)
from pocketserver.engines.engine import Engine, EventStream, cannot_explain, explained
from pocketserver.errors import Code, Refusal

logger = logging.getLogger(__name__)


class LoadingEngine(Engine, Protocol):
    """An engine of one model that says when it has loaded it."""

    async def loaded(self) -> None:
        """Wait until requests can be answered. Raises the Refusal that tells why they cannot."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Loadable:
    """A model that can be loaded. Two of equal `identity` are the same weights, loaded the same way.

    `count` counts a prompt's tokens without loading it; `explain` does as `Explaining` says.
    """

    id: str
    identity: Hashable
    make: Callable[[], LoadingEngine]
    count: Callable[[GenerationRequest], Awaitable[int]]
    explain: Callable[[GenerationRequest], Awaitable[Explanation]] | None = None


class SwitchingEngine:
    """Implements `Engine` and `ModelLoader` over engines of one model each.

    `find` looks a model up by its id and raises MODEL_NOT_FOUND; `first` is loaded at the start, and again for whoever
    names no model. `keep_alive_seconds` is how long a model stays after its last answer, negative for ever. A lock of
    its own keeps loading, unloading and answers apart, since the timer that unloads stands in nobody's line.
    """

    def __init__(
        self,
        *,
        name: str,
        find: Callable[[str], Awaitable[Loadable]],
        first: str | None,
        keep_alive_seconds: float,
    ) -> None:
        self.name = name
        self._find = find
        self._first = first
        self._keep_alive_seconds = keep_alive_seconds
        self._lock = asyncio.Lock()
        self._engine: LoadingEngine | None = None
        self._model: Loadable | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._expires_at: float | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._first_is_due = False
        """The model of the start is still being looked for or made."""

    @property
    def status(self) -> EngineStatus:
        if self._engine is None or self._model is None:
            state = EngineState.LOADING if self._first_is_due else EngineState.NO_MODEL
            return EngineStatus(state=state, loads_on_request=not self._closed)
        status = self._engine.status
        model = None if status.model is None else self._model.id
        return msgspec.structs.replace(status, model=model, loads_on_request=not self._closed)

    def models(self) -> Sequence[ModelInfo]:
        """The model in memory."""
        if self._engine is None or self._model is None:
            return ()
        return [msgspec.structs.replace(info, id=self._model.id) for info in self._engine.models()]

    async def start(self) -> None:
        if self._first is not None:
            self._first_is_due = True
            self._spawn(self._load_first(self._first))

    async def close(self) -> None:
        self._closed = True
        self._forget_expiry()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._drop()

    @asynccontextmanager
    async def generate(self, request: GenerationRequest) -> AsyncIterator[EventStream]:
        """Open the answer's event stream; see `Engine.generate`. Loads the request's model first."""
        async with self._lock:
            seconds = await self._have(request.model)
            assert self._engine is not None, "loaded"
            try:
                async with self._engine.generate(request) as stream:
                    stream.load_seconds = seconds
                    yield stream
            finally:
                self._expire_in(request.keep_alive)

    async def count(self, request: GenerationRequest) -> int:
        """Prompt tokens of a request. Nobody waits for it, and no model is loaded for it."""
        wanted, engine = await self._find(request.model), self._engine
        if engine is not None and self._model is not None and self._model.identity == wanted.identity:
            await engine.loaded()
            return await engine.count(request)
        return await wanted.count(request)

    async def explain(self, request: GenerationRequest) -> Explanation:
        """See `Explaining`. No model is loaded for it."""
        wanted, engine = await self._find(request.model), self._engine
        if engine is not None and self._model is not None and self._model.identity == wanted.identity:
            await engine.loaded()
            return await explained(engine, request)
        if wanted.explain is None:
            raise cannot_explain()
        return await wanted.explain(request)

    async def embed(self, inputs: Sequence[EmbeddingInput], *, truncate: bool) -> Embeddings:
        """Vectors by the model in memory; see `Engine.embed`."""
        async with self._lock:
            if self._engine is None:
                raise Refusal(
                    Code.MODEL_NOT_LOADED, "The model was unloaded meanwhile. Try again shortly.", retry_after=5
                )
            return await self._engine.embed(inputs, truncate=truncate)

    async def load_model(self, model: str, keep_alive: float | None = None) -> float:
        async with self._lock:
            seconds = await self._have(model)
            self._expire_in(keep_alive)
            return seconds

    async def unload_model(self, model: str) -> None:
        async with self._lock:
            if self._model is not None and self._model.id == model:
                await self._drop()

    def loaded_models(self) -> Sequence[LoadedModel]:
        status = self.status
        if status.model is None or status.state is not EngineState.READY:
            return ()
        return tuple(
            LoadedModel(
                id=status.model,
                size_bytes=info.size_bytes,
                context_size=status.context_size or 0,
                expires_at=self._expires_at,
            )
            for info in self.models()
        )

    async def _have(self, model: str) -> float:
        """Have this model loaded, whatever was there before; returns the seconds that it took."""
        self._forget_expiry()
        if self._closed:
            raise Refusal(Code.MODEL_NOT_LOADED, "The server is shutting down. Connect again later.", retry_after=5)
        wanted = await self._find(model)
        if self._model is not None and self._model.identity == wanted.identity and self._engine is not None:
            self._model = wanted
            if self._engine.status.state is EngineState.READY:
                return 0.0
        began = time.monotonic()
        if self._model is None or self._model.identity != wanted.identity:
            await self._drop()
            self._model, self._engine = wanted, wanted.make()
            await self._engine.start()
        assert self._engine is not None, "made with its model"
        try:
            await self._engine.loaded()
        except Refusal:
            await self._drop()
            raise
        return time.monotonic() - began

    async def _drop(self) -> None:
        self._forget_expiry()
        engine, self._engine, self._model = self._engine, None, None
        if engine is not None:
            await engine.close()

    async def _load_first(self, model: str) -> None:
        try:
            await self.load_model(model)
        except Refusal as refusal:
            logger.warning("The model %s could not be loaded: %s", model, refusal.message)
        finally:
            self._first_is_due = False

    def _expire_in(self, keep_alive: float | None) -> None:
        """Unload after so many seconds without a request; negative is never."""
        self._forget_expiry()
        seconds = self._keep_alive_seconds if keep_alive is None else keep_alive
        if seconds < 0 or self._engine is None:
            return
        self._expires_at = time.time() + seconds
        self._expiry = asyncio.get_running_loop().call_later(seconds, self._expired)

    def _expired(self) -> None:
        self._spawn(self._unload_unused())

    async def _unload_unused(self) -> None:
        """Unless somebody came meanwhile: a request forgets the expiry as soon as it has the lock."""
        expiry = self._expiry
        async with self._lock:
            if self._expiry is expiry:
                await self._drop()

    def _forget_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = None
        self._expires_at = None

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
