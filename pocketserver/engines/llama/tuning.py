"""What was measured of a model on this machine, and what follows from it.

Needs no native library: the measuring itself is `tuning_measures`, run in a model process by `tuner`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import msgspec

from pocketserver.engines.llama.runtime import NO_DRAFTS, Drafts, FlashAttention, KvType, Runtime

TURN_PROMPT_TOKENS = 500
TURN_GENERATED_TOKENS = 100
"""A typical turn of a conversation that is 500 to 1,000 tokens deep: what a choice is judged by."""

WORTH_EXACTNESS = 1.05
"""A format whose logits do not depend on the batch is taken while it is no more than 5 % slower."""

WORTH_MEMORY = 1.10
"""Flash attention is kept while it is no more than 10 % slower: single rows differ by 5 % from one time to the next."""

MOST_ATTENTION_BYTES = 128 * 1024 * 1024
"""Without flash attention, scores of a micro-batch against the whole context are held; more than this is not spent."""

WORTH_BLAS = 1.10
"""BLAS reads prompts if that is so much faster: it does not read their short stretches, and batches split there."""

WORTH_A_CHANGE = 1.05
"""Smaller gains than this are noise, and leave the number of threads and the micro-batch as they are."""

TOO_BUSY = 0.3
MOST_ATTEMPTS = 3

WORTH_DRAFTING = 1.25
"""A draft that is all right must be so much faster than its tokens one by one."""

DRAFT_LENGTHS = (7, 15)
"""Tokens that speculation may decode behind a certain one; with it, whole tiles of 8 or 16 rows are computed."""

VERSION = 2
"""Of the records; others are measured anew."""


class Question(StrEnum):
    """What a row was measured for."""

    THREADS = "threads"
    FORMAT = "format"
    BLAS = "blas"
    MICRO_BATCH = "micro_batch"


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds for so many tokens in one batch behind a filled context."""

    tokens: int
    seconds: float


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One way to run the model and its seconds a token, with an empty context and with a filled one.

    `batch_invariant` tells whether the same tokens gave the same logits, to the last bit, in batches of every shape
    that was tried; None where that was not asked.
    """

    question: Question
    runtime: Runtime
    prompt_empty: float
    prompt_filled: float
    generate_empty: float
    generate_filled: float
    batch_invariant: bool | None = None
    batches: tuple[Batch, ...] = ()

    @property
    def turn_seconds(self) -> float:
        return TURN_PROMPT_TOKENS * self.prompt_filled + TURN_GENERATED_TOKENS * self.generate_filled


class TuningRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Everything measured at one time. `crashed` says that the measuring ended the process: then there are no rows.

    `heads` is the model's number of attention heads, 0 where nothing was measured.
    `busy` is the share of the machine, 0 to 1, that other programs used meanwhile; `attempts` counts how often it was
    measured because of that.
    """

    build: str
    safe_mode: bool
    usual: Runtime
    heads: int = 0
    rows: tuple[Row, ...] = ()
    seconds: float = 0.0
    busy: float = 0.0
    attempts: int = 1
    crashed: bool = False
    version: int = VERSION

    @property
    def is_settled(self) -> bool:
        """False when the machine was too busy to tell, so that the next start had better measure again."""
        return self.crashed or self.busy < TOO_BUSY or self.attempts >= MOST_ATTEMPTS


class Given(Protocol):
    """What a person set by hand; None is left to the measurements."""

    @property
    def threads(self) -> int | None: ...
    @property
    def threads_batch(self) -> int | None: ...
    @property
    def kv_type(self) -> KvType | None: ...
    @property
    def flash_attention(self) -> FlashAttention: ...
    @property
    def micro_batch(self) -> int | None: ...
    @property
    def blas(self) -> bool | None: ...
    @property
    def draft_tokens(self) -> int | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How to run the model."""

    runtime: Runtime
    drafts: Drafts = NO_DRAFTS
    batch_invariant: bool | None = None


def choose(record: TuningRecord, given: Given, context_size: int = 0) -> Choice:
    """The best of what was measured, as far as it was not set by hand; the usual while that was disturbed."""
    usual = record.usual
    rows = [row for row in record.rows if record.is_settled and _fits(row, record.heads, context_size)]
    best = choose_format(rows, given)
    blas = best_blas(rows) if given.blas is None else given.blas
    threads = given.threads or best_threads(rows, usual)
    threads_batch = given.threads_batch or given.threads or best_batch_threads(rows, usual)
    runtime = Runtime(
        threads=threads,
        threads_batch=threads_batch,
        kv_type=best.runtime.kv_type if best else given.kv_type or usual.kv_type,
        flash_attention=best.runtime.flash_attention if best else given.flash_attention,
        micro_batch=given.micro_batch or best_micro_batch(rows, usual),
        blas=blas,
    )
    drafts = drafts_that_pay(best.batches if best else ())
    if given.draft_tokens is not None:
        drafts = Drafts(tokens=given.draft_tokens)
    exact = best.batch_invariant if best and _same_threads(best.runtime, runtime) else None
    if exact and blas:
        exact = next((row.batch_invariant for row in rows if row.question is Question.BLAS and row.runtime.blas), None)
    return Choice(runtime=runtime, drafts=drafts, batch_invariant=exact)


def choose_format(rows: Iterable[Row], given: Given) -> Row | None:
    """The format of the fastest typical turn among those that were not ruled out by hand; see `best_format`."""
    return best_format(row for row in rows if _permits(given, row.runtime))


def best_format(rows: Iterable[Row]) -> Row | None:
    """The fastest; flash attention is given up only for a real gain, and one that is nearly as fast may be exact.

    Flash attention takes less memory, by context times micro-batch, and its share is the same at any depth.
    """
    formats = [row for row in rows if row.question is Question.FORMAT]
    lean = [row for row in formats if row.runtime.flash_attention is not FlashAttention.OFF]
    allowed = lean if _fastest(lean) <= _fastest(formats) * WORTH_MEMORY else formats
    near = [row for row in allowed if row.turn_seconds <= _fastest(allowed) * WORTH_EXACTNESS]
    exact = [row for row in near if row.batch_invariant]
    return min(exact or near, key=lambda row: row.turn_seconds, default=None)


def _fastest(rows: Iterable[Row]) -> float:
    return min((row.turn_seconds for row in rows), default=float("inf"))


def _fits(row: Row, heads: int, context_size: int) -> bool:
    """Scores are float32 numbers, one for each token of a micro-batch against each of a full context."""
    if row.question is Question.BLAS or row.runtime.flash_attention is not FlashAttention.OFF:
        return True
    return heads * context_size * row.runtime.micro_batch * 4 <= MOST_ATTENTION_BYTES


def better(row: Row, again: Row) -> Row:
    """The least of two measurements of one thing; exact is what was exact both times."""
    pairs = zip(row.batches, again.batches, strict=False)  # one of them may have ended sooner
    return msgspec.structs.replace(
        row,
        prompt_empty=min(row.prompt_empty, again.prompt_empty),
        prompt_filled=min(row.prompt_filled, again.prompt_filled),
        generate_empty=min(row.generate_empty, again.generate_empty),
        generate_filled=min(row.generate_filled, again.generate_filled),
        batch_invariant=row.batch_invariant and again.batch_invariant,
        batches=tuple(min(pair, key=lambda batch: batch.seconds) for pair in pairs),
    )


def best_threads(rows: Iterable[Row], usual: Runtime) -> int:
    """Threads that generate fastest."""
    seconds = {row.runtime.threads: row.generate_empty for row in rows if row.question is Question.THREADS}
    return _best(seconds, usual.threads)


def best_batch_threads(rows: Iterable[Row], usual: Runtime) -> int:
    """Threads that read prompts fastest: they compute, where generating waits for memory."""
    seconds = {row.runtime.threads: row.prompt_empty for row in rows if row.question is Question.THREADS}
    return _best(seconds, usual.threads_batch)


def best_blas(rows: Iterable[Row]) -> bool:
    """Whether prompts are read through BLAS: when that was measured, and pays."""
    seconds = {row.runtime.blas: row.prompt_empty for row in rows if row.question is Question.BLAS}
    return len(seconds) > 1 and seconds[True] * WORTH_BLAS <= seconds[False]


def best_micro_batch(rows: Iterable[Row], usual: Runtime) -> int:
    seconds = {row.runtime.micro_batch: row.prompt_empty for row in rows if row.question is Question.MICRO_BATCH}
    return _best(seconds, usual.micro_batch)


def drafts_that_pay(batches: Sequence[Batch]) -> Drafts:
    """The longest draft that is worth its batch if all of it is right, and how much of it has to be."""
    seconds = {batch.tokens: batch.seconds for batch in batches}
    single = seconds.pop(1, 0.0)
    paying = [tokens for tokens, value in seconds.items() if value * WORTH_DRAFTING <= single * tokens]
    if not paying:
        return NO_DRAFTS
    tokens = max(paying)
    return Drafts(tokens=tokens - 1, break_even=max(0.0, seconds[tokens] / single - 1) / (tokens - 1))


def _permits(given: Given, runtime: Runtime) -> bool:
    return given.kv_type in (None, runtime.kv_type) and (
        given.flash_attention in (FlashAttention.AUTO, runtime.flash_attention)
    )


def _same_threads(left: Runtime, right: Runtime) -> bool:
    """Attention may be split among threads, and then their number is a part of the sum's order."""
    return (left.threads, left.threads_batch) == (right.threads, right.threads_batch)


def _best(seconds: dict[int, float], usual: int) -> int:
    """The key of the least value; the usual one while it is nearly as good."""
    if not seconds:
        return usual
    best = min(seconds, key=seconds.__getitem__)
    return usual if seconds.get(usual, 1e9) <= seconds[best] * WORTH_A_CHANGE else best
