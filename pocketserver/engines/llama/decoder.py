"""The context of one conversation: tokens go in, logits come out, and what is in it is always known."""

import contextlib
import ctypes
import time
from collections.abc import Callable, Sequence

import llama_cpp
import numpy as np
import numpy.typing as npt

from pocketserver.engines.llama.borrowed_memory import borrowed
from pocketserver.engines.llama.frames import Load
from pocketserver.engines.llama.model import Model, common_prefix
from pocketserver.engines.llama.native import AbortFlag
from pocketserver.engines.llama.reading import LEAST_BATCH, batches, token_of, whole_batch
from pocketserver.engines.llama.runtime import FLASH_ATTENTION_TYPES, GGML_TYPES, Runtime
from pocketserver.engines.llama.untouched_memory import zeros_given_back
from pocketserver.errors import Code, Refusal

Logits = npt.NDArray[np.float32]
State = npt.NDArray[np.uint8]

_BYTES = ctypes.POINTER(ctypes.c_uint8)

_ABORTED = 2


class DecodeAbortedError(Exception):
    """The decode was stopped from outside; the context holds what it held before the stopped batch."""


class Decoder:
    """One llama.cpp context with one sequence. `tokens` is exactly what its memory holds, marked as it was read.

    Not for two threads at once, except for `abort`.
    """

    def __init__(self, model: Model, load: Load, runtime: Runtime, *, sequences: int = 1) -> None:
        """`sequences` above 1 leaves room for copies of a state in the one memory; `tokens` does not know of them."""
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = load.context_size
        params.n_batch = params.n_ubatch = runtime.micro_batch
        params.n_threads, params.n_threads_batch = runtime.threads, runtime.threads_batch
        params.type_k = params.type_v = GGML_TYPES[runtime.kv_type]
        params.flash_attn_type = FLASH_ATTENTION_TYPES[runtime.flash_attention]
        params.n_seq_max, params.kv_unified = sequences, sequences > 1
        params.no_perf = True
        self.blas = runtime.blas and model.blas is not None and runtime.micro_batch >= 2 * LEAST_BATCH
        offered = model.blas.offered() if model.blas is not None and self.blas else contextlib.nullcontext()
        with zeros_given_back(), offered:
            self.pointer = llama_cpp.llama_init_from_model(model.pointer, params)
        if not self.pointer:
            raise Refusal(
                Code.CONTEXT_ALLOCATION_FAILED,
                f"There is no memory for a context of {load.context_size} tokens."
                " Start the server with a smaller --context, or choose a smaller model.",
            )
        self.context_size = load.context_size
        self.micro_batch = runtime.micro_batch
        self.can_be_cut = model.can_be_cut and params.swa_full
        """Whether the memory can forget the tokens at its end: a recurrent state cannot, nor can a small window."""
        self.tokens: list[int] = []
        self.abort = AbortFlag()
        self.abort.attach(self.pointer)
        self._vocabulary_size = model.vocabulary.size
        self._memory = llama_cpp.llama_get_memory(self.pointer)
        self._batch = llama_cpp.llama_batch_init(runtime.micro_batch, 0, 1)

    def close(self) -> None:
        """Free the context's memory. Nothing else may be called after."""
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self.pointer)

    def reuse(self, prompt: Sequence[int]) -> int:
        """Keep what the context has in common with this prompt, forget the rest; how many tokens were kept.

        The last token of the prompt is always decoded again, for its logits. Models whose memory cannot be cut back
        (recurrent, hybrid) start anew.
        """
        kept = whole_batch(min(common_prefix(self.tokens, list(prompt)), len(prompt) - 1), prompt)
        return kept if self.truncate(kept) else 0

    def state_bytes(self) -> int:
        """How large the state of the present tokens is."""
        return int(llama_cpp.llama_state_seq_get_size(self.pointer, 0))

    def save(self) -> State | None:
        """A copy of what the memory holds for `tokens`; None when llama.cpp cannot give one."""
        try:
            state = borrowed(self.state_bytes())
        except OSError:
            return None
        size = llama_cpp.llama_state_seq_get_data(self.pointer, state.ctypes.data_as(_BYTES), len(state), 0)
        return state if size == len(state) else None

    def restore(self, tokens: Sequence[int], state: State) -> bool:
        """Hold `tokens` again, as when `state` was saved. False: the state was not taken, and the context is empty."""
        self.clear()
        fits = len(tokens) < self.context_size
        if fits and llama_cpp.llama_state_seq_set_data(self.pointer, state.ctypes.data_as(_BYTES), len(state), 0):
            self.tokens = list(tokens)
        if self._end() == len(self.tokens):
            return bool(self.tokens)
        self.clear()
        return False

    def truncate(self, length: int) -> bool:
        """Forget everything behind `length` tokens. False: it was not possible, and the context is empty now."""
        if length >= len(self.tokens):
            return True
        if llama_cpp.llama_memory_seq_rm(self._memory, 0, length, -1) and self._end() == length:
            del self.tokens[length:]
            return True
        self.clear()
        return False

    def _end(self) -> int:
        """The position behind the last token in the memory."""
        return int(llama_cpp.llama_memory_seq_pos_max(self._memory, 0)) + 1

    def clear(self) -> None:
        llama_cpp.llama_memory_clear(self._memory, False)  # zeros would make all of it resident
        self.tokens.clear()

    def prefill(self, tokens: Sequence[int], progress: Callable[[int], None]) -> None:
        """Decode a prompt's new tokens in micro-batches; logits are there for the last token."""
        for batch in batches(tokens, self.micro_batch, blas=self.blas):
            self.decode(batch)
            progress(len(self.tokens))

    @property
    def most_unmarked(self) -> int:
        """Tokens of the largest batch that is not read through BLAS."""
        return LEAST_BATCH - 1 if self.blas else self.micro_batch

    def decode(self, tokens: Sequence[int], *, all_logits: bool = False) -> None:
        """Append up to one micro-batch. Raises DecodeAbortedError, or Refusal when llama.cpp fails."""
        if self.abort.is_set:
            raise DecodeAbortedError
        self._fill(tokens, all_logits)
        result = llama_cpp.llama_decode(self.pointer, self._batch)
        if result == 0:
            self.tokens.extend(tokens)
            return
        self._forget_batch()
        if result == _ABORTED or self.abort.is_set:
            raise DecodeAbortedError
        raise Refusal(Code.GENERATION_FAILED, f"The model failed to decode (llama.cpp: {result}). Send it again.")

    def logits(self, row: int = -1) -> Logits:
        """The logits behind a token of the last batch (-1: its last), as a view that the next decode overwrites."""
        pointer = llama_cpp.llama_get_logits_ith(self.pointer, row)
        return np.ctypeslib.as_array(pointer, (self._vocabulary_size,))

    def _fill(self, tokens: Sequence[int], all_logits: bool) -> None:
        batch, start, count = self._batch, len(self.tokens), len(tokens)
        assert 0 < count <= self.micro_batch
        batch.n_tokens = count
        for index, token in enumerate(tokens):
            batch.token[index] = token_of(token)
            batch.pos[index] = start + index
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = 0
            batch.logits[index] = all_logits
        batch.logits[count - 1] = True

    def _forget_batch(self) -> None:
        """After a failure a part of the batch may be in the memory: cut it back to what `tokens` says."""
        if not llama_cpp.llama_memory_seq_rm(self._memory, 0, len(self.tokens), -1):
            self.clear()


def probe(decoder: Decoder, vocabulary_size: int) -> float:
    """Decode a batch and a single token, as a first request would; the seconds it took. The context is empty after.

    On some virtual machines this ends the process: the processor reports instructions that it does not have.
    """
    started = time.perf_counter()
    count = min(64, decoder.micro_batch, decoder.context_size - 2)
    decoder.decode([index % vocabulary_size for index in range(count)])
    decoder.decode([0])
    if not np.isfinite(decoder.logits()).all():
        raise Refusal(Code.INTERNAL_ERROR, "The model computes no finite numbers on this machine. Use another model.")
    decoder.clear()
    return time.perf_counter() - started


def crash() -> None:
    """End the process as a processor without the instructions that it reports does. For tests of safe mode."""
    ctypes.string_at(0)
