"""Opens a session's prefix cache: what its states depend on, and the disk as soon as the model's hash is known."""

import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from pocketserver.engines.llama import native
from pocketserver.engines.llama.cache_disk import DiskCache
from pocketserver.engines.llama.cache_files import FOLDER
from pocketserver.engines.llama.decoder import Decoder
from pocketserver.engines.llama.frames import Load
from pocketserver.engines.llama.model_hash import HashMemory
from pocketserver.engines.llama.prefix_cache import PrefixCache

_FORMAT = 1


def open_cache(load: Load, decoder: Decoder) -> PrefixCache:
    """The cache as `load` wants it.

    A model seen for the first time is hashed on a thread, which takes seconds for a large one; until then nothing is
    read from the disk.
    """
    cache = PrefixCache(decoder, load.cache.memory_bytes)
    if load.cache.disk_bytes <= 0 or load.state_folder is None:
        return cache
    hashes, parts = HashMemory(Path(load.state_folder)), [Path(part) for part in load.cache.model_parts]
    try:
        known = hashes.known(parts)
        if known is not None:
            cache.disk = _disk(load, decoder, known)
        else:
            threading.Thread(target=_hash, args=(hashes, parts, load, decoder, cache), daemon=True).start()
    except OSError as error:
        _complain(error)
    return cache


def _hash(hashes: HashMemory, parts: list[Path], load: Load, decoder: Decoder, cache: PrefixCache) -> None:
    try:
        cache.disk = _disk(load, decoder, hashes.compute(parts))
    except OSError as error:
        _complain(error)


def _disk(load: Load, decoder: Decoder, model_hash: str) -> DiskCache:
    assert load.state_folder is not None
    return DiskCache(
        Path(load.state_folder) / FOLDER, _version(load, decoder, model_hash), load.cache.model, load.cache.disk_bytes
    )


def _version(load: Load, decoder: Decoder, model_hash: str) -> Mapping[str, object]:
    """Everything that changes a state. The context's size chooses between rope factors in some models."""
    return {
        "format": _FORMAT,
        "model": model_hash,
        "kv_type": load.kv_type,
        "flash_attention": load.flash_attention,
        "context_size": decoder.context_size,
        "extra_buffers": load.extra_buffers,
        "gpu_layers": load.gpu_layers if native.supports_gpu() else 0,
        "llama_cpp": native.version(),
        "build": native.build(),
        "blas": decoder.blas,
    }


def _complain(error: OSError) -> None:
    print(f"Conversations are not kept on disk: {error}", file=sys.stderr, flush=True)
