"""Opens an answer whose prompt fits, without the oldest messages where the client leaves that to the server."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from types import TracebackType

import msgspec

from pocketserver.chat import Event, GenerationRequest, Message
from pocketserver.errors import Code, Refusal
from pocketserver.wire.context import Door, Turn
from pocketserver.wire.ollama_options import Warn
from pocketserver.wire.shortening import Shorten

_MOST_ANSWER_TOKENS = 1024
_ANSWER_SHARE = 8  # of the context, kept free for the answer when old messages are dropped anyway


@dataclass(slots=True, kw_only=True)
class Fitted:
    """The batches of one answer. `context_size` is what the model is served with, None while it is not loaded.

    `num_ctx` smaller than that is a limit for prompt and answer together, as if the context were that small.
    """

    door: Door
    turn: Turn
    request: GenerationRequest
    num_ctx: int | None
    context_size: int | None
    truncate: bool
    shorten: Shorten
    warn: Warn
    _opened: AbstractAsyncContextManager[AsyncIterator[Sequence[Event]]] | None = field(default=None, init=False)

    async def __aenter__(self) -> AsyncIterator[Sequence[Event]]:
        request = await self._within_num_ctx()
        try:
            return await self._open(request)
        except Refusal as refusal:
            if refusal.code is not Code.CONTEXT_LENGTH_EXCEEDED or not self._may_shorten:
                raise
            size = refusal.details["context_size"]
        return await self._open(await self._shortened(request, size))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return None if self._opened is None else await self._opened.__aexit__(kind, error, traceback)

    async def _open(self, request: GenerationRequest) -> AsyncIterator[Sequence[Event]]:
        opened = self.turn.open(request)
        batches = await opened.__aenter__()
        self._opened = opened
        return batches

    @property
    def _may_shorten(self) -> bool:
        return self.truncate and len(self.request.messages) > 1

    async def _within_num_ctx(self) -> GenerationRequest:
        request, limit, served = self.request, self.num_ctx, self.context_size
        if limit is None:
            return request
        if served is not None and limit >= served:
            if limit > served:
                self.warn("options.num_ctx", f"clamped to {served}")
            return request
        tokens = await self._count(request)
        if tokens >= limit:
            if not self._may_shorten:
                raise _too_long(tokens, limit)
            request = await self._shortened(request, limit)
            tokens = await self._count(request)
        return msgspec.structs.replace(request, max_tokens=min(request.max_tokens, limit - tokens))

    async def _shortened(self, request: GenerationRequest, size: int) -> GenerationRequest:
        async def count(messages: Sequence[Message]) -> int:
            return await self._count(msgspec.structs.replace(request, messages=tuple(messages)))

        free = max(1, min(request.max_tokens, _MOST_ANSWER_TOKENS, size // _ANSWER_SHARE))
        try:
            kept = await self.shorten(request.messages, count, context_size=size, answer_tokens=free)
        except Refusal:
            if free == 1:
                raise
            kept = await self.shorten(request.messages, count, context_size=size)
        self.warn("messages", f"the {len(request.messages) - len(kept)} oldest were left out")
        return msgspec.structs.replace(request, messages=kept)

    async def _count(self, request: GenerationRequest) -> int:
        """A prompt that is too long to be counted at all has at least the tokens that its refusal names."""
        try:
            return await self.door.count(request)
        except Refusal as refusal:
            if refusal.code is not Code.CONTEXT_LENGTH_EXCEEDED:
                raise
            return refusal.details["prompt_tokens"]


def _too_long(tokens: int, size: int) -> Refusal:
    return Refusal(
        Code.CONTEXT_LENGTH_EXCEEDED,
        f"This model's maximum context length is {size} tokens. However, your prompt resulted in {tokens} tokens."
        " Please shorten it, or ask for a larger num_ctx.",
        details={"prompt_tokens": tokens, "context_size": size},
    )
