"""A backend that is damaged is not loaded but built again: loading a file that was cut short ends the process."""

import os
import sys
from pathlib import Path

import pytest

from pocketserver.engines.llama import blas_library


@pytest.fixture
def whole() -> bytes:
    found = blas_library.installed()
    if found is None:
        assert not os.environ.get("CI"), "make setup has built no BLAS backend"
        pytest.skip("there is no BLAS backend here; make setup builds it on Linux")
    return found.backend.read_bytes()


@pytest.mark.skipif(sys.platform != "linux", reason="the backend is built on Linux alone")
def test_only_a_whole_library_counts(whole: bytes, tmp_path: Path) -> None:
    library = tmp_path / "library.so"
    assert not blas_library.is_whole(library)
    for data, expected in (
        (whole, True),
        (whole[:-1], False),
        (whole[: len(whole) // 2], False),
        (whole[:40], False),
        (b"", False),
        (b"no library at all" * 99, False),
    ):
        library.write_bytes(data)
        assert blas_library.is_whole(library) is expected
