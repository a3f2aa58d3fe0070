"""Installed models: the GGUF files of one folder, known by their file names.

A name from outside is only ever compared with the names that a scan found; no path is made from it. Everything here
blocks on the file system for milliseconds: call it in a thread.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from pocketserver.chat import ModelInfo
from pocketserver.errors import StartupError
from pocketserver.models.catalog import Catalog, CatalogEntry
from pocketserver.models.gguf import BadModelFile, GgufMetadata, read_metadata, split_name
from pocketserver.models.names import is_model_name
from pocketserver.models.whole_file import put_in_place, sync_folder

MAX_FILES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledModel:
    """A model on disk. Exactly one of `metadata` and `fault` is there; a model with a fault is listed, never loaded.

    `path` is the first file of a split model, `size_bytes` the sum over all of them. `created` is in Unix seconds.
    """

    id: str
    path: Path
    size_bytes: int
    created: int
    metadata: GgufMetadata | None = None
    fault: BadModelFile | None = None

    @property
    def problem(self) -> str | None:
        """Why the file is broken, as a sentence without its folder; None when it is sound."""
        return None if self.fault is None else self.fault.without_folder()

    def checked(self) -> GgufMetadata:
        """What the file says of itself. Raises `BadModelFile` when it is broken."""
        if self.fault is not None:
            raise BadModelFile(self.fault.path, self.fault.reason, self.fault.remedy)  # one instance, one raising
        assert self.metadata is not None
        return self.metadata

    def info(self, *, loaded: bool = False, context_size: int | None = None) -> ModelInfo:
        """The model as lists show it. `context_size` is what it is served with, when it is loaded."""
        known = self.metadata
        return ModelInfo(
            id=self.id,
            loaded=loaded,
            created=self.created,
            size_bytes=self.size_bytes,
            quantization=known.quantization if known else None,
            architecture=known.architecture if known else None,
            parameters=known.parameter_count if known else None,
            context_size=context_size or (known.context_length if known else None),
        )


_Signature: TypeAlias = tuple[tuple[str, int, int], ...]
"""Name, size and time of change of a model's files: while they stay, so does what was read of them."""


class ModelStore:
    """The models of one folder; a folder that does not exist yet holds none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[str, tuple[_Signature, InstalledModel]] = {}

    def list(self) -> list[InstalledModel]:
        """All models by name, broken ones too. Files that have not changed are not read again."""
        found: dict[str, list[Path]] = {}
        for path in self._files():
            split = split_name(path.name)
            found.setdefault(split[0] if split else path.name[: -len(".gguf")], []).append(path)
        models = {name: self._model(name, files) for name, files in sorted(found.items()) if is_model_name(name)}
        self._known = {name: known for name, known in self._known.items() if name in models}
        return [model for model in models.values() if model is not None]

    def find(self, name: str) -> InstalledModel | None:
        """The model of exactly this name; None for every other word, whatever it contains."""
        return next((model for model in self.list() if model.id == name), None)

    def file_for(self, name: str) -> Path:
        """Where a single-file model of this name lies or will lie. Raises StartupError for other words."""
        if not is_model_name(name):
            raise StartupError(f"{name!a} cannot be a model's name. Use letters, digits, dots, dashes and underscores.")
        return self.folder / f"{name}.gguf"

    def add_file(self, source: Path, name: str) -> InstalledModel:
        """Install a copy of a single-file model, hard-linked where the file system can. Raises StartupError."""
        final = self.file_for(name)
        if len(read_metadata(source).parts) > 1:
            raise StartupError(f"{source} is split into several files. Put all of them into {self.folder} instead.")
        if self.find(name) is not None:
            raise StartupError(f"A model {name} is there already. Remove it with `pocketserver models rm {name}`.")
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.folder, prefix=".add-") as temporary:
            copy = Path(temporary) / "model"
            _link_or_copy(source, copy)
            put_in_place(copy, final)
        added = self.find(name)
        assert added is not None
        return added

    def remove(self, name: str) -> InstalledModel:
        """Delete a model's files and the settings beside it. Raises StartupError when there is none of this name."""
        model = self.find(name)
        if model is None:
            raise StartupError(self._unknown(name))
        for file in (*self._files_of(model), self.folder / f"{model.id}.toml"):
            file.unlink(missing_ok=True)  # the first part first: what is left of a split model cannot look whole
        sync_folder(self.folder)
        return model

    def _unknown(self, name: str) -> str:
        installed = ", ".join(model.id for model in self.list()) or "none"
        return f"There is no model {name!a} in {self.folder}. Installed: {installed}."

    def _files(self) -> Iterator[Path]:
        """The folder's GGUF files in order of their names; hidden ones are unfinished work."""
        try:
            names = sorted(entry.name for entry in os.scandir(self.folder) if entry.is_file())
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise StartupError(f"The models in {self.folder} cannot be listed: {error.strerror}.") from error
        for name in names[:MAX_FILES]:
            if name.endswith(".gguf") and not name.startswith("."):
                yield self.folder / name

    def _files_of(self, model: InstalledModel) -> Sequence[Path]:
        return [path for path in self._files() if _belongs(path, model.id)]

    def _model(self, name: str, files: Sequence[Path]) -> InstalledModel | None:
        """One model from its files; None when they vanished meanwhile."""
        try:
            stats = [path.stat() for path in files]
        except FileNotFoundError:
            return None
        signature = tuple((path.name, stat.st_size, stat.st_mtime_ns) for path, stat in zip(files, stats, strict=True))
        known = self._known.get(name)
        if known is None or known[0] != signature:
            known = (signature, _read(name, files[0], sum(stat.st_size for stat in stats), int(stats[0].st_mtime)))
            self._known[name] = known
        return known[1]


def resolve_model_argument(value: str | None, store: ModelStore, catalog: Catalog) -> InstalledModel | CatalogEntry:
    """What `--model` means: a path, an installed model, or an entry to be fetched first; None is the default model.

    Blocks. Raises StartupError (`BadModelFile` for a file that cannot be served).
    """
    if value is not None and _looks_like_path(value):
        return model_at(Path(value).expanduser())
    name = catalog.default.name if value is None else value
    installed = store.find(name)
    if installed is not None:
        installed.checked()
        return installed
    entry = catalog.find(name)
    if entry is not None:
        return entry
    names = sorted({*(model.id for model in store.list()), *catalog.entries})
    raise StartupError(f"There is no model {name!a}. Use one of {', '.join(names)}, or the path of a GGUF file.")


def model_at(path: Path) -> InstalledModel:
    """A model anywhere on disk, under the name of its file. Raises `BadModelFile`."""
    metadata = read_metadata(path)
    split = split_name(path.name)
    return InstalledModel(
        id=split[0] if split else path.stem or path.name,
        path=path,
        size_bytes=metadata.size_bytes,
        created=int(path.stat().st_mtime),
        metadata=metadata,
    )


def _read(name: str, first: Path, size_bytes: int, created: int) -> InstalledModel:
    metadata: GgufMetadata | None = None
    fault: BadModelFile | None = None
    try:
        metadata = read_metadata(first)
    except BadModelFile as error:
        fault = error.with_traceback(None)  # kept for long: it must not keep the frames it passed through
    return InstalledModel(id=name, path=first, size_bytes=size_bytes, created=created, metadata=metadata, fault=fault)


def _belongs(path: Path, name: str) -> bool:
    split = split_name(path.name)
    return split[0] == name if split else path.name == f"{name}.gguf"


def _looks_like_path(value: str) -> bool:
    return value.endswith(".gguf") or value.startswith("~") or "/" in value or os.sep in value


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source.resolve(), target)
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(source, target)
