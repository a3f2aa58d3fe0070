"""One simulated answer on its way: a script becomes events, and device time passes between them."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Protocol

import msgspec

from pocketserver.chat import (
    Event,
    Finished,
    FinishReason,
    GenerationRequest,
    ReasoningDelta,
    TextDelta,
    Timings,
    TokenScore,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)
from pocketserver.engines.engine import EventStream
from pocketserver.engines.sim.script import Script, call_id, raw_text, raw_tokens
from pocketserver.engines.sim.state import Device
from pocketserver.engines.sim.tokens import RULE, Tokenizer, pieces
from pocketserver.engines.text import TextAssembler

BATCH_TOKENS = 256
"""Tokens a batch when time is virtual; bounds what a slow reader makes the engine hold."""

Pause = Callable[[float | None], Awaitable[None]]
"""Wait so many real seconds, None for ever; ends early, with the Refusal, when somebody ends the stream."""


class Interruption(Protocol):
    """What happens to one answer in mid-stream. `opening` is said before the reply."""

    opening: str

    async def reached(self, tokens: int, pause: Pause, *, ended: bool) -> None:
        """So many tokens are delivered and the next is about to be made, or the reply has `ended`.

        May wait, raise a Refusal, or never come back.
        """
        ...


class Answer(Protocol):
    """What a stream gets its batches from."""

    async def next_batch(self, pause: Pause) -> Sequence[Event] | None:
        """The next events, once they are due; None after the last."""
        ...


class SimStream(EventStream):
    """Makes each batch when its reader asks for it: nothing piles up, and leaving costs nothing."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self._answer = answer

    async def __anext__(self) -> Sequence[Event]:
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise StopAsyncIteration
        batch = await self._answer.next_batch(self.pause)
        if self._failure is not None:
            raise self._failure
        if batch is None:
            self.close()
            raise StopAsyncIteration
        if batch and isinstance(batch[-1], Finished):
            self.close()  # nothing comes behind it
        self.touch()
        return self.stamped(batch) if self.load_seconds else batch

    async def pause(self, seconds: float | None) -> None:
        """See `Pause`."""
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, self._wake)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()
        if self._failure is not None:
            raise self._failure


class SimAnswer:
    """One answer: how far it is, what it cost, and when its next token is due."""

    def __init__(
        self,
        request: GenerationRequest,
        script: Script,
        device: Device,
        prompt_tokens: int,
        *,
        interruption: Interruption | None = None,
        tokenizer: Tokenizer = RULE,
    ) -> None:
        self._request = request
        self._tokenizer = tokenizer
        self._script = script
        self._device = device
        self._interruption = interruption
        self._prompt_tokens = prompt_tokens
        self._limit = min(request.max_tokens, device.served_context - prompt_tokens)
        self._text: TextAssembler | None = None
        """Of an answer that is made token by token, once it has begun."""
        self._made = 0
        self._reasoning_tokens = 0
        self._reason = script.finish_reason or (FinishReason.TOOL_CALLS if script.calls else FinishReason.STOP)
        self._events: Iterator[Event | None] | None = None
        self._due = device.clock.now()
        self._prompt_seconds: float | None = None
        self._seconds = 0.0
        self._over = False
        jitter = device.preset.jitter
        self._noise = random.Random(request.id) if jitter else None  # noqa: S311 - repeatable on purpose

    async def next_batch(self, pause: Pause) -> Sequence[Event] | None:
        """The next events, once they are due; None after the last."""
        if self._over:
            return None
        if self._prompt_seconds is None:
            self._device.rest()
            self._prompt_seconds = self._device.prompt_seconds(self._prompt_tokens)
            await self._pass(self._prompt_seconds, pause)
        if self._interruption is not None:
            await self._interruption.reached(self._made, pause, ended=False)
        made, size = self._made, self._batch_size()
        batch, ended = self._whole() if self._is_plain(size) else self._take(size)
        await self._pass((self._made - made) * self._token_seconds(), pause)
        if ended:
            if self._interruption is not None:
                await self._interruption.reached(self._made, pause, ended=True)
            self._over = True
            batch.append(self._finished())
        elif self._device.clock.virtual:
            await asyncio.sleep(0)
        return batch

    async def _pass(self, seconds: float, pause: Pause) -> None:
        """Let device time pass. Times add up from the start, so that waking up late once slows nothing down."""
        clock = self._device.clock
        self._due += seconds
        self._seconds += seconds
        if clock.virtual:
            clock.advance(seconds)
        else:
            wait = clock.real_seconds(self._due)
            if wait > 0:
                await pause(wait)
        self._device.work(seconds)

    def _batch_size(self) -> int:
        """One token at a time where time is real or something is about to happen; many otherwise."""
        clock = self._device.clock
        if not clock.virtual or self._interruption is not None or clock.next_timer() is not None:
            return 1
        return BATCH_TOKENS

    def _token_seconds(self) -> float:
        seconds = self._device.token_seconds(self._prompt_tokens + self._made)
        if self._noise is None:
            return seconds
        return seconds * max(0.2, self._noise.gauss(1.0, self._device.preset.jitter))

    def _is_plain(self, size: int) -> bool:
        """Whether the reply can be said in one go, from events that are there already."""
        spoken, request = self._script.spoken, self._request
        return (
            spoken is not None
            and self._made == 0
            and len(spoken.events) < size
            and not request.stop
            and not request.echo
            and request.top_logprobs is None
        )

    def _whole(self) -> tuple[list[Event], bool]:
        spoken = self._script.spoken
        assert spoken is not None, "asked before"
        if len(spoken.events) > self._limit:
            self._reason = FinishReason.LENGTH
        elif self._request.whole and spoken.events:
            self._made = len(spoken.events)
            return [spoken.together], True
        batch: list[Event] = [*spoken.events[: self._limit]]
        self._made = len(batch)
        return batch, True

    def _take(self, count: int) -> tuple[list[Event], bool]:
        if self._events is None:
            self._text = TextAssembler(self._request.stop)
            self._events = self._all_events(self._text)
        batch: list[Event] = []
        steps = 0
        for event in islice(self._events, count):
            steps += 1
            if event is not None:
                batch.append(event)
        return batch, steps < count

    def _all_events(self, assembler: TextAssembler) -> Iterator[Event | None]:
        """One step for each token; None for a token that is held back."""
        yield from self._echoed()
        yield from self._reasoning()
        if self._cut:
            return
        yield from self._said(assembler)
        if self._cut or assembler.stopped:
            self._text_ended(assembler)
            return
        yield from self._calls()

    def _echoed(self) -> Iterator[Event]:
        """The raw prompt, where the answer is to begin with it."""
        request = self._request
        if not request.echo or not (text := raw_text(request)):
            return
        scores = [score for token in raw_tokens(request) for score in self._scores(token.encode(errors="replace"))]
        scores[:1] = [msgspec.structs.replace(score, top=(), is_first=True) for score in scores[:1]]
        yield TextDelta(text=text, tokens=0, scores=tuple(scores))

    @property
    def _cut(self) -> bool:
        return self._reason is FinishReason.LENGTH and self._script.finish_reason is None

    def _room(self, tokens: int = 1) -> bool:
        """Count one more token (or what makes whole characters), unless the limit is reached."""
        if self._made + tokens > self._limit:
            if self._script.finish_reason is None:
                self._reason = FinishReason.LENGTH
            return False
        self._made += tokens
        return True

    def _reasoning(self) -> Iterator[Event | None]:
        for piece in pieces(self._script.reasoning):
            if not self._room(piece.tokens):
                return
            self._reasoning_tokens += piece.tokens
            yield ReasoningDelta(text=piece.text, tokens=piece.tokens)

    def _said(self, assembler: TextAssembler) -> Iterator[Event | None]:
        plain = not self._request.stop and self._request.top_logprobs is None
        held = 0
        tokens: Iterable[str | bytes] = self._script.tokens
        if self._interruption is not None and self._interruption.opening:
            tokens = chain((self._interruption.opening,), tokens)
        for token in tokens:
            if not self._room():
                break
            if plain and token and isinstance(token, str) and not held:
                yield TextDelta(text=token)
                continue
            held += 1
            data = token.encode() if isinstance(token, str) else token
            text = assembler.feed(data)
            yield TextDelta(text=text, tokens=held, scores=self._scores(data)) if text else None
            held = 0 if text else held
            if assembler.stopped:
                return
        rest = assembler.finish()
        if rest:
            yield TextDelta(text=rest, tokens=held)

    def _text_ended(self, assembler: TextAssembler) -> None:
        """A stop string ends the answer before any call."""
        if assembler.stopped and self._script.finish_reason is None:
            self._reason = FinishReason.STOP

    def _calls(self) -> Iterator[Event | None]:
        for index, call in enumerate(self._script.calls):
            if not self._room():
                return
            yield ToolCallStarted(index=index, id=call_id(self._request, index), name=call.name)
            for piece in pieces(self._tokenizer.split(call.arguments_text)):
                if not self._room(piece.tokens):
                    return
                yield ToolCallDelta(index=index, arguments=piece.text, tokens=piece.tokens)

    def _scores(self, token: bytes) -> tuple[TokenScore, ...]:
        if self._request.top_logprobs is None:
            return ()
        score = TokenScore(token=token.decode(errors="replace"), logprob=0.0, bytes=token)
        return (msgspec.structs.replace(score, top=(score,) if self._request.top_logprobs else ()),)

    def _finished(self) -> Finished:
        usage = Usage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._made,
            reasoning_tokens=self._reasoning_tokens,
        )
        prompt_seconds = self._prompt_seconds or 0.0
        return Finished(
            reason=self._reason,
            usage=usage,
            timings=Timings(prompt_seconds=prompt_seconds, generation_seconds=self._seconds - prompt_seconds),
            stop_sequence=None if self._text is None else self._text.stop_sequence,
        )
