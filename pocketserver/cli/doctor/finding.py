"""What a check finds, what it is given to look at, and how checks are run: all at once, each within a limit."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

from pocketserver import run_file
from pocketserver.listening import is_loopback
from pocketserver.run_file import RunningServer
from pocketserver.settings import Settings

LIMIT_SECONDS = 30.0


class Level(StrEnum):
    """How bad it is. Only `BROKEN` keeps the server, or every other device, from working."""

    OK = "ok"
    HINT = "hint"
    WARNING = "warning"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact in a sentence; `remedy` is what to do about it, empty where nothing is to be done."""

    name: str
    level: Level
    sentence: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What a server would be started with here, and the servers that run. `stale` are run files of dead ones."""

    settings: Settings
    moves_when_taken: bool = False
    """Whether another port is taken by itself when this one is taken."""
    running: tuple[RunningServer, ...] = ()
    stale: tuple[Path, ...] = ()
    problems: tuple[str, ...] = field(default=())
    """What is wrong with the settings themselves."""

    @property
    def serves_network(self) -> bool:
        return not is_loopback(self.settings.host)


Check: TypeAlias = Callable[[Situation], Iterable[Finding]]


def situation(settings: Settings, *, moves_when_taken: bool = False, problems: Sequence[str] = ()) -> Situation:
    """Look at the run files once; those of dead servers are removed by that."""
    folder = settings.home_folder / "run"
    before = sorted(folder.glob("*.json")) if folder.is_dir() else []
    running = tuple(run_file.running_servers(folder))
    stale = tuple(path for path in before if not path.exists())
    return Situation(
        settings=settings,
        moves_when_taken=moves_when_taken,
        running=running,
        stale=stale,
        problems=tuple(problems),
    )


def examine(checks: Mapping[str, Check], about: Situation, limit_seconds: float = LIMIT_SECONDS) -> list[Finding]:
    """The findings of all checks, in the table's order. A check that fails or hangs is itself a finding.

    Daemon threads: a folder on a disk that went away may hang for ever, and must not hang the command.
    """
    found: dict[str, list[Finding]] = {}
    threads = [
        threading.Thread(target=_run, args=(name, check, about, found), name=name, daemon=True)
        for name, check in checks.items()
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + limit_seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    unfinished = f"This was not found out within {limit_seconds:g} seconds."
    return [
        finding
        for name in checks
        for finding in found.get(name, [Finding(name, Level.WARNING, unfinished, "Is a disk or the network hanging?")])
    ]


def _run(name: str, check: Check, about: Situation, found: dict[str, list[Finding]]) -> None:
    try:
        found[name] = list(check(about))
    except Exception as error:  # noqa: BLE001 - the top of this thread: one check must not hide the others
        sentence = f"This could not be found out: {error or type(error).__name__}."
        found[name] = [Finding(name, Level.WARNING, sentence, "Please report this.")]


def parted(error: Exception) -> tuple[str, str]:
    """A StartupError's line as what is wrong and what to do."""
    sentence, _, remedy = str(error).partition(". ")
    return (f"{sentence}.", remedy) if remedy else (sentence, "See `pocketserver serve --help`.")
