"""The llama.cpp library as this process needs it: quiet, abortable, and honest about what it was built with."""

import ctypes
import os
import sys
from collections.abc import Callable

import llama_cpp


def quiet() -> None:
    """Keep warnings and errors of the library, drop the rest; and start no debugger when it aborts."""
    os.putenv("GGML_NO_BACKTRACE", "1")  # ggml would run gdb over the dying process, which can take a minute
    llama_cpp.llama_log_set(_LOG, ctypes.c_void_p(0))


def version() -> str:
    return f"{llama_cpp.__version__} ({llama_cpp.llama_version().decode()})"


def build() -> str:
    """The processor features and backends that the library was compiled with."""
    return str(llama_cpp.llama_print_system_info().decode().strip())


def supports_gpu() -> bool:
    return bool(llama_cpp.llama_supports_gpu_offload())


def supports_metal() -> bool:
    return sys.platform == "darwin" and supports_gpu() and ("MTL" in build() or "Metal" in build())


class AbortFlag:
    """Stops a running decode from another thread, within milliseconds, without Python in the decode loop.

    llama.cpp asks its callback between graph nodes. `strlen` over a buffer of two bytes is such a callback: an empty
    string means go on, a string of one byte means stop.
    """

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(2)
        self._function = llama_cpp.ggml_abort_callback(_strlen_address())

    def attach(self, context: object) -> None:
        address = ctypes.addressof(self._buffer)
        llama_cpp.llama_set_abort_callback(context, self._function, ctypes.c_void_p(address))

    def set(self) -> None:
        self._buffer[0] = b"\x01"

    def clear(self) -> None:
        self._buffer[0] = b"\x00"

    @property
    def is_set(self) -> bool:
        return self._buffer[0] != b"\x00"


def progress_callback(report: Callable[[float], None]) -> object:
    """A load callback that reports each twentieth."""
    last = -1.0

    def step(fraction: float, _data: object) -> bool:
        nonlocal last
        if fraction - last >= 0.05 or fraction >= 1.0:
            last = fraction
            report(fraction)
        return True

    return llama_cpp.llama_progress_callback(step)


def _strlen_address() -> int:
    library = ctypes.cdll.msvcrt if sys.platform == "win32" else ctypes.CDLL(None)
    address = ctypes.cast(library.strlen, ctypes.c_void_p).value
    assert address is not None
    return address


def _log(level: int, text: bytes, _data: object) -> None:
    if level in (3, 4):  # GGML_LOG_LEVEL_WARN, GGML_LOG_LEVEL_ERROR
        os.write(2, text[:1000])


_LOG = llama_cpp.llama_log_callback(_log)
"""Kept for the life of the process: the library holds the bare pointer."""
