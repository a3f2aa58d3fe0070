"""One answer from the first decode to its last event: the loop that everything about speed comes down to."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

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
    Usage,
)
from pocketserver.engines.llama.answer import Reply
from pocketserver.engines.llama.constraint import TokenConstraint
from pocketserver.engines.llama.decoder import DecodeAbortedError, Decoder, Logits
from pocketserver.engines.llama.model import Vocabulary
from pocketserver.engines.llama.outbox import Emit, Outbox
from pocketserver.engines.llama.runtime import NO_DRAFTS, Drafts
from pocketserver.engines.llama.sampler import Sampler, log_probability, most_probable
from pocketserver.engines.llama.speculation import Drafter
from pocketserver.errors import Code, Refusal


@dataclass(slots=True, kw_only=True)
class Generation:
    """The state of one answer. `run` may be called once."""

    request: GenerationRequest
    prompt: Sequence[int]
    reading: Sequence[int]
    """The prompt's tokens, marked as they are read."""
    cached_tokens: int
    decoder: Decoder
    vocabulary: Vocabulary
    reply: Reply
    constraint: TokenConstraint | None
    emit: Emit
    progress: Callable[[int], None]
    cancelled: Callable[[], bool]
    drafts: Drafts = NO_DRAFTS
    load_seconds: float = 0.0
    _outbox: Outbox = field(init=False)
    _sampler: Sampler = field(init=False)
    _drafter: Drafter | None = None
    _row: int = -1
    _chosen: int | None = None
    """Chosen from that row of the last batch, behind the part of a draft that was right."""
    _generated: int = 0
    _limit: int = 0
    _prompt_seconds: float = 0.0
    _reason: FinishReason | None = None

    def run(self) -> None:
        """Generate until an end, a stop string, the token limit or a full context. The last event is `Finished`.

        Raises DecodeAbortedError when cancelled, Refusal when the model or the constraint fails.
        """
        self._outbox = Outbox(lambda events: self.emit(merged(events)))
        self._limit = min(self.request.max_tokens, self.decoder.context_size - len(self.prompt))
        self._reason = None if self._limit else FinishReason.LENGTH
        self._sampler = Sampler(self.request.sampling, self.prompt)
        if self._may_draft:
            self._drafter = Drafter(self.prompt, self.drafts, self.vocabulary.end_tokens)
        started = time.perf_counter()
        self._read_prompt()
        first = time.perf_counter()
        self._prompt_seconds = first - started
        try:
            while self._reason is None:
                self._step()
            self._finish(time.perf_counter() - first)
        finally:
            self._outbox.flush()

    @property
    def _scored(self) -> bool:
        return self.request.top_logprobs is not None

    @property
    def _may_draft(self) -> bool:
        """A draft knows neither a constraint nor a budget, and a wrong one must be cut away again."""
        free = self.constraint is None and self.request.reasoning_budget is None
        return self.drafts.tokens > 0 and free and self.decoder.can_be_cut

    @property
    def _logits(self) -> Logits:
        """What the next token is chosen from."""
        return self.decoder.logits(self._row)

    def _read_prompt(self) -> None:
        """Decode the prompt, together with what the constraint forces at the answer's very start."""
        rest = self.reading[self.cached_tokens :]
        forced = self.constraint.forced() if self.constraint else []
        if not forced or self._scored:
            self.decoder.prefill(rest, self.progress)
            self._add(forced)
        else:
            self.decoder.prefill([*rest, *forced[: self._limit]], self.progress)
            self._show(forced)

    def _step(self) -> None:
        """Choose a token, add what it forces, show both, decode both."""
        if self.cancelled():
            raise DecodeAbortedError
        self._outbox.step()
        if self._drafter is not None:
            self._step_ahead(self._drafter)
            return
        tokens = self._end_of_thinking() or [self._choose(self._logits)]
        if self.constraint is not None and not self._ends(tokens[0]):
            tokens += self.constraint.accept_all(tokens)
        self._add(tokens)

    def _step_ahead(self, drafter: Drafter) -> None:
        """Choose and show a token, and decode it together with a guess of what follows."""
        token = self._choose(self._logits) if self._chosen is None else self._chosen
        self._show([token])
        if self._reason is not None:
            return
        draft, length = drafter.draft(self._limit - self._generated - 1), len(self.decoder.tokens)
        self.decoder.decode([token, *draft], all_logits=bool(draft))
        self._row, self._chosen = -1, None
        if draft:
            accepted = self._accept(draft)
            drafter.learn(len(draft), accepted)
            self.decoder.truncate(length + 1 + accepted)

    def _accept(self, draft: Sequence[int]) -> int:
        """Show as much of a draft as the model itself chooses, token by token as without it; how much that is.

        The first choice that differs is kept for the next step: choosing twice would spend the seed's numbers twice.
        """
        events: list[Event] = []
        accepted = 0
        for row, guess in enumerate(draft):
            logits = self.decoder.logits(row)
            token = self._choose(logits)
            if token != guess:
                self._row, self._chosen = row, token
                break
            events += self._shown(token, logits if self._scored else None)
            if self._reason is not None:
                break
            accepted += 1
        self._outbox.put(events)
        return accepted

    def _ends(self, token: int) -> bool:
        return token in self.vocabulary.end_tokens and not self.reply.goes_on_after(token)

    def _end_of_thinking(self) -> list[int]:
        """The tokens that end the model's thinking, once its budget is used up."""
        budget, mark = self.request.reasoning_budget, self.reply.closing_mark
        if budget is None or mark is None or self.reply.reasoning_tokens < budget:
            return []
        return self.vocabulary.split(mark)

    def _choose(self, logits: Logits) -> int:
        allowed = logits
        if self.constraint is not None:
            allowed = logits.copy() if self._scored else logits
            self.constraint.mask(allowed)
        token = self._sampler.choose(allowed)
        if not np.isfinite(allowed[token]):
            raise Refusal(Code.GENERATION_FAILED, "The model computed no usable next token. Send the request again.")
        return token

    def _add(self, tokens: Sequence[int]) -> None:
        """Show tokens and decode them together; with scores one by one, as each needs the logits before it."""
        groups = [[token] for token in tokens] if self._scored else [tokens]
        for number, group in enumerate(groups, start=1):
            self._show(group, last=number == len(groups))
            if self._reason is not None:
                return
            self._decode(group)

    def _show(self, tokens: Sequence[int], *, last: bool = True) -> None:
        """Emit what these tokens make certain, until one of them ends the answer.

        A constrained value that is complete is a stop, also where the token limit falls on its last token.
        """
        events: list[Event] = []
        logits = self._logits if self._scored else None
        shown = 0
        while self._reason is None and shown < len(tokens):
            events += self._shown(tokens[shown], logits)
            shown += 1
        if last and shown == len(tokens) and self.constraint is not None and self.constraint.finished:
            self._reason = FinishReason.STOP
        self._outbox.put(events)

    def _shown(self, token: int, logits: Logits | None) -> Sequence[Event]:
        self._generated += 1
        if self._ends(token):
            self._reason = FinishReason.STOP
            return self.reply.feed(token, b"")
        self._sampler.accept(token)
        if self._drafter is not None:
            self._drafter.add(token)
        score = self._score(token, logits) if logits is not None else None
        events = self.reply.feed(token, self.vocabulary.piece(token), score)
        if self.reply.stop_sequence is not None:
            self._reason = FinishReason.STOP
        elif self._generated >= self._limit:
            self._reason = FinishReason.LENGTH
        return events

    def _decode(self, tokens: Sequence[int]) -> None:
        self.decoder.prefill(tokens, lambda _tokens: None)

    def _score(self, token: int, logits: Logits) -> TokenScore:
        best = most_probable(logits, min(self.request.top_logprobs or 0, len(logits)))
        scores = log_probability(logits, [token, *best])
        top = tuple(self._named(other, score) for other, score in zip(best, scores[1:], strict=True))
        return self._named(token, scores[0], top)

    def _named(self, token: int, logprob: float, top: tuple[TokenScore, ...] = ()) -> TokenScore:
        data = self.vocabulary.piece(token) or self.vocabulary.text(token).encode()
        return TokenScore(token=data.decode("utf-8", errors="replace"), logprob=logprob, bytes=data, top=top)

    def _finish(self, generation_seconds: float) -> None:
        assert self._reason is not None
        rest, reason = self.reply.finish(self._reason)
        usage = Usage(
            prompt_tokens=len(self.prompt),
            completion_tokens=self._generated,
            cached_tokens=self.cached_tokens,
            reasoning_tokens=self.reply.reasoning_tokens,
        )
        timings = Timings(
            prompt_seconds=self._prompt_seconds,
            generation_seconds=generation_seconds,
            load_seconds=self.load_seconds,
        )
        finished = Finished(reason=reason, usage=usage, timings=timings, stop_sequence=self.reply.stop_sequence)
        self._outbox.put([*rest, finished])


def merged(events: Sequence[Event]) -> list[Event]:
    """Neighbouring pieces of a kind as one event: a forced group then costs a reader one chunk."""
    whole: list[Event] = []
    for event in events:
        match whole[-1:], event:
            case [TextDelta() as last], TextDelta():
                tokens, scores = last.tokens + event.tokens, last.scores + event.scores
                whole[-1] = TextDelta(text=last.text + event.text, tokens=tokens, scores=scores)
            case [ReasoningDelta() as last], ReasoningDelta():
                whole[-1] = ReasoningDelta(text=last.text + event.text, tokens=last.tokens + event.tokens)
            case [ToolCallDelta(index=index) as last], ToolCallDelta() if index == event.index:
                arguments, tokens = last.arguments + event.arguments, last.tokens + event.tokens
                whole[-1] = ToolCallDelta(index=index, arguments=arguments, tokens=tokens)
            case _:
                whole.append(event)
    return whole
