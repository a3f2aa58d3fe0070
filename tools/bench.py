"""`make bench`: our server side by side with llama.cpp's own, same model, threads and context, in alternating rounds.

    make bench                        every figure, medians of five
    make bench ARGS="--quick"         two rounds of a few figures, for development
    make bench ARGS="--json"          the same as JSON on standard output

How to read the result: docs/benchmarks.md. The last one lies in bench-results/.
"""

import argparse
import asyncio
import importlib.metadata
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
from bench_quiet import watched
from bench_report import Comparison, machine, table
from bench_servers import ROOT, Child, bare_loop, our_server, peer_server

from pocketserver.bench.client import ChatClient, UnmeasurableError, chat_client
from pocketserver.bench.measures import AFTER_RESTART, FIGURES, Better, Figure, Sample, make_known
from pocketserver.bench.prompts import Prompts, calibrated
from pocketserver.bench.results import Result
from pocketserver.bench.run import MAX_ROUNDS, Plan, alternate, take
from pocketserver.engines.llama import native
from pocketserver.errors import StartupError
from pocketserver.models.pull import ensure_default_model

QUICK = ("decode_512", "typical_turn", "structured", "cancel_to_free", "rewrite")
RESULTS = ROOT / "bench-results"
MODELS = ROOT / ".test-home" / "models"
STREAMED_TOKENS = 96
SEEDS = 5
"""Tried for one sample, until an answer is long enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bed:
    """What both servers share, and how often each figure is taken."""

    model: Path
    context: int
    threads: int
    rounds: int
    attempts: int
    seed: int
    home: Path
    log: Path


@dataclass(frozen=True, slots=True)
class Side:
    """A running server and a client of it."""

    child: Child
    client: ChatClient


def main() -> None:
    arguments = _arguments()
    try:
        comparisons, about = asyncio.run(_run(arguments))
    except (StartupError, UnmeasurableError) as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(1)
    document = {**about, "comparisons": [comparison.document() for comparison in comparisons]}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "last.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    text = f"{_headline(about)}\n\n{table(comparisons)}"
    (RESULTS / "last.txt").write_text(text + "\n", encoding="utf-8")
    print(json.dumps(document) if arguments.json else text)


async def _run(arguments: argparse.Namespace) -> tuple[list[Comparison], dict[str, object]]:
    model = arguments.model or await ensure_default_model(MODELS)
    threads = arguments.threads or psutil.cpu_count(logical=False) or 1
    with tempfile.TemporaryDirectory(prefix="pocketserver-bench-") as home:
        RESULTS.mkdir(exist_ok=True)
        log = RESULTS / "servers.log"
        log.write_bytes(b"")
        bed = Bed(
            model=model.resolve(),
            context=arguments.context,
            threads=threads,
            rounds=arguments.rounds or (2 if arguments.quick else 5),
            attempts=1 if arguments.quick else 3,
            seed=arguments.seed,
            home=Path(home),
            log=log,
        )
        started = time.strftime("%Y-%m-%d %H:%M")
        comparisons, settings = await _measured(bed, arguments)
    about = {"started": started, "machine": machine(), "rounds": bed.rounds, "context": bed.context, "threads": threads}
    about |= {"build": native.build()}
    about |= {"model": model.name, "package": f"llama-cpp-python {importlib.metadata.version('llama-cpp-python')}"}
    return comparisons, {**about, **settings}


async def _measured(bed: Bed, arguments: argparse.Namespace) -> tuple[list[Comparison], dict[str, object]]:
    chosen = _chosen(arguments)
    comparisons: list[Comparison] = []
    async with _ours(bed) as ours, _theirs(bed) as theirs:
        prompts = await calibrated(theirs.client, bed.seed)
        plan = Plan(prompts=prompts, rounds=bed.rounds)
        settings = {"ours": ours.child.ready["runtime"], "peer": theirs.child.ready["settings"]}
        if _wanted(arguments, MEMORY):
            comparisons.append(await _memory(ours, theirs, prompts))
        comparisons += [await _compare(figure, [ours, theirs], plan, bed) for figure in chosen]
        comparisons += _depth_cost(comparisons)
        if _wanted(arguments, STREAMING):
            comparisons.append(await _settled(STREAMING, _streaming(ours, plan, bed)))
    if _wanted(arguments, AFTER_RESTART) and not arguments.quick:
        comparisons.append(await _settled(AFTER_RESTART, _after_restart(bed, plan)))
    return comparisons, settings


async def _settled(figure: Figure, measuring: Awaitable[Comparison]) -> Comparison:
    """A process that ends by itself costs its own figure, not the others."""
    try:
        return await measuring
    except (StartupError, UnmeasurableError) as error:
        return Comparison(ours=Result(figure=figure, problem=str(error)), theirs=Result(figure=figure))


async def _compare(figure: Figure, sides: Sequence[Side], plan: Plan, bed: Bed) -> Comparison:
    figure = watched(figure, _processes([side.child for side in sides]), attempts=bed.attempts)
    ours, theirs = await alternate([side.client for side in sides], figure, plan, _say)
    return _told(Comparison(ours=ours, theirs=theirs))


async def _memory(ours: Side, theirs: Side, prompts: Prompts) -> Comparison:
    """Both servers are fresh: each answers one prompt of 2,000 tokens, then its processes are looked at."""
    _say(MEMORY.title)
    results = []
    for side in (ours, theirs):
        await side.client.answer(prompts.single("memory", 2000, "Who is this about?"), 16, temperature=0)
        sample = Sample(value=side.child.resident_bytes() / 2**20)
        results.append(Result(figure=MEMORY, samples=[sample]))
    return _told(Comparison(ours=results[0], theirs=results[1]))


def _depth_cost(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """How much dearer a token is at 4,000 deep than at 512: computed from the two decode figures' medians."""
    found = {comparison.ours.figure.name: comparison for comparison in comparisons}
    if "decode_512" not in found or "decode_4000" not in found:
        return []
    near, far = found["decode_512"], found["decode_4000"]
    return [Comparison(ours=_growth(near.ours, far.ours), theirs=_growth(near.theirs, far.theirs))]


def _growth(near: Result, far: Result) -> Result:
    if not near.median or not far.median:
        return Result(figure=DEPTH_COST, problem="a decode rate is missing")
    return Result(figure=DEPTH_COST, samples=[Sample(value=near.median / far.median)])


async def _streaming(ours: Side, plan: Plan, bed: Bed) -> Comparison:
    """Our server over HTTP, against the bare loop with the same prompt, depth and sampler, in turn."""
    async with bare_loop(bed.model, context=bed.context, threads=bed.threads, log=bed.log) as bare:
        chat = plan.prompts.single("deep", 512, "Continue this story at length.")

        async def over_http(client: ChatClient, _prompts: Prompts, number: int) -> Sample:
            for seed in range(number, number + SEEDS * bed.rounds, bed.rounds):
                answer = await client.answer(chat, STREAMED_TOKENS, temperature=0.7, seed=seed)
                if answer.completion_tokens >= STREAMED_TOKENS // 2:
                    return Sample(value=answer.tokens_per_second)
            raise UnmeasurableError("the model ended its answers early")

        async def bare_rate(_client: ChatClient, _prompts: Prompts, number: int) -> Sample:
            said = await bare.ask({"messages": chat, "tokens": STREAMED_TOKENS, "seed": number})
            return Sample(value=float(str(said["tokens_per_second"])))

        ways = [replace(STREAMING, measure=measure) for measure in (over_http, bare_rate)]
        processes = _processes([ours.child, bare])
        figures = [watched(way, processes, attempts=bed.attempts) for way in ways]
        return await _in_turn(figures, ours.client, plan)


async def _in_turn(figures: Sequence[Figure], client: ChatClient, plan: Plan) -> Comparison:
    """Two ways of taking one figure, a sample of each in turn."""
    _say(figures[0].title)
    results = [Result(figure=figure) for figure in figures]
    for number in range(plan.rounds):
        for result in results if number % 2 == 0 else reversed(results):
            await take(client, result, plan, number)
    return _told(Comparison(ours=results[0], theirs=results[1]))


async def _after_restart(bed: Bed, plan: Plan) -> Comparison:
    """Both servers get to know a conversation, then each is started anew for every sample, with its own folder."""
    _say(AFTER_RESTART.title)
    sides: list[tuple[Opener, Result]] = [
        (_ours, Result(figure=AFTER_RESTART)),
        (_theirs, Result(figure=AFTER_RESTART)),
    ]
    for open_side, _result in sides:
        async with open_side(bed) as side:
            await make_known(side.client, plan.prompts)
    for number in range(plan.rounds):
        for open_side, result in sides:
            async with open_side(bed) as side:
                figure = watched(AFTER_RESTART, _processes([side.child]), attempts=1)
                result.samples.append(await figure.measure(side.client, plan.prompts, number))
    return _told(Comparison(ours=sides[0][1], theirs=sides[1][1]))


@asynccontextmanager
async def _ours(bed: Bed) -> AsyncIterator[Side]:
    _say("starting our server")
    async with (
        our_server(bed.model, home=bed.home, context=bed.context, threads=bed.threads, log=bed.log) as child,
        chat_client(child.base_url, key=child.key) as client,
    ):
        yield Side(child, client)


@asynccontextmanager
async def _theirs(bed: Bed) -> AsyncIterator[Side]:
    _say("starting the peer")
    async with (
        peer_server(bed.model, context=bed.context, threads=bed.threads, log=bed.log) as child,
        chat_client(child.base_url, key=None) as client,
    ):
        yield Side(child, client)


Opener = Callable[[Bed], AbstractAsyncContextManager[Side]]


async def _not_over_http(_client: ChatClient, _prompts: Prompts, _number: int) -> Sample:
    raise UnmeasurableError("this figure is not taken over HTTP")


def _own_figure(name: str, title: str, unit: str, better: Better) -> Figure:
    return Figure(name=name, title=title, unit=unit, better=better, measure=_not_over_http)


MEMORY = _own_figure("resident_memory", "Resident memory after a prompt of 2,000 tokens", "MiB", Better.LOWER)
DEPTH_COST = _own_figure("depth_cost", "A token at 4,000 deep costs, against 512", "times", Better.LOWER)
STREAMING = _own_figure("streaming", "Streamed over HTTP, against the bare loop", "tokens/s", Better.HIGHER)


def _chosen(arguments: argparse.Namespace) -> list[Figure]:
    if arguments.only:
        return [figure for figure in FIGURES if figure.name in arguments.only.split(",")]
    return [figure for figure in FIGURES if not arguments.quick or figure.name in QUICK]


def _wanted(arguments: argparse.Namespace, figure: Figure) -> bool:
    return not arguments.only or figure.name in arguments.only.split(",")


def _processes(children: Sequence[Child]) -> Callable[[], Iterable[psutil.Process]]:
    return lambda: [psutil.Process(), *(process for child in children for process in child.tree())]


def _headline(about: dict[str, object]) -> str:
    return "\n".join(f"{name:9} {value}" for name, value in about.items())


def _told(comparison: Comparison) -> Comparison:
    """Shown at once, so that a run that is broken off has told what it knew."""
    _say(table([comparison]).splitlines()[-1])
    return comparison


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two rounds of a few figures")
    parser.add_argument("--json", action="store_true", help="JSON on standard output")
    parser.add_argument("--only", help="names of figures, with commas between")
    parser.add_argument("--rounds", type=int, choices=range(1, MAX_ROUNDS + 1), metavar="N")
    parser.add_argument("--model", type=Path, help="a GGUF file; the default model if left out")
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--threads", type=int, help="one for each physical core if left out")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
