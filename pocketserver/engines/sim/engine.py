"""The simulated engine: scripted or seeded replies at a given token rate, behind the same protocol as a real model."""

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from pocketserver.chat import (
    EngineState,
    EngineStatus,
    Event,
    Finished,
    FinishReason,
    GenerationRequest,
    ModelInfo,
    TextDelta,
    Timings,
    TokenScore,
    Usage,
)
from pocketserver.engines.engine import EventStream
from pocketserver.engines.sim import example
from pocketserver.engines.sim.prose import DEFAULT_TOKENS, prose, tokens_of
from pocketserver.engines.text import TextAssembler
from pocketserver.errors import Code, Refusal

_log = logging.getLogger(__name__)

DEFAULT_MODEL = "sim-1b"
BATCH_TOKENS = 256
"""Tokens a batch when time is switched off; bounds what a slow reader makes the engine hold."""

_TURN_TOKENS = 4
"""Tokens that each message costs beside its text, as chat templates do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimOptions:
    """How the device answers. `tokens_per_second` None means without any delay.

    `reply` is `prose` or `echo`; scripted replies come before both, see `SimEngine.script`.
    """

    model: str = DEFAULT_MODEL
    context_size: int = 8192
    tokens_per_second: float | None = 40.0
    seed: int = 0
    reply: str = "prose"
    reply_tokens: int = DEFAULT_TOKENS


@dataclass(slots=True)
class SimEngine:
    """Answers without a model: deterministic for equal options, requests and seeds."""

    options: SimOptions = field(default_factory=SimOptions)
    name: str = "sim"
    state: EngineState = EngineState.READY
    scripted: deque[Sequence[bytes]] = field(default_factory=deque)
    running: int = 0
    problem_code: str | None = None

    @property
    def status(self) -> EngineStatus:
        return EngineStatus(
            state=self.state,
            model=self.options.model if self.state is EngineState.READY else None,
            context_size=self.options.context_size,
            supports_tools=True,
            problem_code=self.problem_code,
            device={},
        )

    def models(self) -> Sequence[ModelInfo]:
        return [ModelInfo(id=self.options.model, loaded=True, context_size=self.options.context_size)]

    async def start(self) -> None:
        self.state = EngineState.READY

    async def close(self) -> None:
        self.state = EngineState.NO_MODEL

    def script(self, tokens: Sequence[str | bytes]) -> None:
        """Answer the next request with exactly these tokens. Bytes may cut characters anywhere."""
        self.scripted.append([token.encode() if isinstance(token, str) else token for token in tokens])

    async def count(self, request: GenerationRequest) -> int:
        return _prompt_tokens(request)

    @asynccontextmanager
    async def generate(self, request: GenerationRequest) -> AsyncIterator[EventStream]:
        prompt_tokens = _prompt_tokens(request)
        self._check(prompt_tokens)
        reply = _Reply(request, self._tokens(request), prompt_tokens, self.options.context_size)
        stream = EventStream()
        self.running += 1
        producer = asyncio.create_task(self._guarded(reply, stream))
        try:
            yield stream
        finally:
            producer.cancel()
            await asyncio.gather(producer, return_exceptions=True)
            self.running -= 1

    def _check(self, prompt_tokens: int) -> None:
        if prompt_tokens >= self.options.context_size:
            raise Refusal(
                Code.CONTEXT_LENGTH_EXCEEDED,
                f"This model's maximum context length is {self.options.context_size} tokens. However, your messages "
                f"resulted in {prompt_tokens} tokens. Please reduce the length of the messages.",
                param="messages",
                details={"prompt_tokens": prompt_tokens, "context_size": self.options.context_size},
            )

    def _tokens(self, request: GenerationRequest) -> Iterator[bytes]:
        if self.scripted:
            return iter(self.scripted.popleft())
        text = example.reply_to(request)
        if text is not None:
            return (token.encode() for token in tokens_of(text))
        if self.options.reply == "echo":
            return (token.encode() for token in tokens_of(request.messages[-1].content if request.messages else ""))
        seed = f"{self.options.seed}:{request.sampling.seed}:{json.dumps([m.content for m in request.messages])}"
        return (token.encode() for token in islice(prose(seed), self.options.reply_tokens))

    async def _guarded(self, reply: "_Reply", stream: EventStream) -> None:
        try:
            await self._produce(reply, stream)
        except Exception as error:  # noqa: BLE001 - the top of a task
            _log.exception("the simulated reply failed")
            stream.fail(Refusal(Code.INTERNAL_ERROR, f"The simulator failed ({type(error).__name__})."))

    async def _produce(self, reply: "_Reply", stream: EventStream) -> None:
        started = time.perf_counter()
        rate = self.options.tokens_per_second
        if rate is None:
            await _at_once(reply, stream)
        else:
            for number, batch in enumerate(reply.batches(1)):
                # Times are counted from the start, so that sleeping too long once does not slow the whole answer.
                await asyncio.sleep(max(0.0, started + (number + 1) / rate - time.perf_counter()))
                stream.put(batch)
        stream.put([reply.finished(time.perf_counter() - started)])
        stream.close()


async def _at_once(reply: "_Reply", stream: EventStream) -> None:
    for batch in reply.batches(BATCH_TOKENS):
        stream.put(batch)
        await stream.room()


class _Reply:
    """One answer on its way: tokens in, events out, counts kept."""

    def __init__(
        self, request: GenerationRequest, tokens: Iterator[bytes], prompt_tokens: int, context_size: int
    ) -> None:
        self._limit = min(request.max_tokens, context_size - prompt_tokens)
        self._scored = request.top_logprobs
        self._tokens = tokens
        self._text = TextAssembler(request.stop)
        self._prompt_tokens = prompt_tokens
        self._made = 0
        self._reason = FinishReason.STOP

    def batches(self, size: int) -> Iterator[list[Event]]:
        """Batches of up to `size` tokens; the last one holds what was held back."""
        batch: list[Event] = []
        for count, token in enumerate(self._until_end(), start=1):
            text = self._text.feed(token)
            if text:
                batch.append(TextDelta(text=text, scores=self._scores(token)))
            if count % size == 0:
                yield batch
                batch = []
        rest = self._text.finish()
        if rest:
            batch.append(TextDelta(text=rest))
        if batch:
            yield batch

    def _until_end(self) -> Iterator[bytes]:
        for token in self._tokens:
            if self._made >= self._limit:
                self._reason = FinishReason.LENGTH
                return
            self._made += 1
            yield token
            if self._text.stopped:
                return

    def _scores(self, token: bytes) -> tuple[TokenScore, ...]:
        if self._scored is None:
            return ()
        score = TokenScore(token=token.decode(errors="replace"), logprob=0.0, bytes=token)
        return (msgspec.structs.replace(score, top=(score,) if self._scored else ()),)

    def finished(self, seconds: float) -> Finished:
        usage = Usage(prompt_tokens=self._prompt_tokens, completion_tokens=self._made)
        return Finished(
            reason=self._reason,
            usage=usage,
            timings=Timings(generation_seconds=seconds),
            stop_sequence=self._text.stop_sequence,
        )


def _prompt_tokens(request: GenerationRequest) -> int:
    texts = [message.content for message in request.messages] or [request.prompt or ""]
    return sum(len(tokens_of(text)) + _TURN_TOKENS for text in texts) + 1
