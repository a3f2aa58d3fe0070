"""Opens an answer whose prompt is too long without the oldest turns, for APIs whose clients may ask for that."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Protocol

import msgspec

from pocketserver.chat import Event, GenerationRequest, Message
from pocketserver.errors import Code, Refusal
from pocketserver.wire.context import Door, Turn

_MOST_ANSWER_TOKENS = 1024
_ANSWER_SHARE = 8
"""One in so many tokens of the context is kept free for the answer when turns are left out anyway."""


class Shorten(Protocol):
    """The newest messages that fit, see engines/truncation.py."""

    def __call__(
        self,
        messages: Sequence[Message],
        count: Callable[[Sequence[Message]], Awaitable[int]],
        *,
        context_size: int,
        answer_tokens: int = 1,
    ) -> Awaitable[tuple[Message, ...]]: ...


class Shortened:
    """The batches of one answer. `told` hears how many messages were left out, before anything is written.

    Entering raises CONTEXT_LENGTH_EXCEEDED when even the least is too long. The context's size is that of the model's
    own refusal: a prompt that fits is not counted twice.
    """

    def __init__(
        self, turn: Turn, request: GenerationRequest, *, door: Door, shorten: Shorten, told: Callable[[int], None]
    ) -> None:
        self._turn = turn
        self._request = request
        self._door = door
        self._shorten = shorten
        self._told = told
        self._opened: AbstractAsyncContextManager[AsyncIterator[Sequence[Event]]] | None = None

    async def __aenter__(self) -> AsyncIterator[Sequence[Event]]:
        try:
            return await self._open(self._request)
        except Refusal as refusal:
            size = refusal.details.get("context_size")
            if refusal.code is not Code.CONTEXT_LENGTH_EXCEEDED or size is None:
                raise
        shorter = await shortened(self._request, size, door=self._door, shorten=self._shorten)
        self._told(len(self._request.messages) - len(shorter.messages))
        return await self._open(shorter)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return None if self._opened is None else await self._opened.__aexit__(kind, error, traceback)

    async def _open(self, request: GenerationRequest) -> AsyncIterator[Sequence[Event]]:
        opened = self._turn.open(request)
        batches = await opened.__aenter__()
        self._opened = opened
        return batches


async def shortened(request: GenerationRequest, size: int, *, door: Door, shorten: Shorten) -> GenerationRequest:
    """The request without its oldest turns, for a context of this size, some of which is left to the answer.

    Raises CONTEXT_LENGTH_EXCEEDED when even the least is too long.
    """

    async def count(messages: Sequence[Message]) -> int:
        return await prompt_tokens(msgspec.structs.replace(request, messages=tuple(messages)), door)

    free = max(1, min(request.max_tokens, _MOST_ANSWER_TOKENS, size // _ANSWER_SHARE))
    try:
        kept = await shorten(request.messages, count, context_size=size, answer_tokens=free)
    except Refusal:
        if free == 1:
            raise
        kept = await shorten(request.messages, count, context_size=size)
    return msgspec.structs.replace(request, messages=kept)


async def prompt_tokens(request: GenerationRequest, door: Door) -> int:
    """A prompt that is too long to be counted at all has at least the tokens that its refusal names."""
    try:
        return await door.count(request)
    except Refusal as refusal:
        if refusal.code is not Code.CONTEXT_LENGTH_EXCEEDED:
            raise
        return refusal.details["prompt_tokens"]
