"""What one engine is told of its model: where it lies, what was set by hand, and its limits."""

from dataclasses import dataclass
from pathlib import Path

from pocketserver.engines.llama.runtime import FlashAttention, KvType


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaOptions:
    """How to serve one model. What is None is chosen by itself; `gpu_layers` "auto" means all.

    `cache_memory_bytes` and `cache_disk_bytes` bound what is kept of other conversations, 0 keeps nothing there; after
    `cache_rest_seconds` without a request the running one goes to the disk.
    A model that has served and cannot be loaded again is tried anew every `retry_seconds`.
    `tuning` measures what was not set by hand, once for each machine; without it llama.cpp's own values hold, and no
    speculation is tried unless `draft_tokens` says so. `tune_again` measures although that was done before.
    `cancel_seconds` is how long a cancelled worker may take to come back before it is replaced. `prepare_seconds`
    bounds rendering, and compiling a constraint. `reasoning_budget` is the most tokens a model thinks where the request
    says nothing. `abort_in_probe_with_extra_buffers` is for tests of safe mode.
    """

    model_id: str
    path: Path
    state_folder: Path
    context: int | None = None
    threads: int | None = None
    threads_batch: int | None = None
    kv_type: KvType | None = None
    flash_attention: FlashAttention = FlashAttention.AUTO
    micro_batch: int | None = None
    blas: bool | None = None
    draft_tokens: int | None = None
    tuning: bool = False
    tune_again: bool = False
    tuning_seconds: float = 12.0
    gpu_layers: int | str = "auto"
    chat_template: Path | None = None
    reasoning_budget: int | None = None
    memory_limit_bytes: int | None = None
    cache_memory_bytes: int = 256 * 1024 * 1024
    cache_disk_bytes: int = 0
    cache_rest_seconds: float = 0.5
    cancel_seconds: float = 3.0
    retry_seconds: float = 30.0
    prepare_seconds: float = 10.0
    abort_in_probe_with_extra_buffers: bool = False
