"""`num_ctx` and `truncate`: how long prompt and answer may be, and who shortens what is too long."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import msgspec

from pocketserver.chat import Event, GenerationRequest
from pocketserver.errors import Code, Refusal
from pocketserver.wire.context import Door, Turn
from pocketserver.wire.ollama_options import Warn
from pocketserver.wire.shortening import Shorten, Shortened, prompt_tokens, shortened


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """Makes requests fit, without the oldest messages where the client leaves that to the server (`truncate`)."""

    door: Door
    shorten: Shorten
    truncate: bool
    warn: Warn

    def open(
        self, turn: Turn, request: GenerationRequest
    ) -> AbstractAsyncContextManager[AsyncIterator[Sequence[Event]]]:
        """The batches of an answer. Entering raises CONTEXT_LENGTH_EXCEEDED when nothing more can be left out."""
        if not self._may_shorten(request):
            return turn.open(request)
        return Shortened(turn, request, door=self.door, shorten=self.shorten, told=self._tell)

    async def within(self, num_ctx: int | None, served: int | None, request: GenerationRequest) -> GenerationRequest:
        """The request as if the context were `num_ctx` tokens, prompt and answer together.

        `served` is the context that the model really has, None while it is not loaded; it cannot grow.
        """
        if num_ctx is None or (served is not None and num_ctx >= served):
            if num_ctx is not None and num_ctx != served:
                self.warn("options.num_ctx", f"clamped to {served}")
            return request
        tokens = await prompt_tokens(request, self.door)
        if tokens >= num_ctx:
            if not self._may_shorten(request):
                raise _too_long(tokens, num_ctx)
            shorter = await shortened(request, num_ctx, door=self.door, shorten=self.shorten)
            self._tell(len(request.messages) - len(shorter.messages))
            request, tokens = shorter, await prompt_tokens(shorter, self.door)
        return msgspec.structs.replace(request, max_tokens=min(request.max_tokens, num_ctx - tokens))

    def _may_shorten(self, request: GenerationRequest) -> bool:
        return self.truncate and len(request.messages) > 1

    def _tell(self, count: int) -> None:
        self.warn("messages", f"the {count} oldest were left out")


def _too_long(tokens: int, size: int) -> Refusal:
    return Refusal(
        Code.CONTEXT_LENGTH_EXCEEDED,
        f"This model's maximum context length is {size} tokens. However, your prompt resulted in {tokens} tokens."
        " Please shorten it, or ask for a larger num_ctx.",
        details={"prompt_tokens": tokens, "context_size": size},
    )
