"""A folder of GGUF files: each a model under its file name, with its settings beside it."""

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from pocketserver.errors import StartupError
from pocketserver.models.gguf import BadModelFile, GgufMetadata, read_metadata, split_name
from pocketserver.models.installed import InstalledModel, Origin
from pocketserver.models.journal import has_decided_change, recover, settled
from pocketserver.models.names import id_of_stem, is_model_name, key_of
from pocketserver.models.settings_file import read_settings
from pocketserver.models.stored import ModelSettings

MAX_FILES = 10_000
_ENDING = ".gguf"
_LOOKS = 3

_Signature: TypeAlias = tuple[tuple[str, int, int, int], ...]
"""Name, inode, size and time of change of a model's files: while they stay, so does what was read of them."""


class GgufFolder:
    """The models of one folder; a folder that does not exist yet holds none. In our own, changes are made whole."""

    def __init__(self, folder: Path, *, origin: Origin) -> None:
        self.folder = folder
        self._origin = origin
        self._known: dict[str, tuple[_Signature, InstalledModel]] = {}
        self.skipped: dict[str, str] = {}
        """Files that cannot be served under their name, with the reason."""

    def scan(self) -> list[InstalledModel]:
        """All models by file name, broken ones too. Files that have not changed are not read again."""
        if self._origin is not Origin.OWN:
            return self._look()[0]
        for _ in range(_LOOKS):
            models, quiet = self._look()
            if quiet:
                return models
            with contextlib.suppress(OSError):  # a folder that we may only read: somebody else has to end it
                recover(self.folder)
        try:
            with settled(self.folder):
                return self._look()[0]
        except OSError:
            return self._look()[0]

    def _look(self) -> tuple[list[InstalledModel], bool]:
        """The models, and whether no change took effect while they were read."""
        names = self._names()
        found = self._grouped(names)
        before = {stem: self._signature(files) for stem, files in found.items()}
        models = [self._model(stem, found[stem], before[stem]) for stem in found if before[stem]]
        self._known = {stem: known for stem, known in self._known.items() if stem in found}
        after = self._names()
        quiet = not has_decided_change(iter([*names, *after])) and before == {
            stem: self._signature(files) for stem, files in self._grouped(after).items()
        }
        return models, quiet

    def _names(self) -> list[str]:
        try:
            return sorted(entry.name for entry in os.scandir(self.folder) if _is_file(entry) or entry.name[0] == ".")
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise StartupError(f"The models in {self.folder} cannot be listed: {error.strerror}.") from error

    def _grouped(self, names: Sequence[str]) -> Mapping[str, list[str]]:
        """File names by model; hidden ones are unfinished work. Of two that differ in case only the first counts."""
        found: dict[str, list[str]] = {}
        for name in names:
            if name.endswith(_ENDING) and not name.startswith(".") and len(found) < MAX_FILES:
                split = split_name(name)
                found.setdefault(split[0] if split else name[: -len(_ENDING)], []).append(name)
        keys: dict[str, str] = {}
        for stem in found:
            if is_model_name(stem):
                keys.setdefault(key_of(id_of_stem(stem)), stem)
        served = set(keys.values())
        self.skipped = {
            stem: "is the name of another model in other capitals"
            if is_model_name(stem)
            else "cannot be a model's name"
            for stem in found
            if stem not in served
        }
        toml = {name for name in names if name.endswith(".toml")}
        return {
            stem: files + ([f"{stem}.toml"] if f"{stem}.toml" in toml else [])
            for stem, files in found.items()
            if stem in served
        }

    def _signature(self, files: Sequence[str]) -> _Signature:
        """Empty when one of the files vanished meanwhile."""
        try:
            stats = [(self.folder / name).stat() for name in files]
        except FileNotFoundError:
            return ()
        return tuple(
            (name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in zip(files, stats, strict=True)
        )

    def _model(self, stem: str, files: Sequence[str], signature: _Signature) -> InstalledModel:
        known = self._known.get(stem)
        if known is None or known[0] != signature:
            known = self._known[stem] = (signature, self._read(stem, files, signature))
        return known[1]

    def _read(self, stem: str, files: Sequence[str], signature: _Signature) -> InstalledModel:
        paths = tuple(self.folder / name for name in files)
        metadata: GgufMetadata | None = None
        settings, fault = ModelSettings(), None
        try:
            metadata = read_metadata(paths[0])
            settings = read_settings(self.folder / f"{stem}.toml")
        except BadModelFile as error:
            metadata, fault = None, error.with_traceback(None)  # kept for long: it must not keep the frames
        return InstalledModel(
            id=id_of_stem(stem),
            path=paths[0],
            size_bytes=sum(size for name, _, size, _ in signature if name.endswith(_ENDING)),
            created=int(settings.modified) or signature[0][3] // 1_000_000_000,
            metadata=metadata,
            fault=fault,
            settings=settings,
            files=paths,
            origin=self._origin,
        )


def belongs_to(stem: str) -> Callable[[str], bool]:
    """Whether a file name is one of those that make up a model: weights, parts of them, or settings."""
    wanted = stem.casefold()

    def belongs(file_name: str) -> bool:
        split = split_name(file_name)
        own = split[0] if split else Path(file_name).stem
        return own.casefold() == wanted and file_name.endswith((_ENDING, ".toml"))

    return belongs


def _is_file(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link that leads in circles
        return False
