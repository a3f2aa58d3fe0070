"""Embeddings: texts as vectors of length 1, computed in a context of their own beside the conversation.

That context is made at the first use, as large as the longest input so far asks for. The hidden states of a text's
tokens are pooled here and not by llama.cpp, which pools within one micro-batch only.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import llama_cpp
import numpy as np
import numpy.typing as npt

from pocketserver.chat import EmbeddingInput
from pocketserver.engines.embeddings import cut_to, too_long, unknown_token
from pocketserver.engines.llama.decoder import DecodeAbortedError
from pocketserver.engines.llama.frames import Embed, Embedded, FromWorker, Load, PromptProgress
from pocketserver.engines.llama.free_memory import available_memory
from pocketserver.engines.llama.model import Model
from pocketserver.engines.llama.native import AbortFlag
from pocketserver.engines.llama.runtime import BYTES_PER_ELEMENT, FLASH_ATTENTION_TYPES, GGML_TYPES, Runtime
from pocketserver.errors import Code, Refusal

Vector = npt.NDArray[np.float32]

_SMALLEST_CONTEXT = 512
_SPARE_BYTES = 128 * 1024 * 1024
_MIB = 1024 * 1024
_CLS, _LAST = llama_cpp.LLAMA_POOLING_TYPE_CLS, llama_cpp.LLAMA_POOLING_TYPE_LAST
_MEAN = llama_cpp.LLAMA_POOLING_TYPE_MEAN
_ABORTED = 2


@dataclass(slots=True)
class Pool:
    """Gathers hidden states by the model's rule: the mean of all, the first, or the last."""

    rule: int
    vector: Vector | None = None
    count: int = 0

    def add(self, rows: Vector) -> None:
        self.count += len(rows)
        if self.rule == _MEAN:
            summed = rows.sum(axis=0, dtype=np.float32)
            self.vector = summed if self.vector is None else self.vector + summed
        elif self.rule == _LAST or self.vector is None:
            self.vector = rows[-1 if self.rule == _LAST else 0].copy()

    def unit_vector(self) -> Vector:
        """The pooled state with length 1; zeros stay zeros."""
        assert self.vector is not None
        length = float(np.linalg.norm(self.vector))
        return (self.vector / length if length > 0 else self.vector).astype(np.float32)


class _Context:
    """A llama.cpp context that gives hidden states in place of logits."""

    def __init__(self, model: Model, runtime: Runtime, size: int, abort: AbortFlag) -> None:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = size
        params.n_batch = params.n_ubatch = runtime.micro_batch
        params.n_threads = params.n_threads_batch = runtime.threads_batch
        params.type_k = params.type_v = GGML_TYPES[runtime.kv_type]
        params.flash_attn_type = FLASH_ATTENTION_TYPES[runtime.flash_attention]
        params.pooling_type = llama_cpp.LLAMA_POOLING_TYPE_NONE
        params.embeddings = True
        params.no_perf = True
        self.pointer = llama_cpp.llama_init_from_model(model.pointer, params)
        if not self.pointer:
            raise _no_room(size)
        self.size = size
        self._width = int(llama_cpp.llama_model_n_embd(model.pointer))
        self._batch = llama_cpp.llama_batch_init(runtime.micro_batch, 0, 1)
        abort.attach(self.pointer)

    def close(self) -> None:
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self.pointer)

    def clear(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.pointer), False)

    def states(self, tokens: Sequence[int], start: int) -> Vector:
        """The hidden states of one micro-batch that begins at position `start`."""
        batch = self._batch
        batch.n_tokens = len(tokens)
        for index, token in enumerate(tokens):
            batch.token[index] = token
            batch.pos[index] = start + index
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = 0
            batch.logits[index] = True
        result = llama_cpp.llama_decode(self.pointer, batch)
        if result == _ABORTED:
            raise DecodeAbortedError
        if result != 0:
            raise Refusal(Code.GENERATION_FAILED, f"The model failed to embed (llama.cpp: {result}). Send it again.")
        rows = [llama_cpp.llama_get_embeddings_ith(self.pointer, index) for index in range(len(tokens))]
        return np.stack([np.ctypeslib.as_array(row, (self._width,)) for row in rows])


class Embedder:
    """Belongs to the decoding thread."""

    def __init__(self, model: Model, load: Load, runtime: Runtime, send: Callable[[FromWorker], None]) -> None:
        self._model = model
        self._window = load.context_size
        self._runtime = runtime
        self._send = send
        self._rule = _pooling_rule(model)
        self._context: _Context | None = None
        self.abort = AbortFlag()

    def answer(self, request: Embed, cancelled: Callable[[], bool]) -> None:
        """Embed one input after another, each in a frame. Raises Refusal, and DecodeAbortedError once cancelled."""
        inputs = [self._readable(given, index, truncate=request.truncate) for index, given in enumerate(request.inputs)]
        whole = [self._tokens(given, index) for index, given in enumerate(inputs)]
        read = [self._cut(tokens, index, truncate=request.truncate) for index, tokens in enumerate(whole)]
        for index, tokens in enumerate(read):
            vector = self._embed(request.id, tokens, cancelled)
            self._send(
                Embedded(
                    id=request.id,
                    vector=vector.astype("<f4").tobytes(),
                    tokens=len(tokens),
                    truncated=len(whole[index]) > self._window,
                )
            )

    def _readable(self, given: EmbeddingInput, index: int, *, truncate: bool) -> EmbeddingInput:
        """Cut or refuse a text that no number of tokens could hold, unread: to split megabytes takes llama.cpp half a
        minute, in which nobody can stop it.
        """
        if len(given) <= self._window or not isinstance(given, str):
            return given
        data, longest = given.encode(errors="replace"), self._model.vocabulary.longest_token_bytes()
        fewest = -(-len(data) // longest)
        if fewest <= self._window:
            return given
        if not truncate:
            raise too_long(self._window, fewest, index, at_least=True)
        return data[: (self._window + 1) * longest].decode(errors="ignore")

    def _tokens(self, given: EmbeddingInput, index: int) -> list[int]:
        vocabulary = self._model.vocabulary
        if isinstance(given, str):
            begin = [vocabulary.bos] if vocabulary.adds_bos else []
            text = vocabulary.split(given, special=False)
            return [*begin, *text, *self._end()] if text else []
        for token in given:
            if not 0 <= token < vocabulary.size:
                raise unknown_token(index, token, vocabulary.size)
        return list(given)

    def _cut(self, tokens: list[int], index: int, *, truncate: bool) -> list[int]:
        """Cut to the window; the end token of models that are trained to look at it stays."""
        cut = cut_to(self._window, tokens, index, truncate=truncate)
        return cut if len(cut) == len(tokens) or not self._end() else [*cut[:-1], *self._end()]

    def _end(self) -> list[int]:
        vocabulary = self._model.vocabulary
        return [vocabulary.eos] if llama_cpp.llama_vocab_get_add_eos(vocabulary.pointer) else []

    def _embed(self, request_id: str, tokens: Sequence[int], cancelled: Callable[[], bool]) -> Vector:
        context, pool = self._room_for(len(tokens)), Pool(self._rule)
        context.clear()
        for start in range(0, len(tokens), self._runtime.micro_batch):
            if cancelled():
                raise DecodeAbortedError
            pool.add(context.states(tokens[start : start + self._runtime.micro_batch], start))
            self._send(PromptProgress(id=request_id, tokens=pool.count))
        return pool.unit_vector()

    def _room_for(self, count: int) -> _Context:
        """A context that holds so many tokens; a smaller one from before is given back first."""
        if self._context is not None and self._context.size >= count:
            return self._context
        if self._context is not None:
            self._context.close()
            self._context = None
        size = _SMALLEST_CONTEXT
        while size < count:
            size *= 2
        size = min(size, max(self._window, count))
        if self._needed_bytes(size) + _SPARE_BYTES > available_memory():
            raise _no_room(size)
        self._context = _Context(self._model, self._runtime, size, self.abort)
        return self._context

    def _needed_bytes(self, size: int) -> int:
        """The cache and the computing buffers, roughly and on the safe side."""
        model = self._model.pointer
        width, heads = llama_cpp.llama_model_n_embd(model), max(1, llama_cpp.llama_model_n_head(model))
        row = 2 * width * llama_cpp.llama_model_n_head_kv(model) // heads
        cache = self._model.layer_count * row * BYTES_PER_ELEMENT[self._runtime.kv_type] * size
        return int(cache + self._runtime.micro_batch * width * 4 * 24)


def _pooling_rule(model: Model) -> int:
    """What the file says (`ARCHITECTURE.pooling_type`); the mean for models that were not made to embed."""
    architecture = _metadata(model, "general.architecture")
    written = _metadata(model, f"{architecture}.pooling_type")
    rule = int(written) if written.isdigit() else _MEAN
    return rule if rule in (_CLS, _LAST) else _MEAN


def _metadata(model: Model, key: str) -> str:
    buffer = ctypes.create_string_buffer(128)
    length = llama_cpp.llama_model_meta_val_str(model.pointer, key.encode(), buffer, len(buffer))
    return buffer.value.decode("utf-8", errors="replace") if length > 0 else ""


def _no_room(size: int) -> Refusal:
    return Refusal(
        Code.INSUFFICIENT_MEMORY,
        f"There is no memory to embed {size} tokens beside the conversation. Send shorter inputs, or start the server"
        " with a smaller --context.",
    )
