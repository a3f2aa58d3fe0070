"""Implements `Engine` over the replicas of a Ray Serve application: Ray's queue, one running request a replica."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import msgspec

from pocketserver.chat import EmbeddingInput, Embeddings, EngineState, EngineStatus, GenerationRequest, ModelInfo
from pocketserver.engines.engine import EventStream
from pocketserver.engines.ray_serve.messages import Answered, Description, Piece, Reply, ToEmbed, conversation_of
from pocketserver.errors import Code, Refusal

_MOST_ATTEMPTS = 3
_LOOK_EVERY_SECONDS = 1.0
_encode = msgspec.msgpack.encode
_decode_piece = msgspec.msgpack.Decoder(Piece).decode


class ReplicaLost(Exception):  # noqa: N818 - it says what happened
    """The replica that had the request has ended."""


class Pieces(Protocol):
    """One answer on its way from a replica. Iteration raises ReplicaLost."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    def cancel(self) -> None:
        """End it, whether it waits in Ray's queue or runs. Safe to call twice."""
        ...


class Cluster(Protocol):
    """A running application of `pocketserver.cluster`."""

    def generate(self, packed: bytes, conversation: str) -> Pieces: ...

    async def call(self, method: str, packed: bytes) -> bytes:
        """One answer of any replica, in its turn. Raises ReplicaLost."""
        ...

    def running(self) -> int:
        """Replicas that can answer now. Waits for Ray, so it is asked in a thread."""
        ...

    def close(self) -> None:
        """Let go of the cluster; what was started for this server alone ends. Waits for Ray."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    """`connect` waits until replicas are there and may take as long as loading a model takes.

    `concurrency` is how many requests Ray is given at a time; None is as many as there can be replicas, so that
    whoever waits, waits here, in turn, and Ray still sees when more replicas would help.
    """

    connect: Callable[[], Cluster]
    concurrency: int | None = None


class RayEngine:
    """One engine made of replicas. A replica that is lost before the first token costs nobody an answer."""

    name = "ray"

    def __init__(self, options: RayOptions) -> None:
        self._options = options
        self._cluster: Cluster | None = None
        self._description: Description | None = None
        self._replicas = 0
        self._problem: str | None = None
        self._work: asyncio.Task[None] | None = None

    @property
    def concurrency(self) -> int:
        if self._options.concurrency is not None:
            return self._options.concurrency
        return max(1, 1 if self._description is None else self._description.most_replicas)

    @property
    def status(self) -> EngineStatus:
        found = self._description
        if found is None or self._replicas == 0:
            problem = self._problem or ("All replicas have ended; Ray is starting others." if found else None)
            state = EngineState.LOADING if problem is None else EngineState.NO_MODEL
            return EngineStatus(state=state, problem=problem, problem_passes=found is not None, counts_tokens=False)
        return EngineStatus(
            state=EngineState.READY,
            model=found.model,
            context_size=found.context_size,
            supports_tools=found.supports_tools,
            runtime=f"{self._replicas} replicas of {found.engine}",
            counts_tokens=False,
            waits_elsewhere=True,
        )

    def models(self) -> Sequence[ModelInfo]:
        return () if self._description is None else self._description.models

    async def start(self) -> None:
        """Connect, or deploy, beside everything else; the status tells how far it is."""
        if self._work is None:
            self._work = asyncio.create_task(self._look(), name="ray-cluster")

    async def close(self) -> None:
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait([self._work])
            self._work = None
        cluster, self._cluster, self._description = self._cluster, None, None
        if cluster is not None:
            await asyncio.to_thread(cluster.close)

    @asynccontextmanager
    async def generate(self, request: GenerationRequest) -> AsyncIterator[EventStream]:
        """See `Engine.generate`. Waits in Ray's queue while all replicas are busy."""
        stream = EventStream()
        answer = _Answer(self._found(), request, stream)
        try:
            await answer.accepted()
            reading = asyncio.create_task(answer.read(), name="ray-answer")
            try:
                yield stream
            finally:
                reading.cancel()
                await asyncio.wait([reading])
        finally:
            answer.cancel()

    async def count(self, request: GenerationRequest) -> int:
        """Waits for a replica, as an answer does: only they know the template."""
        return await self._call("count", _encode(request), Reply[int])

    async def embed(self, inputs: Sequence[EmbeddingInput], *, truncate: bool) -> Embeddings:
        return await self._call("embed", _encode(ToEmbed(inputs=list(inputs), truncate=truncate)), Reply[Embeddings])

    async def _call(self, method: str, packed: bytes, kind: type[Reply[Answered]]) -> Answered:
        for _ in range(_MOST_ATTEMPTS):
            try:
                answer = await self._found().call(method, packed)
            except ReplicaLost:
                continue
            reply = msgspec.msgpack.decode(answer, type=kind)
            if reply.answer is None:
                raise _lost() if reply.problem is None else reply.problem.refusal()
            return reply.answer
        raise _lost()

    def _found(self) -> Cluster:
        if self._cluster is None:
            raise Refusal(Code.MODEL_NOT_LOADED, "The replicas are not there yet. Try again shortly.", retry_after=5)
        return self._cluster

    async def _look(self) -> None:
        """Have a cluster, and follow how many of its replicas live."""
        try:
            self._cluster = await asyncio.to_thread(self._options.connect)
            told = await self._cluster.call("describe", b"")
            self._replicas = await asyncio.to_thread(self._cluster.running)
            self._description = msgspec.msgpack.decode(told, type=Reply[Description]).answer
        except Exception as error:  # noqa: BLE001 - Ray raises many kinds; whoever asks is told the reason
            self._problem = f"The Ray cluster cannot be used: {_first_line(error)}"
            return
        while True:
            self._replicas = await asyncio.to_thread(self._cluster.running)
            await asyncio.sleep(_LOOK_EVERY_SECONDS)


class _Answer:
    """One request on its way through replicas, until one of them has begun to answer."""

    def __init__(self, cluster: Cluster, request: GenerationRequest, stream: EventStream) -> None:
        self._cluster = cluster
        self._packed = _encode(request)
        self._conversation = conversation_of(request)
        self._stream = stream
        self._pieces: Pieces | None = None
        self._coming: AsyncIterator[bytes] | None = None
        self._attempts = 0

    async def accepted(self) -> None:
        """Wait until a replica has taken the request. Raises what it refuses, WORKER_LOST after several deaths."""
        while True:
            self._attempts += 1
            self.cancel()
            self._pieces = self._cluster.generate(self._packed, self._conversation)
            self._coming = aiter(self._pieces)
            try:
                first = _decode_piece(await anext(self._coming))
            except (ReplicaLost, StopAsyncIteration):
                if self._attempts >= _MOST_ATTEMPTS:
                    raise _lost() from None
                continue
            if first.problem is not None:
                raise first.problem.refusal()
            return

    async def read(self) -> None:
        """Put everything into the stream. A replica that ends before the first token is replaced by another."""
        started = False
        while True:
            assert self._coming is not None, "accepted"
            try:
                async for packed in self._coming:
                    piece = _decode_piece(packed)
                    if piece.problem is not None:
                        await self._stream.fail_after_unread(piece.problem.refusal())
                        return
                    started = True
                    self._stream.put(piece.events)
                    await self._stream.room()
            except ReplicaLost:
                if started:
                    await self._stream.fail_after_unread(_lost())
                    return
                try:
                    await self.accepted()
                except Refusal as refusal:
                    self._stream.fail(refusal)
                    return
            else:
                self._stream.close()
                return

    def cancel(self) -> None:
        if self._pieces is not None:
            self._pieces.cancel()
            self._pieces = None


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), repr(error))


def _lost() -> Refusal:
    return Refusal(
        Code.WORKER_LOST, "The replica that was answering has ended; Ray is starting another. Send the request again."
    )
