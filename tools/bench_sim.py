"""`make bench-sim`: the simulator side by side with the npm package `@copilotkit/aimock`, in alternating rounds.

    make bench-sim                        every figure, medians of five, and the memory over a long run
    make bench-sim ARGS="--quick"         two short rounds without the memory

Both servers give the same answers on loopback. Needs node, npm and wrk. The last result lies in bench-results/.
"""

import argparse
import asyncio
import json
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import psutil
from bench_report import machine
from bench_servers import ROOT, our_simulator

from pocketserver.errors import StartupError

PEER = ROOT / "tools" / "aimock"
RESULTS = ROOT / "bench-results"
CHAT = "/v1/chat/completions"
CONNECTIONS = 16
LONG_TOKENS = 8000
PEER_CHUNK_CHARACTERS = 6
"""About a token of ours, so that both send the same text in about as many chunks."""
MEMORY_CHUNKS, MEMORY_REQUESTS = 1_000_000, 100_000
START_SECONDS = 30.0
SHORT, LONG = "Say something short.", "Tell me a very long story."


@dataclass(slots=True, kw_only=True)
class Side:
    """One running server, and the samples that were taken from it."""

    name: str
    port: int
    pid: int
    key: str
    requests_per_second: list[float] = field(default_factory=list)
    chunks_per_second: list[float] = field(default_factory=list)
    cpu_per_request: list[float] = field(default_factory=list)
    """Microseconds; what others do on the machine disturbs it least."""

    def cpu_seconds(self) -> float:
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)

    def resident_mebibytes(self) -> float:
        return float(psutil.Process(self.pid).memory_info().rss / 2**20)


def main() -> None:
    arguments = _arguments()
    try:
        result = asyncio.run(_run(arguments))
    except StartupError as error:
        print(f"bench-sim: {error}", file=sys.stderr)
        sys.exit(1)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "sim-last.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
    print(json.dumps(result) if arguments.json else _table(result))


async def _run(arguments: argparse.Namespace) -> dict[str, object]:
    for program in ("node", "npm", "wrk"):
        if shutil.which(program) is None:
            raise StartupError(f"{program} is needed for this benchmark and is not installed.")
    rounds = arguments.rounds or (2 if arguments.quick else 5)
    with tempfile.TemporaryDirectory(prefix="pocketserver-bench-") as name:
        async with _ours(Path(name)) as ours, _peer(Path(name), ours) as peer:
            await asyncio.to_thread(_check_same, ours, peer)
            await asyncio.to_thread(_rounds, [ours, peer], rounds, arguments.seconds, Path(name))
            memory = {} if arguments.quick else await asyncio.to_thread(_memory, ours, Path(name))
    return {"machine": machine(), "rounds": rounds, "figures": [*_figures(ours, peer)], **memory}


def _rounds(sides: list[Side], rounds: int, seconds: float, folder: Path) -> None:
    for number in range(rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            _say(f"round {number + 1} of {rounds}: {side.name}")
            before = side.cpu_seconds()
            answered, rate = _answered(side, seconds, folder)
            side.requests_per_second.append(rate)
            side.cpu_per_request.append((side.cpu_seconds() - before) / answered * 1e6)
            side.chunks_per_second.append(_chunks_per_second(side, seconds))


def _figures(ours: Side, peer: Side) -> list[dict[str, object]]:
    named: list[tuple[str, Callable[[Side], list[float]]]] = [
        (f"short answers, {CONNECTIONS} connections (requests/s)", lambda side: side.requests_per_second),
        ("processor time of a short answer (us)", lambda side: side.cpu_per_request),
        ("streamed chunks, one connection (chunks/s)", lambda side: side.chunks_per_second),
    ]
    return [
        {"title": title, "ours": statistics.median(of(ours)), "peer": statistics.median(of(peer))}
        | {"our_samples": of(ours), "peer_samples": of(peer)}
        for title, of in named
    ]


# The measures


def _answered(side: Side, seconds: float, folder: Path) -> tuple[int, float]:
    """How many requests wrk got answered, and how many a second. Answers other than 200 make it worthless."""
    script = folder / f"{side.port}.lua"
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {side.key}"}
    lines = [f"wrk.headers[{json.dumps(name)}] = {json.dumps(value)}" for name, value in headers.items()]
    script.write_text("\n".join(['wrk.method = "POST"', f"wrk.body = {json.dumps(_body(SHORT))}", *lines]))
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{max(1, round(seconds))}s", "-s", str(script)]
    said = subprocess.run(
        [*command, f"http://127.0.0.1:{side.port}{CHAT}"], capture_output=True, text=True, check=True
    ).stdout
    number, rate = re.search(r"(\d+) requests in", said), re.search(r"Requests/sec:\s+([\d.]+)", said)
    if number is None or rate is None or "Non-2xx" in said or "Socket errors" in said:
        raise StartupError(f"{side.name} did not answer everything:\n{said}")
    return int(number[1]), float(rate[1])


def _chunks_per_second(side: Side, seconds: float) -> float:
    """Long streams one after the other on one connection."""
    chunks, began = 0, time.perf_counter()
    with socket.create_connection(("127.0.0.1", side.port)) as connection:
        while (passed := time.perf_counter() - began) < seconds:
            chunks += _stream(connection, side)
    return chunks / passed


def _stream(connection: socket.socket, side: Side) -> int:
    """Ask for the long answer and read it to the end of its chunked body; the number of chunks with content."""
    body = _body(LONG, stream=True).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1:{side.port}\r\nAuthorization: Bearer {side.key}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    chunks, tail = 0, b""
    while not tail.endswith(b"\r\n0\r\n\r\n"):
        data = connection.recv(1 << 18)
        if not data:
            raise StartupError(f"{side.name} closed a stream in the middle.")
        # a mark that lies across two reads is counted in the second
        chunks += (tail[-_MARK_KEPT:] + data).count(_MARK)
        tail = (tail + data)[-64:]
    if b"[DONE]" not in tail:
        raise StartupError(f"{side.name} ended a stream without its mark: {tail!r}")
    return chunks


_MARK = b'"content":"'
_MARK_KEPT = len(_MARK) - 1


def _memory(ours: Side, folder: Path) -> dict[str, object]:
    """Resident memory of our server at a tenth of the way and at the end; what grows is a leak."""
    with socket.create_connection(("127.0.0.1", ours.port)) as connection:
        _say(f"memory over {MEMORY_CHUNKS:,} streamed chunks")
        streamed = [*_sampled(MEMORY_CHUNKS, lambda: _stream(connection, ours), ours)]
    _say(f"memory over {MEMORY_REQUESTS:,} requests")
    answered = _sampled(MEMORY_REQUESTS, lambda: _answered(ours, 2.0, folder)[0], ours)
    return {"memory_mebibytes": {"chunks": streamed, "requests": answered}}


def _sampled(wanted: int, step: Callable[[], int], side: Side) -> tuple[float, float]:
    done, early = 0, 0.0
    while done < wanted:
        done += step()
        if not early and done >= wanted / 10:
            early = side.resident_mebibytes()
    return early, side.resident_mebibytes()


# The servers


@asynccontextmanager
async def _ours(folder: Path) -> AsyncIterator[Side]:
    options = ["--speed", "max", "--admission", "queue", "--max-queue", "64"]
    async with our_simulator(options, home=folder / "home", log=folder / "ours.log") as child:
        ready = child.ready
        rule = {"match": {"last_message": LONG}, "reply": {"prose_tokens": LONG_TOKENS}}
        token = {"Authorization": f"Bearer {ready['control_token']}"}
        async with (
            aiohttp.ClientSession(headers=token) as owner,
            owner.post(f"{ready['control_url']}/rules", json=rule) as response,
        ):
            response.raise_for_status()
        yield Side(
            name="pocketserver", port=urlsplit(child.base_url).port or 0, pid=child.process.pid, key=child.key or ""
        )


@asynccontextmanager
async def _peer(folder: Path, ours: Side) -> AsyncIterator[Side]:
    """aimock with fixtures that say what our server says."""
    await _install()
    fixtures = [
        {"match": {"userMessage": question}, "response": {"content": await asyncio.to_thread(_said, ours, question)}}
        for question in (SHORT, LONG)
    ]
    (folder / "fixtures.json").write_text(json.dumps({"fixtures": fixtures}))
    port = _free_port()
    command = [str(PEER / "node_modules" / ".bin" / "llmock"), "--port", str(port), "--host", "127.0.0.1"]
    options = ["--fixtures", str(folder / "fixtures.json"), "--chunk-size", str(PEER_CHUNK_CHARACTERS)]
    with (folder / "peer.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, *options, stdout=log, stderr=log)
    try:
        await _answering(port, process)
        yield Side(name="aimock", port=port, pid=process.pid, key="none")
    finally:
        process.terminate()
        await process.wait()


async def _install() -> None:
    if (PEER / "node_modules" / ".package-lock.json").exists():
        return
    _say("installing the peer")
    process = await asyncio.create_subprocess_exec("npm", "ci", cwd=PEER, stdout=sys.stderr)
    if await process.wait():
        raise StartupError("npm could not install @copilotkit/aimock.")


async def _answering(port: int, process: asyncio.subprocess.Process) -> None:
    limit = time.monotonic() + START_SECONDS
    while process.returncode is None and time.monotonic() < limit:
        try:
            _reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return
    raise StartupError("aimock did not start.")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _check_same(ours: Side, peer: Side) -> None:
    for question in (SHORT, LONG):
        if _said(ours, question) != _said(peer, question):
            raise StartupError("the two servers do not give the same answers.")


def _said(side: Side, question: str) -> str:
    """One answer of a server, without streaming."""
    command = ["curl", "--silent", "--fail", "--header", f"Authorization: Bearer {side.key}", "--json", _body(question)]
    done = subprocess.run([*command, f"http://127.0.0.1:{side.port}{CHAT}"], capture_output=True, check=True)
    return str(json.loads(done.stdout)["choices"][0]["message"]["content"])


def _body(question: str, *, stream: bool = False) -> str:
    asked = {"model": "default", "max_tokens": 4 * LONG_TOKENS, "messages": [{"role": "user", "content": question}]}
    return json.dumps({**asked, "stream": True} if stream else asked)


def _table(result: dict[str, object]) -> str:
    figures = result["figures"]
    assert isinstance(figures, list)
    lines = [f"{'':52}{'ours':>12}{'aimock':>12}{'ratio':>8}"]
    for figure in figures:
        ratio = figure["ours"] / figure["peer"]
        lines.append(f"{figure['title']:52}{figure['ours']:12,.0f}{figure['peer']:12,.0f}{ratio:8.2f}")
    memory = result.get("memory_mebibytes")
    for what, (early, late) in memory.items() if isinstance(memory, dict) else ():
        lines.append(f"resident MiB after a tenth and all of the {what:10} {early:12.1f}{late:12.1f}")
    return "\n".join(lines)


def _say(text: str) -> None:
    print(f"bench-sim: {text}", file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two rounds without the memory")
    parser.add_argument("--json", action="store_true", help="JSON on standard output")
    parser.add_argument("--rounds", type=int, choices=range(1, 100), metavar="N")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each sample")
    return parser.parse_args()


if __name__ == "__main__":
    main()
