"""Fetches one file over HTTP into a part file: resumed after a break, never longer than announced, never from anywhere.

What a server says of itself (length, range, validator, redirect) is checked; what the file is, its checksum tells in
the end. The part and a note of where it comes from stay when a download ends early, so that the next one goes on.
"""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from io import FileIO
from pathlib import Path

import aiohttp
import msgspec
from yarl import URL

from pocketserver.errors import Code
from pocketserver.models.guarded_resolver import GuardedResolver, check_literal
from pocketserver.models.pull_fault import PullFault

CHUNK_BYTES = 1 << 20
MAX_REDIRECTS = 5
MAX_WAIT_SECONDS = 60.0
MAX_CONNECTIONS = 1_000
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a silent server is waited for, and how often it is asked again when nothing came of it."""

    stall_seconds: float = 60.0
    attempts: int = 5
    backoff_seconds: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """A file elsewhere. `headers` go to the first host only, for they may hold a token. `label` names it in errors."""

    url: str
    label: str
    size_bytes: int
    sha256: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


class _Note(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a part: which file it is a part of. `validator` is an ETag or a date, empty without one."""

    url: str
    sha256: str
    validator: str = ""


class _Broken(Exception):  # noqa: N818 - it leads to another attempt
    """The connection ended, or the server asks for patience. `wait_seconds` is what it asked for."""

    def __init__(self, reason: str, wait_seconds: float = 0.0) -> None:
        super().__init__(reason)
        self.wait_seconds = wait_seconds


async def download(remote: Remote, part: Path, patience: Patience, report: Callable[[int], None]) -> None:
    """Make the part the whole file, in length; its content is for the caller to check. Raises PullFault.

    `report` is told the bytes that are there. A break is followed by another attempt that asks for the rest.
    """
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(resolver=GuardedResolver(frozenset({_host(remote)}))),
        timeout=aiohttp.ClientTimeout(total=None, connect=patience.stall_seconds, sock_read=patience.stall_seconds),
        auto_decompress=False,
        headers={"Accept-Encoding": "identity"},
    )
    async with session:
        await _Download(remote, part, patience, report, session).run()


def discard(part: Path) -> None:
    """Forget a part: the next download begins anew. Blocks."""
    part.unlink(missing_ok=True)
    _note_of(part).unlink(missing_ok=True)


@dataclass(slots=True)
class _Download:
    remote: Remote
    part: Path
    patience: Patience
    report: Callable[[int], None]
    session: aiohttp.ClientSession

    async def run(self) -> None:
        failures = 0
        for _ in range(MAX_CONNECTIONS):
            before = await asyncio.to_thread(self._resume_from)
            if before == self.remote.size_bytes:
                return
            try:
                await self._attempt(before)
            except _Broken as fault:
                progressed = await asyncio.to_thread(self._resume_from) > before
                failures = 1 if progressed else failures + 1
                if failures >= self.patience.attempts:
                    raise self._given_up(fault) from fault
                await asyncio.sleep(self._pause(failures, fault.wait_seconds))
        raise self._given_up(_Broken("it breaks off again and again"))

    def _pause(self, failures: int, asked_seconds: float) -> float:
        own = self.patience.backoff_seconds * float(2 ** (failures - 1))
        return min(max(own, asked_seconds), MAX_WAIT_SECONDS)

    async def _attempt(self, offset: int) -> None:
        try:
            response = await self._open(offset)
            async with contextlib.aclosing(_Closing(response)):
                await self._receive(response, offset)
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError) as error:
            raise _Broken(_reason(error)) from error
        except aiohttp.ClientError as error:
            raise self._fault(f"gave an answer that cannot be read ({_reason(error)})") from error

    async def _open(self, offset: int) -> aiohttp.ClientResponse:
        """Ask for the file from an offset, following redirects to places that we may be sent to."""
        url = URL(self.remote.url, encoded=True)
        first = url
        for _ in range(MAX_REDIRECTS + 1):
            check_literal(url, frozenset({_host(self.remote)}))
            own = dict(self.remote.headers) if url.origin() == first.origin() else {}
            response = await self.session.get(url, headers=own | self._range(offset), allow_redirects=False)
            if response.status not in _REDIRECTS:
                return response
            location = response.headers.get("Location", "")
            response.close()
            url = self._next(url, location)
        raise self._fault(f"redirects more than {MAX_REDIRECTS} times")

    def _next(self, url: URL, location: str) -> URL:
        try:
            target = url.join(URL(location, encoded=True))
        except ValueError as error:
            raise self._fault("redirects to no address") from error
        if not location or target.scheme not in {"http", "https"} or not target.host:
            raise self._fault("redirects to no web address")
        if url.scheme == "https" and target.scheme == "http":
            raise self._fault("redirects from https to http, which is not followed")
        return target

    def _range(self, offset: int) -> dict[str, str]:
        if offset == 0:
            return {}
        validator = _read_note(self.part).validator
        return {"Range": f"bytes={offset}-"} | ({"If-Range": validator} if validator else {})

    async def _receive(self, response: aiohttp.ClientResponse, offset: int) -> None:
        await self._check_status(response)
        start = self._start(response, offset)
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise self._fault("sends the file in an encoding that was not asked for")
        length = response.content_length
        if length is not None and start + length != self.remote.size_bytes:
            raise self._fault(
                f"announces {start + length:,} bytes, the catalogue {self.remote.size_bytes:,}; the file has changed, "
                "or the catalogue's entry is wrong"
            )
        note = _Note(url=self.remote.url, sha256=self.remote.sha256, validator=_validator(response))
        await asyncio.to_thread(_write_note, self.part, note)
        await self._store(response, start)

    async def _check_status(self, response: aiohttp.ClientResponse) -> None:
        status = response.status
        if status in {200, 206}:
            return
        if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            await asyncio.to_thread(discard, self.part)
            raise _Broken("it has not the rest of the file")
        if status in _LATER:
            raise _Broken(f"it answered {status}", _retry_after(response))
        if status in {401, 403}:
            raise self._fault(
                f"answered {status}: it wants a token, or its terms accepted. For a Hugging Face repository accept its "
                "terms there and log in with `hf auth login`"
            )
        raise self._fault(f"answered {status}. Check the catalogue's entry")

    def _start(self, response: aiohttp.ClientResponse, offset: int) -> int:
        """Where the body begins in the file: at the offset, or at 0 when the server begins anew."""
        if response.status == HTTPStatus.OK:
            return 0
        found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if found is None or int(found[1]) != offset:
            raise self._fault("sends another part of the file than it was asked for")
        if found[3] not in {"*", str(self.remote.size_bytes)}:
            raise self._fault(f"has a file of {int(found[3]):,} bytes, the catalogue says {self.remote.size_bytes:,}")
        return offset

    async def _store(self, response: aiohttp.ClientResponse, start: int) -> None:
        done = start
        file = await asyncio.to_thread(_open_at, self.part, start)
        try:
            async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                if done + len(chunk) > self.remote.size_bytes:
                    await asyncio.to_thread(discard, self.part)
                    raise self._fault(f"sends more than the {self.remote.size_bytes:,} bytes of the catalogue")
                await _whole(asyncio.to_thread(file.write, chunk))
                done += len(chunk)
                self.report(done)
        finally:
            file.close()  # unbuffered: nothing is left to be written
        if done < self.remote.size_bytes:
            raise _Broken(f"it ended after {done:,} of {self.remote.size_bytes:,} bytes")

    def _resume_from(self) -> int:
        """How many bytes of this very file are there; a part of another file is forgotten. Blocks."""
        note = _read_note(self.part)
        size = self.part.stat().st_size if self.part.is_file() else 0
        if (note.url, note.sha256) == (self.remote.url, self.remote.sha256) and size <= self.remote.size_bytes:
            return size
        discard(self.part)
        return 0

    def _fault(self, reason: str) -> PullFault:
        return PullFault(Code.UPSTREAM_FAILED, f"{self.remote.label}: the server {reason}.")

    def _given_up(self, fault: Exception) -> PullFault:
        return PullFault(
            Code.UPSTREAM_UNREACHABLE,
            f"{self.remote.label} could not be fetched: {fault}. Check the network and pull again; what came is kept.",
        )


@dataclass(slots=True)
class _Closing:
    """Closes a response at once: its rest is not wanted, and reading it to the end would take time."""

    response: aiohttp.ClientResponse

    async def aclose(self) -> None:
        self.response.close()


async def _whole(writing: Awaitable[object]) -> None:
    """Wait for a write even when we are cancelled, for the file is closed next."""
    task = asyncio.ensure_future(writing)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


def _open_at(part: Path, start: int) -> FileIO:
    file = FileIO(part, "r+" if part.exists() else "w+")
    file.truncate(start)
    file.seek(start)
    return file


def _validator(response: aiohttp.ClientResponse) -> str:
    """What If-Range can be asked with: a strong ETag, else the date of the last change (RFC 9110, 13.1.5)."""
    etag = response.headers.get("ETag", "")
    return etag if etag and not etag.startswith("W/") else response.headers.get("Last-Modified", "")


def _retry_after(response: aiohttp.ClientResponse) -> float:
    asked = response.headers.get("Retry-After", "")
    return min(float(asked), MAX_WAIT_SECONDS) if asked.isdecimal() and len(asked) < 9 else 0.0


def _reason(error: Exception) -> str:
    """A connection's fault in one line, without addresses that might hold a token."""
    if isinstance(error, TimeoutError):
        return "it fell silent"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"no connection ({error.os_error.strerror or type(error.os_error).__name__})"
    return "the connection broke" if isinstance(error, aiohttp.ClientConnectionError) else type(error).__name__


def _host(remote: Remote) -> str:
    return URL(remote.url, encoded=True).host or ""


def _note_of(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _read_note(part: Path) -> _Note:
    try:
        return msgspec.json.decode(_note_of(part).read_bytes(), type=_Note)
    except (OSError, msgspec.DecodeError):
        return _Note(url="", sha256="")


def _write_note(part: Path, note: _Note) -> None:
    """Written whole: a note that is cut in half is none, and the part begins anew."""
    temporary = _note_of(part).with_name(f"{part.name}.json.new")
    temporary.write_bytes(msgspec.json.encode(note))
    temporary.replace(_note_of(part))
