"""The library with llama.cpp's BLAS backend: where it lies, and how it is built. Standard library alone.

    python -m pocketserver.engines.llama.blas_library

llama.cpp is built without it, because a build that needs OpenBLAS cannot be shared with other programs. It is one
source file of llama-cpp-python's own source archive, compiled here against exactly the installed version, and used with
the OpenBLAS of the package scipy-openblas32.
"""

import importlib.metadata
import importlib.util
import os
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PACKAGE = "llama-cpp-python"
_FOLDER = Path(sys.prefix) / "share" / "pocketserver"
_WANTED = ("ggml/include/", "ggml/src/ggml-impl.h", "ggml/src/ggml-backend-impl.h", "ggml/src/ggml-blas/")
_PREFIXED = ("cblas_sgemm", "openblas_set_num_threads", "openblas_get_parallel")
"""What the backend calls; scipy-openblas32 has these names with `scipy_` before them, to stand beside other builds."""
_OPTIONS = ("-O2", "-std=c++17", "-fopenmp", "-shared", "-fPIC", "-DGGML_USE_OPENMP", "-DGGML_BLAS_USE_OPENBLAS")
_BUILD_SECONDS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Libraries:
    """Files of one build."""

    backend: Path
    openblas: Path


class BuildFailedError(Exception):
    """The backend cannot be built here; the text says why."""


def installed() -> Libraries | None:
    """The libraries for the installed version of llama.cpp, if both are there."""
    version, openblas = _llama_version(), _openblas()
    if version is None or openblas is None or not is_whole(_backend(version)):
        return None
    return Libraries(backend=_backend(version), openblas=openblas)


def is_possible() -> bool:
    """Whether a build could be tried: on Linux, with OpenBLAS and a compiler at hand."""
    return sys.platform == "linux" and None not in (_llama_version(), _openblas(), _compiler())


def is_whole(library: Path) -> bool:
    """Whether an ELF file reaches as far as its header says: loading one that was cut short ends the process.

    The table of sections stands last; where, how large and how many they are is told by the 64-bit header (elf(5)).
    """
    try:
        with library.open("rb") as file:
            head, size = file.read(64), os.fstat(file.fileno()).st_size
    except OSError:
        return False
    if len(head) < 64 or head[:4] != b"\x7fELF":
        return False
    (place,), (entry_bytes, entries) = struct.unpack_from("<Q", head, 40), struct.unpack_from("<HH", head, 58)
    return bool(size >= place + entry_bytes * entries)


def build() -> Path:
    """Build the backend if it is not there; its path. Blocks for some seconds. Raises BuildFailedError."""
    version, openblas, compiler = _llama_version(), _openblas(), _compiler()
    if sys.platform != "linux" or version is None or openblas is None or compiler is None:
        raise BuildFailedError("it needs Linux, a C++ compiler and the packages llama-cpp-python and scipy-openblas32")
    backend = _backend(version)
    if is_whole(backend):
        return backend
    try:
        with tempfile.TemporaryDirectory(prefix="ggml-blas-") as folder:
            source = _unpacked(_downloaded(version, Path(folder)), Path(folder))
            backend.parent.mkdir(parents=True, exist_ok=True)
            unfinished = backend.with_suffix(f".{os.getpid()}")
            try:
                _run([compiler, *_arguments(source, openblas), "-o", str(unfinished)])
                unfinished.replace(backend)
            finally:
                unfinished.unlink(missing_ok=True)
    except (OSError, tarfile.TarError, subprocess.TimeoutExpired) as error:
        raise BuildFailedError(str(error)) from error
    return backend


def _backend(version: str) -> Path:
    return _FOLDER / f"libggml-blas-{version}.so"


def _llama_version() -> str | None:
    try:
        return importlib.metadata.version(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None


def _openblas() -> Path | None:
    found = importlib.util.find_spec("scipy_openblas32")
    if found is None or found.origin is None:
        return None
    library = Path(found.origin).parent / "lib" / "libscipy_openblas.so"
    return library if library.exists() else None


def _compiler() -> str | None:
    names = (os.environ.get("CXX"), "c++", "g++", "clang++")
    return next((path for name in names if name and (path := shutil.which(name))), None)


def _downloaded(version: str, folder: Path) -> Path:
    """The source archive of this version, as pip finds it with the user's own settings."""
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-binary", _PACKAGE, "--dest", str(folder)]
    _run([sys.executable, "-m", "pip", "download", *options, f"{_PACKAGE}=={version}"])
    found = next(folder.glob("*.tar.gz"), None)
    if found is None:
        raise BuildFailedError("pip has no source archive of llama-cpp-python")
    return found


def _unpacked(archive: Path, folder: Path) -> Path:
    """The folder of ggml with the few files that are needed."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder, members=_needed(tar), filter="data")
    found = next(folder.glob("*/vendor/llama.cpp/ggml"), None)
    if found is None:
        raise BuildFailedError("the source archive has no ggml")
    return found


def _needed(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    for member in tar:
        _, _, path = member.name.partition("/vendor/llama.cpp/")
        if path.startswith(_WANTED):
            yield member


def _arguments(source: Path, openblas: Path) -> list[str]:
    llama = importlib.util.find_spec("llama_cpp")
    assert llama is not None
    assert llama.origin is not None
    includes = [source / "include", source / "src", openblas.parent.parent / "include"]
    names = [f"-D{name}=scipy_{name}" for name in _PREFIXED]
    base = Path(llama.origin).parent / "lib"
    libraries = [f"-L{base}", "-l:libggml-base.so.0", str(openblas)]
    return [
        *_OPTIONS,
        *names,
        *(f"-I{path}" for path in includes),
        str(source / "src/ggml-blas/ggml-blas.cpp"),
        *libraries,
    ]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_BUILD_SECONDS)
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise BuildFailedError(lines[-1] if lines else f"{command[0]} ended with {done.returncode}")


def main() -> None:
    """Build, and say in one line what is missing without it: prompts are read all the same."""
    try:
        build()
    except BuildFailedError as failure:
        print(f"Prompts will be read without BLAS, which is slower: {failure}.")


if __name__ == "__main__":
    main()
