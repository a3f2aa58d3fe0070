"""Large pieces of memory that the system gets back as soon as they are dropped."""

import mmap

import numpy as np
import numpy.typing as npt


def borrowed(size_bytes: int) -> npt.NDArray[np.uint8]:
    """An array whose pages the system gets back at once when it is dropped, which an allocator may put off."""
    return np.frombuffer(mmap.mmap(-1, max(1, size_bytes)), np.uint8)[:size_bytes]
