"""Measures how a loaded model runs best, in a few seconds. Runs in a model process and holds the only context there.

A filled context is made cheaply: one piece of text is computed, and its state is restored several times over, each
copy as a part of the one sequence. What attention costs does not depend on what was said.
"""

import contextlib
import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import llama_cpp
import msgspec
import numpy as np
import psutil

from pocketserver.engines.llama import native
from pocketserver.engines.llama.decoder import Decoder, Logits, crash, probe
from pocketserver.engines.llama.frames import FromWorker, Load, LoadProgress, Measured, Probing, Tuned
from pocketserver.engines.llama.model import Model
from pocketserver.engines.llama.reading import LEAST_STRETCH
from pocketserver.engines.llama.runtime import FlashAttention, KvType, Runtime
from pocketserver.engines.llama.session import runtime_of
from pocketserver.engines.llama.tuning import (
    DRAFT_LENGTHS,
    Batch,
    Question,
    Row,
    TuningRecord,
    best_batch_threads,
    best_blas,
    best_format,
    best_threads,
    better,
)
from pocketserver.errors import Refusal

FORMATS = (
    (KvType.F16, FlashAttention.ON),
    (KvType.BF16, FlashAttention.ON),
    (KvType.Q8_0, FlashAttention.ON),
    (KvType.F16, FlashAttention.OFF),
)
MICRO_BATCHES = (256, 512)
GPU_MICRO_BATCHES = (64, 128, 256)
"""A GPU hears of a cancel between micro-batches only. A processor hears at once, and small ones cost it a fifth of its
speed at 4,000 tokens deep, which an empty context does not show."""

_PIECE_TOKENS = 64  # of the text that is computed for each row
_COPIES = 11  # and so often it is there once more when the context is filled: 768 tokens
_SINGLES = 8
_SMALLEST_PIECE = 16
_PIECE_SECONDS = 0.6
_BLAS_SHARE = 1.5
_MAYBE_THE_BEST = 1.5
_CONTEXT = 1024

Report = Callable[[float], None]


def tune(load: Load, budget_seconds: float, send: Callable[[FromWorker], None]) -> None:
    """Load a model, see that it runs, and measure it, in frames. Raises Refusal."""
    model = Model(load, native.progress_callback(lambda fraction: send(LoadProgress(fraction=fraction))))
    usual = runtime_of(Load(path=load.path, context_size=load.context_size))
    send(Probing())
    if load.abort_in_probe_with_extra_buffers and load.extra_buffers:
        crash()
    decoder = Decoder(model, load, usual)
    probe(decoder, model.vocabulary.size)
    decoder.close()
    send(Measured(fraction=0.0))
    measuring = _Measuring(model, load, usual, budget_seconds, lambda fraction: send(Measured(fraction=fraction)))
    record = measuring.run(psutil.cpu_count() or usual.threads)
    send(Tuned(record=record))


class _Measuring:
    """Threads, then formats, then micro-batches with the best of those, while time is left.

    A row that would outlast the budget, judged by the one before, is not begun: a large model has fewer rows.
    """

    def __init__(self, model: Model, load: Load, usual: Runtime, budget_seconds: float, report: Report) -> None:
        self._model = model
        self._load = msgspec.structs.replace(load, context_size=_CONTEXT)
        self._usual = usual
        self._budget_seconds = budget_seconds
        self._report = report
        self._started = time.perf_counter()
        self._others = OtherPrograms()
        self._rows: list[Row] = []
        self._last_row_seconds = 0.0
        self._last_row_ended = 0.0
        self._piece = _PIECE_TOKENS
        self._copies = _COPIES

    def run(self, logical_cores: int) -> TuningRecord:
        counts = thread_counts(self._usual.threads, logical_cores)
        for threads in counts if len(counts) > 1 and self._load.threads is None else []:
            self._measure_threads(threads)
        quick = self._quickest_threads()
        for kv_type, flash_attention in FORMATS:
            with contextlib.suppress(Refusal):  # not every format suits every model's head size
                self._measure_format(msgspec.structs.replace(quick, kv_type=kv_type, flash_attention=flash_attention))
        best = best_format(self._rows)
        self._measure_blas(best.runtime if best else quick)
        self._measure_close_ones_again()
        best = best_format(self._rows)
        chosen = msgspec.structs.replace(best.runtime if best else quick, blas=best_blas(self._rows))
        self._measure_micro_batches(chosen)
        return TuningRecord(
            build="",
            safe_mode=not self._load.extra_buffers,
            usual=self._usual,
            heads=int(llama_cpp.llama_model_n_head(self._model.pointer)),
            rows=tuple(self._rows),
            seconds=self._elapsed,
            busy=self._others.share(),
        )

    @property
    def _elapsed(self) -> float:
        return time.perf_counter() - self._started

    @property
    def _time_is_left(self) -> bool:
        return self._elapsed + self._last_row_seconds < self._budget_seconds

    def _add(self, row: Row) -> None:
        self._rows.append(row)
        self._row_ended()

    def _row_ended(self) -> None:
        now = self._elapsed
        self._last_row_seconds, self._last_row_ended = now - self._last_row_ended, now
        self._report(min(0.99, now / self._budget_seconds))

    def _measure_threads(self, threads: int) -> None:
        """Costs without a filled context, which changes how long attention takes but not which count is best."""
        if self._rows and not self._time_is_left:
            return
        runtime = msgspec.structs.replace(self._usual, threads=threads, threads_batch=threads)
        with self._context(runtime) as decoder:
            self._fit_piece(decoder)
            prompt, generate = self._prompt_seconds(decoder), self._single_seconds(decoder)
        self._add(_row(Question.THREADS, runtime, prompt, generate))

    def _fit_piece(self, decoder: Decoder) -> None:
        """Shorten the text where the model is slow, by the time of a first short batch."""
        seconds = _timed(decoder.decode, self._text(_SMALLEST_PIECE)) / _SMALLEST_PIECE
        fitting = int(_PIECE_SECONDS / max(seconds, 1e-6)) // _SMALLEST_PIECE * _SMALLEST_PIECE
        self._piece = max(_SMALLEST_PIECE, min(self._piece, fitting))
        decoder.clear()

    def _quickest_threads(self) -> Runtime:
        """What is set by hand is what the formats are compared with."""
        if self._load.threads is not None:
            given = runtime_of(self._load)
            return msgspec.structs.replace(self._usual, threads=given.threads, threads_batch=given.threads_batch)
        if not self._rows:
            return self._usual
        return msgspec.structs.replace(
            self._usual,
            threads=best_threads(self._rows, self._usual),
            threads_batch=best_batch_threads(self._rows, self._usual),
        )

    def _measure_format(self, runtime: Runtime) -> None:
        if any(row.question is Question.FORMAT for row in self._rows) and not self._time_is_left:
            return
        self._add(self._format_row(runtime))

    def _measure_close_ones_again(self) -> None:
        """What else runs makes a row slower, never faster: formats that may still be the best have a second chance."""
        formats = [row for row in self._rows if row.question is Question.FORMAT]
        fastest = min((row.turn_seconds for row in formats), default=0.0)
        close = [row for row in formats if row.turn_seconds <= fastest * _MAYBE_THE_BEST]
        for row in close if len(close) > 1 else []:
            if not self._time_is_left:
                return
            self._rows[self._rows.index(row)] = better(row, self._format_row(row.runtime))
            self._row_ended()

    def _format_row(self, runtime: Runtime) -> Row:
        with self._context(runtime) as decoder:
            prompt_empty = self._prompt_seconds(decoder)
            whole = decoder.logits().copy()
            same, generate_empty = self._split(decoder, whole)
            self._fill(decoder)
            same_filled, batches = self._filled_batches(decoder)
            prompt_filled = self._prompt_seconds(decoder)
        return Row(
            question=Question.FORMAT,
            runtime=runtime,
            prompt_empty=prompt_empty,
            prompt_filled=prompt_filled,
            generate_empty=generate_empty,
            generate_filled=batches[0].seconds,
            batch_invariant=same and same_filled if self._piece == _PIECE_TOKENS else None,  # too short to tell
            batches=batches,
        )

    def _split(self, decoder: Decoder, whole: Logits) -> tuple[bool, float]:
        """Decode the same text in other batches, its end one by one: are the last logits the same, and how fast?"""
        decoder.clear()
        text = self._text(self._piece)
        singles = min(_SINGLES, self._piece // 2)
        first = max(1, (self._piece - singles) * 2 // 3) | 1
        decoder.decode(text[:first])
        decoder.decode(text[first : self._piece - singles])
        times = [_timed(decoder.decode, [token]) for token in text[-singles:]]
        return bool(np.array_equal(whole, decoder.logits())), _typical(times)

    def _filled_batches(self, decoder: Decoder) -> tuple[bool, tuple[Batch, ...]]:
        """Some tokens behind a filled context, one by one and in batches: the same logits, and how fast?"""
        depth, text = len(decoder.tokens), self._text(DRAFT_LENGTHS[-1] + 1)
        times: list[float] = []
        alone: list[Logits] = []
        for token in text[:_SINGLES]:
            times.append(_timed(decoder.decode, [token]))
            alone.append(decoder.logits().copy())
        batches = [Batch(tokens=1, seconds=_typical(times))]
        same = True
        for length in DRAFT_LENGTHS:
            if not decoder.truncate(depth):
                return False, tuple(batches)
            seconds = _timed(decoder.decode, text[: length + 1], all_logits=True)
            batches.append(Batch(tokens=length + 1, seconds=seconds))
            same = same and all(np.array_equal(row, decoder.logits(index)) for index, row in enumerate(alone))
        decoder.truncate(depth)
        return same, tuple(batches)

    def _measure_blas(self, runtime: Runtime) -> None:
        """A micro-batch through BLAS and without: the matrices' layout is changed for each one, however short it is."""
        suits = self._model.blas is not None and self._model.gpu_layers == 0 and self._model.can_be_cut
        text = self._text(min(runtime.micro_batch, self._affordable_tokens()))
        if not suits or len(text) < LEAST_STRETCH:
            return
        with self._context(runtime) as decoder:
            seconds = _timed(decoder.decode, text) / len(text)
        self._add(_row(Question.BLAS, runtime, seconds, 0.0))
        self._add(self._blas_row(msgspec.structs.replace(runtime, blas=True), text))

    def _affordable_tokens(self) -> int:
        """A text that is read three times. It has a budget of its own: where prompts take long, BLAS gains most."""
        slowest = max((row.prompt_empty for row in self._rows if row.question is Question.FORMAT), default=1.0)
        return int(self._budget_seconds * _BLAS_SHARE / (3 * slowest))

    def _blas_row(self, runtime: Runtime, text: Sequence[int]) -> Row:
        """The same in two batches first, for their logits: BLAS makes its threads and buffers meanwhile."""
        with self._context(runtime) as decoder:
            for part in (text[: len(text) // 3], text[len(text) // 3 :]):
                decoder.decode(part)
            parted = decoder.logits().copy()
            decoder.clear()
            seconds = _timed(decoder.decode, text) / len(text)
            same = bool(np.array_equal(parted, decoder.logits()))
        return msgspec.structs.replace(_row(Question.BLAS, runtime, seconds, 0.0), batch_invariant=same)

    def _measure_micro_batches(self, runtime: Runtime) -> None:
        for size in GPU_MICRO_BATCHES if self._model.gpu_layers > 0 else MICRO_BATCHES:
            if not self._time_is_left:
                return
            candidate = msgspec.structs.replace(runtime, micro_batch=size)
            with self._context(candidate) as decoder:
                seconds = _timed(decoder.decode, self._text(size)) / size
            self._add(_row(Question.MICRO_BATCH, candidate, seconds, 0.0))

    def _prompt_seconds(self, decoder: Decoder) -> float:
        return _timed(decoder.decode, self._text(self._piece)) / self._piece

    def _single_seconds(self, decoder: Decoder) -> float:
        return _typical([_timed(decoder.decode, [token]) for token in self._text(_SINGLES)])

    def _fill(self, decoder: Decoder) -> None:
        """Put copies of the text in the context behind itself; leaves it as it is where that cannot be done."""
        copies = 0 if _remembers_otherwise(self._model) else self._copies
        size = llama_cpp.llama_state_seq_get_size(decoder.pointer, 0)
        buffer = (ctypes.c_uint8 * size)()
        size = llama_cpp.llama_state_seq_get_data(decoder.pointer, buffer, size, 0)
        memory = llama_cpp.llama_get_memory(decoder.pointer)
        for sequence in range(1, copies + 1):
            if llama_cpp.llama_state_seq_set_data(decoder.pointer, buffer, size, sequence) == 0:
                return
            llama_cpp.llama_memory_seq_cp(memory, sequence, 0, -1, -1)

    def _text(self, count: int) -> list[int]:
        """Tokens from all over the vocabulary: the worst case for caches, and never the end of anything."""
        return [(index * 7919 + 101) % self._model.vocabulary.size for index in range(count)]

    @contextmanager
    def _context(self, runtime: Runtime) -> Iterator[Decoder]:
        decoder = Decoder(self._model, self._load, runtime, sequences=self._copies + 1)
        try:
            decoder.decode(self._text(2))  # buffers are allocated by the first decode
            decoder.clear()
            yield decoder
        finally:
            decoder.close()


def thread_counts(physical: int, logical: int) -> list[int]:
    """Counts to try: one for each core, one for each of its threads, and one core fewer for all the rest to run on."""
    return sorted({max(1, physical - 1), physical, logical})


def _remembers_otherwise(model: Model) -> bool:
    """Recurrent models keep one state however long the text is: depth costs nothing, and copies mean nothing."""
    return bool(llama_cpp.llama_model_is_recurrent(model.pointer) or llama_cpp.llama_model_is_hybrid(model.pointer))


def _row(question: Question, runtime: Runtime, prompt: float, generate: float) -> Row:
    return Row(
        question=question,
        runtime=runtime,
        prompt_empty=prompt,
        prompt_filled=prompt,
        generate_empty=generate,
        generate_filled=generate,
    )


def _timed(decode: Callable[..., None], tokens: Sequence[int], *, all_logits: bool = False) -> float:
    started = time.perf_counter()
    decode(tokens, all_logits=all_logits)
    return time.perf_counter() - started


def _typical(times: Sequence[float]) -> float:
    """The lower quartile: what else runs on the machine makes single tokens slower, never faster."""
    return sorted(times)[len(times) // 4]


class OtherPrograms:
    """How much of the machine other programs use from now on."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._started = time.perf_counter()
        self._before = self._seconds()

    def share(self) -> float:
        """From 0 to 1; 1 is every core."""
        elapsed = (time.perf_counter() - self._started) * (psutil.cpu_count() or 1)
        return min(1.0, max(0.0, (self._seconds() - self._before) / elapsed))

    def _seconds(self) -> float:
        every, own = psutil.cpu_times(), self._process.cpu_times()
        return float(every.user + every.system + getattr(every, "nice", 0.0) - own.user - own.system)
