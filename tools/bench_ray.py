"""`make bench-ray`: what a second replica in a Ray cluster is worth, and what Ray costs, all on this machine.

    make bench-ray
    make bench-ray ARGS="--quick"         a third of the requests

The replicas' engine is the simulator at a fixed rate, as if each had a processor of its own: what differs between one
replica and two is then the way there alone. One server in front of both, clients over HTTP, one application at a time.
"""

import argparse
import asyncio
import itertools
import json
import os
import secrets
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import aiohttp

from tests.engines.upstream.processes import Process, process

ROOT = Path(__file__).resolve().parent.parent
RATE, TOKENS, CLIENTS, ANSWERS = 20.0, 40, 8, 24


@dataclass(slots=True)
class Measured:
    """One arrangement: how long everything took, and each answer's first token and gaps in milliseconds."""

    name: str
    seconds: float = 0.0
    tokens: int = 0
    first_ms: list[float] = field(default_factory=list)
    gap_ms: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


async def ask(session: aiohttp.ClientSession, number: int, into: Measured) -> None:
    body = {"model": "default", "messages": [{"role": "user", "content": f"question {number}"}], "stream": True}
    began = time.monotonic()
    async with session.post("/v1/chat/completions", json={**body, "max_tokens": TOKENS}) as answer:
        times = [time.monotonic() async for line in answer.content if b'"content":"' in line]
    if len(times) < TOKENS // 2:
        raise SystemExit(f"{into.name}: an answer broke off (status {answer.status})")
    into.tokens += TOKENS
    into.first_ms.append((times[0] - began) * 1000)
    into.gap_ms += [(later - earlier) * 1000 for earlier, later in itertools.pairwise(times)]


async def measure(name: str, served: Process, *, clients: int, answers: int) -> Measured:
    found = Measured(name)
    origin, key = served.base_url.removesuffix("/v1"), served.ready["api_key"]
    async with aiohttp.ClientSession(origin, headers={"Authorization": f"Bearer {key}"}) as session:
        for number in range(2):
            await ask(session, -1 - number, Measured("warm-up"))
        waiting = list(range(answers))

        async def client() -> None:
            while waiting:
                await ask(session, waiting.pop(), found)

        began = time.monotonic()
        await asyncio.gather(*(client() for _ in range(clients)))
        found.seconds = time.monotonic() - began
    return found


def serve(home: str, *words: str, **environment: str) -> object:
    flags = ["--profile", "hub", "--host", "127.0.0.1", "--port", "0", "--no-mdns", "--home", home]
    flags += ["--ready-json", "-", "--exit-on-stdin-close"]
    settings = {"POCKETSERVER_TOKENS_PER_SECOND": str(RATE), **environment}
    return process("-m", "pocketserver.cli.main", "serve", *words, *flags, **settings)


async def ready(served: Process) -> None:
    """Replicas take their time after the server stands."""
    async with aiohttp.ClientSession(served.base_url.removesuffix("/v1")) as session:
        for _ in range(1200):
            async with session.get("/health") as answer:
                if (await answer.json())["model"]:
                    return
            await asyncio.sleep(0.1)
    raise SystemExit("The replicas were not ready within two minutes.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    answers = ANSWERS // 3 if parser.parse_args().quick else ANSWERS
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    rows = asyncio.run(_rows(answers))
    _report(rows, answers)


async def _rows(answers: int) -> list[Measured]:
    rows = []
    with tempfile.TemporaryDirectory() as home:
        with serve(home, "--engine", "sim") as served:  # type: ignore[attr-defined]
            rows.append(await measure("no Ray, one answer at a time", served, clients=1, answers=answers // 4))
        for replicas in (1, 2):
            own = {"POCKETSERVER_RAY_ENGINE": "sim", "POCKETSERVER_RAY_CPUS": "0.1"}
            with serve(home, "--engine", "ray", "--ray-replicas", str(replicas), **own) as served:  # type: ignore[attr-defined]
                await ready(served)
                name = f"{replicas} replica{'s' * (replicas > 1)}"
                if replicas == 1:
                    rows.append(await measure(f"{name}, one client", served, clients=1, answers=answers // 4))
                rows.append(await measure(f"{name}, {CLIENTS} clients", served, clients=CLIENTS, answers=answers))
    return rows


def _report(rows: list[Measured], answers: int) -> None:
    print(f"The simulator at {RATE:g} tokens a second a replica, {answers} answers of {TOKENS} tokens")
    print(f"{'':34}{'tokens/s':>10}{'first token, ms':>18}{'gap, ms':>10}{'longest gap, ms':>18}")
    for row in rows:
        first, gap = statistics.median(row.first_ms), statistics.median(row.gap_ms)
        print(f"{row.name:34}{row.rate:>10.1f}{first:>18.1f}{gap:>10.1f}{max(row.gap_ms):>18.1f}")
    print(f"Two replicas against one: {rows[-1].rate / rows[-2].rate:.2f} times the tokens")
    folder = ROOT / "bench-results"
    folder.mkdir(exist_ok=True)
    shown = [{"name": row.name, "rate": row.rate, "first_ms": row.first_ms, "gap_ms": row.gap_ms} for row in rows]
    (folder / "ray.json").write_text(json.dumps(shown))


if __name__ == "__main__":
    main()
