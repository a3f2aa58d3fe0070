"""llama.cpp's BLAS backend in the model process: it multiplies the matrices of a long batch faster than llama.cpp does.

A context has the backend when it is registered while the context is made. So it is registered for that moment alone,
and only contexts that ask for it have it. Where it comes from: `blas_library`, or a build of llama.cpp with one inside
(Accelerate on macOS).
"""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import llama_cpp

from pocketserver.engines.llama import blas_library

LEAST_TOKENS = 32
"""Shorter batches are never given to BLAS: `ggml_backend_blas_device_supports_op` of ggml-blas.cpp."""

_NAME = b"BLAS"
_LIBRARIES = {"linux": "libllama.so", "darwin": "libllama.dylib"}


class Blas:
    """The backend of one process, once found."""

    def __init__(self, ggml: ctypes.CDLL, registration: int) -> None:
        self._ggml = ggml
        self._registration = ctypes.c_void_p(registration)

    @contextmanager
    def offered(self) -> Iterator[None]:
        """A context that is made meanwhile has the backend."""
        self._ggml.ggml_backend_register(self._registration)
        try:
            yield
        finally:
            self._ggml.ggml_backend_unload(self._registration)


def find() -> Blas | None:
    """The backend, withdrawn from contexts that do not ask for it; None where there is none. Call it once."""
    ggml = _ggml()
    if ggml is None:
        return None
    built_in = ggml.ggml_backend_reg_by_name(_NAME)
    if built_in:
        ggml.ggml_backend_unload(ctypes.c_void_p(built_in))
    registration = built_in or _from_library()
    return Blas(ggml, registration) if registration else None


def _ggml() -> ctypes.CDLL | None:
    """The functions of ggml as the loaded libllama sees them."""
    name = _LIBRARIES.get(sys.platform)
    if name is None:
        return None
    try:
        ggml = ctypes.CDLL(str(Path(llama_cpp.__file__).parent / "lib" / name))
        ggml.ggml_backend_reg_by_name.restype = ctypes.c_void_p
        ggml.ggml_backend_reg_by_name.argtypes = [ctypes.c_char_p]
        ggml.ggml_backend_register.restype = None
        ggml.ggml_backend_unload.restype = None
    except (OSError, AttributeError):
        return None
    return ggml


def _from_library() -> int | None:
    paths = blas_library.installed()
    if paths is None:
        return None
    try:
        ctypes.CDLL(str(paths.openblas), mode=ctypes.RTLD_GLOBAL)
        backend = ctypes.CDLL(str(paths.backend))
        backend.ggml_backend_blas_reg.restype = ctypes.c_void_p
        registration: int | None = backend.ggml_backend_blas_reg()
    except (OSError, AttributeError) as error:
        print(f"The BLAS backend cannot be used: {error}", file=sys.stderr, flush=True)
        return None
    return registration
