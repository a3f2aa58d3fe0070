"""A replica: one engine in one of Ray's processes, answering one request at a time. Nothing here imports Ray."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack

import msgspec

from pocketserver.assembly import make_engine, prepare_model
from pocketserver.chat import EngineState, GenerationRequest
from pocketserver.engines.engine import Engine
from pocketserver.engines.ray_serve.messages import Answered, Description, Piece, Problem, Reply, ToEmbed
from pocketserver.errors import Refusal
from pocketserver.settings import Settings

_encode = msgspec.msgpack.encode
_LOOK_SECONDS = 0.05


class Replica:
    """Ray makes it, asks it after its health, and makes another when it ends."""

    async def __init__(self, settings: Settings, most_replicas: int) -> None:  # type: ignore[misc]  # Ray awaits it
        """Ready when the model is loaded. Raises RuntimeError with the reason when it cannot be."""
        self._most_replicas = most_replicas
        self._running = AsyncExitStack()
        model = await prepare_model(settings, lambda *_: None)
        self._engine: Engine = make_engine(settings, model)
        await self._engine.start()
        while self._engine.status.state is EngineState.LOADING:  # noqa: ASYNC110 - only its status tells
            await asyncio.sleep(_LOOK_SECONDS)
        self.check_health()

    def check_health(self) -> None:
        """Raises when this replica should be replaced; Ray asks every few seconds."""
        status = self._engine.status
        if status.state is not EngineState.READY and not status.loads_on_request:
            raise RuntimeError(status.problem or f"The engine is {status.state}.")

    async def generate(self, packed: bytes, conversation: str) -> AsyncIterator[bytes]:  # noqa: ARG002 - the router's
        """The pieces of an answer. Ray cancels this call when the answer is not wanted any more."""
        await self._running.aclose()  # an answer that nobody listens to may not have been collected yet
        stack = self._running = AsyncExitStack()
        request = msgspec.msgpack.decode(packed, type=GenerationRequest)
        try:
            stream = await stack.enter_async_context(self._engine.generate(request))
            yield _encode(Piece(replica=str(os.getpid())))
            async for batch in stream:
                yield _encode(Piece(events=list(batch)))
        except Refusal as refusal:
            yield _encode(Piece(problem=Problem.of(refusal)))
        finally:
            await stack.aclose()

    async def count(self, packed: bytes) -> bytes:
        return await _reply(self._engine.count(msgspec.msgpack.decode(packed, type=GenerationRequest)))

    async def embed(self, packed: bytes) -> bytes:
        asked = msgspec.msgpack.decode(packed, type=ToEmbed)
        return await _reply(self._engine.embed(asked.inputs, truncate=asked.truncate))

    async def describe(self, _packed: bytes) -> bytes:
        status = self._engine.status
        found = Description(
            engine=self._engine.name,
            model=status.model or "",
            context_size=status.context_size,
            supports_tools=status.supports_tools,
            models=[model for model in self._engine.models() if model.loaded],
            most_replicas=self._most_replicas,
        )
        return _encode(Reply(answer=found))


async def _reply(answering: Awaitable[Answered]) -> bytes:
    try:
        return _encode(Reply(answer=await answering))
    except Refusal as refusal:
        return _encode(Reply(problem=Problem.of(refusal)))
