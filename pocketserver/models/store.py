"""Installed models: our own folder, further folders, and Ollama's, as one list of names.

A name from outside is only ever compared with the names that a scan found; a path is made from it only after the
grammar of names.py has passed it. Everything here blocks on the file system for milliseconds: call it in a thread.
"""

import os
import threading
from collections.abc import Sequence
from pathlib import Path

from pocketserver.errors import StartupError
from pocketserver.models.catalog import Catalog, CatalogEntry
from pocketserver.models.digests import DigestCache
from pocketserver.models.gguf import split_name
from pocketserver.models.gguf_folder import GgufFolder, belongs_to
from pocketserver.models.installed import InstalledModel, Origin, model_at
from pocketserver.models.journal import changing
from pocketserver.models.names import id_of_stem, key_of, stem_for
from pocketserver.models.ollama_folder import OllamaFolder

__all__ = ["InstalledModel", "ModelStore", "model_at", "resolve_model_argument"]


class ModelStore:
    """The models of one folder, which may be changed, and of others, which are only read.

    `also` may name the model that is served: it belongs to the store when it was given by the path of its file.
    """

    def __init__(
        self,
        folder: Path,
        *,
        others: Sequence[Path] = (),
        ollama: Path | None = None,
        also: Sequence[InstalledModel] = (),
    ) -> None:
        self.folder = folder
        self._files = {model.key: model for model in also if model.origin is Origin.FILE}
        self._own = GgufFolder(folder, origin=Origin.OWN)
        self._sources: tuple[GgufFolder | OllamaFolder, ...] = (
            self._own,
            *(GgufFolder(other, origin=Origin.FOLDER) for other in others),
            *(() if ollama is None else (OllamaFolder(ollama),)),
        )
        self._scanning = threading.Lock()
        self.digests = DigestCache(folder)

    def list(self) -> list[InstalledModel]:
        """All models by name, broken ones too.

        Of two with one name the one whose file was given counts, else that of the earlier folder.
        """
        models = dict(self._files)
        with self._scanning:  # the caches of what was read are not made for two threads
            for source in self._sources:
                for model in source.scan():
                    models.setdefault(model.key, model)
        return sorted(models.values(), key=lambda model: model.id)

    def skipped(self) -> Sequence[str]:
        """A sentence for everything that the last listing could not take."""
        return [
            f"The model {name!a} in {source.folder} {reason}."
            for source in self._sources
            for name, reason in source.skipped.items()
        ]

    def find(self, name: str) -> InstalledModel | None:
        """The model of this name, compared without case; None for every other word, whatever it contains."""
        key = key_of(name)
        return next((model for model in self.list() if model.key == key), None)

    def stem_of(self, name: str) -> str:
        """The file name, without its ending, under which a model of this name lies or will lie in our own folder.

        Raises StartupError for words that cannot be a model's name.
        """
        found = next((model for model in self._own_models() if model.key == key_of(name)), None)
        stem = stem_for(name) if found is None else _stem(found)
        if stem is None:
            raise StartupError(
                f"{name[:80]!a} cannot be a model's name. Use letters, digits, dots, dashes and underscores, "
                "and `:tag` at its end."
            )
        return stem

    def file_for(self, name: str) -> Path:
        """Where a single-file model of this name lies or will lie. Raises StartupError for other words."""
        return self.folder / f"{self.stem_of(name)}.gguf"

    def remove(self, name: str) -> InstalledModel:
        """Delete a model's files and the settings beside it. Raises StartupError when there is none of this name."""
        model = self.find(name)
        if model is None:
            raise StartupError(self._unknown(name))
        if model.origin is not Origin.OWN:
            raise StartupError(read_only(model))
        with changing(self.folder) as change:
            change.clear(belongs_to(_stem(model)))
            change.commit()
        return model

    def _own_models(self) -> Sequence[InstalledModel]:
        with self._scanning:
            return self._own.scan()

    def _unknown(self, name: str) -> str:
        installed = ", ".join(model.id for model in self.list()) or "none"
        return f"There is no model {name[:80]!a} in {self.folder}. Installed: {installed}."


def open_store(
    home: Path,
    *,
    model_folders: Sequence[str] = (),
    ollama: Path | None = None,
    also: Sequence[InstalledModel] = (),
) -> ModelStore:
    """The store of a home folder, with the further folders that are read beside it."""
    others = [Path(folder).expanduser() for folder in model_folders]
    return ModelStore(home / "models", others=others, ollama=ollama, also=also)


def read_only(model: InstalledModel) -> str:
    """Why a model cannot be removed, as a sentence."""
    if model.origin is Origin.FILE:
        return f"{model.id} was given by the path of its file, which stays where it is. Remove the file itself."
    if model.origin is Origin.OLLAMA:
        return f"{model.id} lies in an Ollama models folder, which is only read. Remove it with `ollama rm {model.id}`."
    return f"{model.id} lies in a folder of model_folders, which is only read. Remove its file there."


def resolve_model_argument(value: str | None, store: ModelStore, catalog: Catalog) -> InstalledModel | CatalogEntry:
    """What `--model` means: a path, an installed model, or an entry to be fetched first; None is the default model.

    Blocks. Raises StartupError (`BadModelFile` for a file that cannot be served).
    """
    if value is not None and _is_path(value):
        return model_at(Path(value).expanduser())
    name = catalog.default.name if value is None else value
    installed = store.find(name)
    if installed is not None:
        installed.checked()
        return installed
    entry = catalog.find(name)
    if entry is not None:
        return entry
    if os.sep in name or "/" in name:
        return model_at(Path(name))
    names = sorted({*(model.id for model in store.list()), *catalog.entries})
    raise StartupError(f"There is no model {name!a}. Use one of {', '.join(names)}, or the path of a GGUF file.")


def _stem(model: InstalledModel) -> str:
    """The stem that this model's files have, whatever its capitals."""
    split = split_name(model.path.name)
    stem = split[0] if split else model.path.name.removesuffix(".gguf")
    assert id_of_stem(stem) == model.id
    return stem


def _is_path(value: str) -> bool:
    """Whether a word can only be a path; one with slashes alone may also be a name with its namespace."""
    return value.endswith(".gguf") or value.startswith(("~", ".", "/")) or Path(value).is_absolute()
