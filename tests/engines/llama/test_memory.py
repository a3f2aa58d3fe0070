"""The check before loading: the default context shrinks to what fits, a wanted one is refused with both numbers."""

from pathlib import Path

import pytest

from pocketserver.engines.llama.free_memory import available_memory
from pocketserver.engines.llama.memory import choose_context, memory_need
from pocketserver.errors import Code, Refusal
from pocketserver.models.gguf import GgufMetadata, read_metadata

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def metadata(default_model_path: Path) -> GgufMetadata:
    return read_metadata(default_model_path)


def test_the_default_is_the_trained_length_up_to_8192(metadata: GgufMetadata) -> None:
    assert choose_context(metadata, None, 64 * 1024 * MIB, 256) == min(metadata.context_length, 8192)


def test_the_default_shrinks_to_what_memory_allows(metadata: GgufMetadata) -> None:
    limit = memory_need(metadata, 2048, 256).total_bytes
    context = choose_context(metadata, None, limit, 256)
    assert context == 2048
    assert memory_need(metadata, context, 256).total_bytes <= limit


def test_a_wanted_context_is_never_made_smaller(metadata: GgufMetadata) -> None:
    limit = memory_need(metadata, 2048, 256).total_bytes
    assert choose_context(metadata, 2048, limit, 256) == 2048
    with pytest.raises(Refusal) as caught:
        choose_context(metadata, 8192, limit, 256)
    assert caught.value.code is Code.INSUFFICIENT_MEMORY
    assert caught.value.details["needed_mib"] > caught.value.details["available_mib"]
    assert "--context" in caught.value.message


def test_a_limit_bounds_what_is_available() -> None:
    assert available_memory(5 * MIB) <= 5 * MIB
    assert available_memory() > 5 * MIB
