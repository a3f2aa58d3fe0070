"""Gives memory back that llama.cpp has filled with zeros: a context then takes what its tokens need, not its full size.

Linux hands out zeros again when such a page is next looked at, so nothing changes but what is resident. Elsewhere
nothing is done.
"""

import ctypes
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

Range = tuple[int, int]
"""Addresses from the first up to the last, which is not part of it."""

_PIECE_BYTES = 1024 * 1024
_LEAST_BYTES = 8 * 1024 * 1024
"""Smaller allocations may share a mapping with what another thread is writing."""
_DONT_NEED = 4  # MADV_DONTNEED of mman.h
_MAPS = Path("/proc/self/maps")


@contextmanager
def zeros_given_back() -> Iterator[None]:
    """Large allocations made meanwhile lose their pages that hold only zeros. Other threads must not make such ones."""
    before = _anonymous()
    yield
    for start, end in _added(before, _anonymous()):
        if end - start >= _LEAST_BYTES:
            _give_back(start, end)


def _anonymous() -> Sequence[Range]:
    """The process's own writable memory, in order; empty where the system does not tell."""
    if sys.platform != "linux":
        return ()
    try:
        lines = _MAPS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return ()
    found = []
    for line in lines:
        bounds, rights, _offset, _device, inode, *name = line.split(maxsplit=5)
        if rights == "rw-p" and inode == "0" and not name:
            start, _, end = bounds.partition("-")
            found.append((int(start, 16), int(end, 16)))
    return found


def _added(before: Sequence[Range], after: Sequence[Range]) -> Iterator[Range]:
    """What is new. Linux joins neighbours, so that a new allocation may be a part of a mapping."""
    for start, end in after:
        free = start
        for old_start, old_end in before:
            if old_end <= free or old_start >= end:
                continue
            if old_start > free:
                yield free, old_start
            free = max(free, old_end)
        if free < end:
            yield free, end


def _give_back(start: int, end: int) -> None:
    libc = ctypes.CDLL(None)
    for place in range(start, end, _PIECE_BYTES):
        size = min(_PIECE_BYTES, end - place)
        piece = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(place))
        if not piece.any():
            libc.madvise(ctypes.c_void_p(place), ctypes.c_size_t(size), _DONT_NEED)
