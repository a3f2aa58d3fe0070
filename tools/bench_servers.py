"""The processes that `make bench` measures: our server, the peer, the bare decode loop. Each ends with its block."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import psutil

from pocketserver.errors import StartupError

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS = 180.0
END_SECONDS = 20.0
LINE_SECONDS = 120.0
LOAD_POLL_SECONDS = 0.2


@dataclass(slots=True, kw_only=True)
class Child:
    """A running child process and what its first line said. Its standard input is the rope it hangs on."""

    process: asyncio.subprocess.Process
    ready: Mapping[str, object]

    @property
    def base_url(self) -> str:
        return str(self.ready["base_url"])

    @property
    def key(self) -> str | None:
        key = self.ready.get("api_key")
        return key if isinstance(key, str) else None

    def tree(self) -> list[psutil.Process]:
        """The process and all below it that are still there."""
        try:
            process = psutil.Process(self.process.pid)
            return [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def resident_bytes(self) -> int:
        return sum(process.memory_info().rss for process in self.tree())

    async def ask(self, question: Mapping[str, object]) -> Mapping[str, object]:
        """One JSON line in, one out."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(question).encode() + b"\n")
        await self.process.stdin.drain()
        return await _line(self.process, LINE_SECONDS)


@asynccontextmanager
async def our_server(model: Path, *, home: Path, context: int, threads: int, log: Path) -> AsyncIterator[Child]:
    """`pocketserver serve` as a person would start it, on a free loopback port, with a home folder of its own."""
    arguments = ["-m", "pocketserver.cli.main", "serve", "--no-mdns", "--host", "127.0.0.1", "--port", "0"]
    arguments += ["--model", str(model), "--context", str(context), "--threads", str(threads)]
    arguments += ["--ready-json", "-", "--exit-on-stdin-close"]
    async with _child(arguments, log, {"POCKETSERVER_HOME": str(home)}) as child:
        yield replace(child, ready={**child.ready, "runtime": await _loaded(child)})


async def _loaded(child: Child) -> object:
    """Wait until the model is there, and how it is run: a server measures that at its first start, undisturbed."""
    headers = {"Authorization": f"Bearer {child.key}"}
    async with aiohttp.ClientSession(headers=headers) as session, asyncio.timeout(START_SECONDS):
        while True:
            async with session.get(child.base_url.removesuffix("/v1") + "/health") as response:
                health = await response.json()
            if health["model"] is not None:
                return health["x_pocketserver"]["runtime"]
            await asyncio.sleep(LOAD_POLL_SECONDS)


@asynccontextmanager
async def our_simulator(options: Sequence[str], *, home: Path, log: Path) -> AsyncIterator[Child]:
    """`pocketserver sim serve` with these options, on a free loopback port."""
    arguments = ["-m", "pocketserver.cli.main", "sim", "serve", "--no-mdns", "--host", "127.0.0.1", "--port", "0"]
    arguments += [*options, "--ready-json", "-", "--exit-on-stdin-close"]
    async with _child(arguments, log, {"POCKETSERVER_HOME": str(home)}) as child:
        yield child


@asynccontextmanager
async def room_guest(code: str, url: str, key: str, *, home: Path, log: Path) -> AsyncIterator[Child]:
    """`pocketserver join` of the room at this address, on a free loopback port."""
    arguments = ["-m", "pocketserver.cli.main", "join", code, "--url", url, "--no-mdns", "--port", "0"]
    arguments += ["--ready-json", "-", "--exit-on-stdin-close"]
    async with _child(arguments, log, {"POCKETSERVER_HOME": str(home), "POCKETSERVER_ROOM_KEY": key}) as child:
        yield child


@asynccontextmanager
async def peer_server(model: Path, *, context: int, threads: int, log: Path) -> AsyncIterator[Child]:
    script = str(ROOT / "tools" / "bench_peer.py")
    async with _child([script, str(model), "--context", str(context), "--threads", str(threads)], log) as child:
        yield child


@asynccontextmanager
async def bare_loop(model: Path, *, context: int, threads: int, log: Path) -> AsyncIterator[Child]:
    script = str(ROOT / "tools" / "bench_bare_loop.py")
    async with _child([script, str(model), "--context", str(context), "--threads", str(threads)], log) as child:
        yield child


@asynccontextmanager
async def _child(arguments: Sequence[str], log: Path, extra: Mapping[str, str] | None = None) -> AsyncIterator[Child]:
    """Start a Python child, wait for its line, and end it by closing its input; by force when it does not listen."""
    pipe = asyncio.subprocess.PIPE
    environment = {key: value for key, value in os.environ.items() if not key.startswith("POCKETSERVER_")}
    environment.update(extra or {})
    with log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, stderr=errors
        )
    try:
        try:
            ready = await _line(process, START_SECONDS)
        except StartupError as error:
            raise StartupError(f"{error} Its log: {log}") from error
        yield Child(process=process, ready=ready)
    finally:
        await _end(process)


async def _line(process: asyncio.subprocess.Process, seconds: float) -> Mapping[str, object]:
    assert process.stdout is not None
    try:
        async with asyncio.timeout(seconds):
            line = await process.stdout.readline()
    except TimeoutError as error:
        raise StartupError(f"A measured process said nothing for {seconds:.0f} s.") from error
    if not line:
        raise StartupError("A measured process ended by itself.")
    said: Mapping[str, object] = json.loads(line)
    return said


async def _end(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(END_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
