"""How a model is run on a machine: the choices that change speed and memory, and what they mean to llama.cpp."""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from pocketserver.errors import Code, Refusal


class KvType(StrEnum):
    """The number format of the keys and values in a context. Formats under 8 bits cost quality and are not offered."""

    F16 = "f16"
    BF16 = "bf16"
    Q8_0 = "q8_0"


class FlashAttention(StrEnum):
    """`auto` leaves it to llama.cpp, which looks at what the backend can do."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


BYTES_PER_ELEMENT: Mapping[KvType, float] = {KvType.F16: 2.0, KvType.BF16: 2.0, KvType.Q8_0: 34 / 32}
"""q8_0 keeps 32 numbers and their scale in 34 bytes."""

GGML_TYPES: Mapping[KvType, int] = {KvType.F16: 1, KvType.Q8_0: 8, KvType.BF16: 30}
"""`enum ggml_type` of ggml.h; the bindings name only some of them."""

FLASH_ATTENTION_TYPES: Mapping[FlashAttention, int] = {
    FlashAttention.AUTO: -1,
    FlashAttention.OFF: 0,
    FlashAttention.ON: 1,
}
"""`enum llama_flash_attn_type` of llama.h."""


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    """One way to run a model. `threads_batch` computes prompts, `threads` single tokens.

    `micro_batch` is how many tokens are computed at once, and so the longest wait for a cancel without a CPU. With
    `blas`, the matrices of long stretches of a prompt are multiplied by llama.cpp's BLAS backend.
    """

    threads: int
    threads_batch: int
    kv_type: KvType = KvType.F16
    flash_attention: FlashAttention = FlashAttention.AUTO
    micro_batch: int = 256
    blas: bool = False

    def __str__(self) -> str:
        threads = str(self.threads) if self.threads == self.threads_batch else f"{self.threads}/{self.threads_batch}"
        return (
            f"{threads} threads, {self.kv_type} cache, flash attention {self.flash_attention},"
            f" micro-batch {self.micro_batch}{', prompts through BLAS' if self.blas else ''}"
        )


class Drafts(msgspec.Struct, frozen=True, kw_only=True):
    """Speculation: up to `tokens` in a draft, 0 is none. `break_even` is the share that must be right to gain time."""

    tokens: int = 0
    break_even: float = 0.5


NO_DRAFTS = Drafts()


def check(kv_type: KvType | None, flash_attention: FlashAttention) -> None:
    """Refuse what llama.cpp cannot do: it reads a quantised cache in its flash attention alone."""
    if kv_type is KvType.Q8_0 and flash_attention is FlashAttention.OFF:
        raise Refusal(
            Code.MODEL_NOT_LOADED,
            "A q8_0 cache needs flash attention. Start the server with --flash-attention auto, or --kv-type f16.",
        )
