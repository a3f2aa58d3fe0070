"""Several answers to one request, one after another within one turn at the model."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self

import msgspec

from pocketserver.chat import Event, GenerationRequest
from pocketserver.wire.context import Turn


class Choices:
    """The batches of all answers; `Finished` ends each. Entering opens the first, so that it can still be refused.

    There are `count` answers to `request`, and then as many to each of the `others`.
    """

    def __init__(
        self, turn: Turn, request: GenerationRequest, count: int, *, others: Sequence[GenerationRequest] = ()
    ) -> None:
        self._turn = turn
        self._waiting = [_choice(asked, number) for asked in (request, *others) for number in range(count)]
        self._open: AbstractAsyncContextManager[AsyncIterator[Sequence[Event]]] | None = None
        self._batches: AsyncIterator[Sequence[Event]] | None = None

    async def __aenter__(self) -> Self:
        await self._next()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        opened, self._open = self._open, None
        return None if opened is None else await opened.__aexit__(kind, error, traceback)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Sequence[Event]:
        assert self._batches is not None, "entered"
        while True:
            try:
                return await anext(self._batches)
            except StopAsyncIteration:
                if not self._waiting:
                    raise
            await self.__aexit__(None, None, None)
            await self._next()

    async def _next(self) -> None:
        opened = self._turn.open(self._waiting.pop(0))
        self._batches = await opened.__aenter__()
        self._open = opened


def _choice(request: GenerationRequest, number: int) -> GenerationRequest:
    """The request of one answer: a seed gives each its own, and the same ones each time."""
    if number == 0:
        return request
    seed = request.sampling.seed
    sampling = request.sampling
    if seed is not None:
        sampling = msgspec.structs.replace(sampling, seed=(seed + number) & 0xFFFFFFFF)
    return msgspec.structs.replace(request, id=f"{request.id}-{number}", sampling=sampling)
