"""Changes to a folder that several files make up, taking effect as a whole or not at all, whoever is killed when.

A change is prepared in a hidden folder `.change-…` beside the files. Renaming that to `.commit-…` is the moment at
which it is decided; then its files are moved into place, and whoever finds a `.commit-…` later ends the work. Its
plan says which files come and which go, so that doing it twice does no harm. A `.change-…` whose owner died is
removed.
"""

import contextlib
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

from pocketserver.models.whole_file import held, sync_file, sync_folder, try_held

STORE_LOCK = ".store.lock"
_CHANGE = ".change-"
_COMMIT = ".commit-"
_PLAN = "plan.json"


class _Plan(msgspec.Struct, frozen=True):
    put: tuple[str, ...]
    remove: tuple[str, ...]


class Change:
    """A change in the making. Blocks on the file system."""

    def __init__(self, folder: Path, workshop: Path) -> None:
        self.folder = folder
        self._workshop = workshop
        self._put: list[str] = []
        self._clear: list[Callable[[str], bool]] = []

    def place(self, file_name: str) -> Path:
        """Where to write the file that is to have this name in the folder."""
        assert Path(file_name).name == file_name
        self._put.append(file_name)
        return self._workshop / file_name

    def clear(self, belongs: Callable[[str], bool]) -> None:
        """Let files go whose names are told so at the moment of the commit, unless this change puts others there."""
        self._clear.append(belongs)

    def commit(self) -> None:
        """Make it happen. Files that are there already are replaced."""
        for file in self._workshop.iterdir():
            sync_file(file)
        with held(self.folder / STORE_LOCK):
            self._write_plan()
            decided = self.folder / self._workshop.name.replace(_CHANGE, _COMMIT)
            self._workshop.rename(decided)
            sync_folder(self.folder)
            _apply(self.folder, decided)

    def _write_plan(self) -> None:
        names = (path.name for path in self.folder.iterdir() if not path.name.startswith("."))
        remove = [name for name in names if name not in self._put and any(belongs(name) for belongs in self._clear)]
        plan = self._workshop / _PLAN
        plan.write_bytes(msgspec.json.encode(_Plan(put=tuple(self._put), remove=tuple(remove))))
        sync_file(plan)
        sync_folder(self._workshop)


@contextmanager
def changing(folder: Path) -> Iterator[Change]:
    """A change to prepare inside the block; without `commit` nothing of it remains. Makes the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    workshop = folder / f"{_CHANGE}{secrets.token_hex(8)}"
    with contextlib.ExitStack() as stack:
        with held(folder / STORE_LOCK):
            _recover(folder)
            lock = stack.enter_context(_living(workshop))
            workshop.mkdir()
        try:
            yield Change(folder, workshop)
        finally:
            shutil.rmtree(workshop, ignore_errors=True)
            with held(folder / STORE_LOCK):
                lock.close()
                _lock_of(workshop).unlink(missing_ok=True)


def has_decided_change(names: Iterator[str]) -> bool:
    """Whether a listing of the folder shows a change that is decided and not yet done."""
    return any(name.startswith(_COMMIT) for name in names)


def recover(folder: Path) -> None:
    """End decided changes, and remove what dead owners left. Blocks."""
    with held(folder / STORE_LOCK):
        _recover(folder)


@contextmanager
def settled(folder: Path) -> Iterator[None]:
    """No change takes effect inside the block, and none is half done."""
    with held(folder / STORE_LOCK):
        _recover(folder)
        yield


def _recover(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        if path.name.startswith(_COMMIT):
            _apply(folder, path)
        elif path.name.startswith(_CHANGE) and path.suffix != ".lock":
            _remove_dead(path)
        elif path.name.startswith(_CHANGE) and not path.with_suffix("").exists():
            _remove_dead(path.with_suffix(""))


def _remove_dead(workshop: Path) -> None:
    with _lock_of(workshop).open("ab") as file:
        if try_held(file):
            shutil.rmtree(workshop, ignore_errors=True)
            alone = True
        else:
            alone = False
    if alone:
        _lock_of(workshop).unlink(missing_ok=True)


def _apply(folder: Path, decided: Path) -> None:
    try:
        plan = msgspec.json.decode((decided / _PLAN).read_bytes(), type=_Plan)
    except FileNotFoundError:  # done, and killed while it was cleared away
        plan = _Plan(put=(), remove=())
    for name in plan.remove:
        (folder / Path(name).name).unlink(missing_ok=True)
    for name in plan.put:
        with contextlib.suppress(FileNotFoundError):  # it has its place already
            (decided / name).replace(folder / Path(name).name)
    sync_folder(folder)
    shutil.rmtree(decided, ignore_errors=True)
    with contextlib.suppress(PermissionError):  # Windows, while its owner is at it, who removes it then
        _lock_of(decided.with_name(decided.name.replace(_COMMIT, _CHANGE))).unlink(missing_ok=True)


def _living(workshop: Path) -> "contextlib.closing[IO[bytes]]":
    """A lock that says the workshop's owner is alive; the system frees it when it dies."""
    file = _lock_of(workshop).open("ab")
    assert try_held(file), "its name is random"
    return contextlib.closing(file)


def _lock_of(workshop: Path) -> Path:
    return workshop.with_name(f"{workshop.name}.lock")
