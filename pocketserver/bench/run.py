"""Runs figures against one server or several in turn, bounded in rounds and time."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pocketserver.bench.client import ChatClient, UnmeasurableError
from pocketserver.bench.measures import Figure
from pocketserver.bench.prompts import Prompts
from pocketserver.bench.results import Result

MAX_ROUNDS = 50
FIGURE_LIMIT_SECONDS = 300.0

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How often each figure is measured, and with which prompts. `number` of rounds is cut when time runs out."""

    prompts: Prompts
    rounds: int = 5
    figure_limit_seconds: float = FIGURE_LIMIT_SECONDS

    def __post_init__(self) -> None:
        if not 1 <= self.rounds <= MAX_ROUNDS:
            raise ValueError(f"rounds must lie between 1 and {MAX_ROUNDS}")


async def measure(client: ChatClient, figures: Sequence[Figure], plan: Plan, report: Report) -> list[Result]:
    """Each figure of one server. Raises StartupError when the server goes away."""
    return [(await alternate([client], figure, plan, report))[0] for figure in figures]


async def alternate(clients: Sequence[ChatClient], figure: Figure, plan: Plan, report: Report) -> list[Result]:
    """One figure of several servers, a sample at a time and in turn, so that a drift of the machine meets them alike.

    Every second round goes the other way round. Only one server is asked at any moment.
    """
    report(figure.title)
    results = [Result(figure=figure) for _ in clients]
    pairs = list(zip(clients, results, strict=True))
    limit = time.monotonic() + plan.figure_limit_seconds
    for number in range(plan.rounds):
        if time.monotonic() > limit:
            break
        for client, result in pairs if number % 2 == 0 else reversed(pairs):
            await take(client, result, plan, number)
    return results


async def take(client: ChatClient, result: Result, plan: Plan, number: int) -> None:
    """Add one sample, or the reason why there is none; after that no more are tried."""
    if result.problem is not None:
        return
    try:
        async with asyncio.timeout(plan.figure_limit_seconds):
            result.samples.append(await result.figure.measure(client, plan.prompts, number))
    except UnmeasurableError as error:
        result.problem = str(error)
    except TimeoutError:
        result.problem = f"one sample takes over {plan.figure_limit_seconds:.0f} s"
