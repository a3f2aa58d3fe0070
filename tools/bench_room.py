"""`make bench-room`: what a room adds to a token's way, with host, guest and client in three processes on loopback.

    make bench-room                       300 answers each way, in alternating rounds
    make bench-room ARGS="--quick"        a tenth of it

The host's engine is the simulator without delays. The time from sending a request to its first token, once straight
from the host and once through a guest, differs by all that a room adds: another HTTP server, the request's way over the
link and the token's way back. A token in the middle of an answer only takes the way back.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from bench_report import machine
from bench_servers import ROOT, our_simulator, room_guest

from pocketserver.errors import StartupError

RESULTS = ROOT / "bench-results"
CODE = "4TKG9P"
ANSWERS, WARM_UP = 300, 5
AIM_MS = 2.0


@dataclass(slots=True)
class Way:
    """One way to the model, and what was measured on it."""

    origin: str
    key: str
    model: str
    first_token_ms: list[float] = field(default_factory=list)

    async def seconds_to_first_token(self, client: aiohttp.ClientSession) -> float:
        body = {"model": self.model, "stream": True, "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}
        headers = {"Authorization": f"Bearer {self.key}"}
        first = 0.0
        started = time.perf_counter()
        async with client.post(f"{self.origin}/v1/chat/completions", json=body, headers=headers) as response:
            async for line in response.content:
                if not first and b'"content":"' in line and b'"content":""' not in line:
                    first = time.perf_counter()
        if not first:
            raise StartupError(f"no token came from {self.origin}")
        return first - started


async def _measured(quick: bool) -> dict[str, Way]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = ["--profile", "hub", "--speed", "max", "--room", CODE]
        async with our_simulator(options, home=folder / "host", log=folder / "host.log") as host:
            origin, key = f"http://127.0.0.1:{host.ready['port']}", str(host.ready["api_key"])
            async with room_guest(CODE, origin, key, home=folder / "guest", log=folder / "guest.log") as guest:
                ways = {
                    "straight": Way(origin, key, "sim-1b"),
                    "room": Way(f"http://127.0.0.1:{guest.ready['port']}", "unused", "pooled/sim-1b"),
                }
                async with aiohttp.ClientSession() as client:
                    await _compare(client, list(ways.values()), quick)
                return ways


async def _compare(client: aiohttp.ClientSession, ways: list[Way], quick: bool) -> None:
    answers = ANSWERS // 10 if quick else ANSWERS
    for number in range(answers + WARM_UP):
        for way in ways:
            seconds = await way.seconds_to_first_token(client)
            if number >= WARM_UP:
                way.first_token_ms.append(1000 * seconds)


def _figures(way: Way) -> dict[str, float]:
    ordered = sorted(way.first_token_ms)
    return {
        "first_token_ms": round(statistics.median(ordered), 3),
        "p95_ms": round(ordered[int(0.95 * len(ordered))], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What a room adds to a token's latency on this machine.")
    parser.add_argument("--quick", action="store_true", help="a tenth of the answers")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    try:
        ways = asyncio.run(_measured(arguments.quick))
    except StartupError as error:
        sys.exit(f"bench-room: {error}")
    figures = {name: _figures(way) for name, way in ways.items()}
    added = figures["room"]["first_token_ms"] - figures["straight"]["first_token_ms"]
    RESULTS.mkdir(exist_ok=True)
    result = {"machine": machine(), **figures, "added_ms": round(added, 3)}
    (RESULTS / "room-last.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
    if arguments.json:
        print(json.dumps(result))
        return
    for name, row in figures.items():
        print(f"{name:9} first token {row['first_token_ms']:.3f} ms (95 % within {row['p95_ms']:.3f} ms)")
    print(f"a room adds {added:.3f} ms to a request and its first token (median; aim: less than {AIM_MS:g})")


if __name__ == "__main__":
    main()
