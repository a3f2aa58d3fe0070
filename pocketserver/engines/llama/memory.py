"""Whether a model and its context fit into memory, decided before anything is loaded."""

from dataclasses import dataclass

from pocketserver.engines.llama.runtime import BYTES_PER_ELEMENT, KvType
from pocketserver.errors import Code, Refusal
from pocketserver.models.gguf import GgufMetadata

DEFAULT_CONTEXT = 8192
SMALLEST_CONTEXT = 512
"""Less than this holds no conversation; a default goes no lower."""

_PROCESS_BYTES = 96 * 1024 * 1024  # interpreter, libraries and the vocabulary, as measured with the default model
_STEP = 256
_WIDEST_LAYER = 4  # rows of a feed-forward matrix, as a multiple of its columns
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes that a model takes with a context. Weights are mapped, but each token reads all of them."""

    weights_bytes: int
    cache_bytes: int
    compute_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.cache_bytes + self.compute_bytes + _PROCESS_BYTES


def memory_need(
    metadata: GgufMetadata, context: int, micro_batch: int, kv_type: KvType = KvType.F16, *, blas: bool = False
) -> MemoryNeed:
    """An estimate on the safe side; computing buffers hold logits and some rows of activations for a micro-batch.

    With `blas`, the largest matrix of a layer is there once more in float32.
    """
    row = metadata.vocabulary_size * 4 + metadata.embedding_length * 4 * 24
    matrix = metadata.embedding_length**2 * _WIDEST_LAYER * 4 if blas else 0
    return MemoryNeed(
        weights_bytes=metadata.tensor_bytes,
        cache_bytes=metadata.kv_cache_bytes(context, BYTES_PER_ELEMENT[kv_type]),
        compute_bytes=row * micro_batch + matrix,
    )


def choose_context(
    metadata: GgufMetadata,
    wanted: int | None,
    available_bytes: int,
    micro_batch: int,
    kv_type: KvType = KvType.F16,
    *,
    blas: bool = False,
) -> int:
    """The context to load with, in tokens: the wanted one, or the smallest of trained length, 8,192 and what fits.

    Raises Refusal(INSUFFICIENT_MEMORY) with both numbers when it does not fit.
    """
    context = wanted or min(metadata.context_length or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
    lowest = context if wanted else min(context, SMALLEST_CONTEXT)

    def needs(size: int) -> int:
        return memory_need(metadata, size, micro_batch, kv_type, blas=blas).total_bytes

    while context > lowest and needs(context) > available_bytes:
        context = max(lowest, context - _STEP)
    needed = needs(context)
    if needed > available_bytes:
        raise _insufficient(needed, available_bytes, context)
    return context


def _insufficient(needed: int, available: int, context: int) -> Refusal:
    needed_mib, available_mib = -(-needed // _MIB), available // _MIB
    return Refusal(
        Code.INSUFFICIENT_MEMORY,
        f"The model with a context of {context} tokens needs about {needed_mib:,} MiB of memory, and"
        f" {available_mib:,} MiB are available. Start the server with a smaller --context, choose a smaller model, or"
        " close other programs.",
        details={"needed_mib": needed_mib, "available_mib": available_mib},
    )
