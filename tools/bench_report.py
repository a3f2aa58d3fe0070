"""Two servers' figures side by side, with the ratio and the aim."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from bench_quiet import DISTURBED_SHARE

from pocketserver.bench.measures import Better
from pocketserver.bench.results import Result, as_document, number


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What the ratio ours ÷ theirs should be: at least, or at most."""

    ratio: float
    better: Better

    def met_by(self, ratio: float) -> bool:
        return ratio >= self.ratio if self.better is Better.HIGHER else ratio <= self.ratio

    def __str__(self) -> str:
        return f"{'≥' if self.better is Better.HIGHER else '≤'} {self.ratio:g}x"


AIMS: dict[str, Aim] = {
    "decode_512": Aim(ratio=1.05, better=Better.HIGHER),
    "typical_turn": Aim(ratio=0.95, better=Better.LOWER),
    "structured": Aim(ratio=3.0, better=Better.HIGHER),
    "first_token_next_turn": Aim(ratio=1.0, better=Better.LOWER),
    "first_token_after_restart": Aim(ratio=0.1, better=Better.LOWER),
    "cancel_to_free": Aim(ratio=0.1, better=Better.LOWER),
    "rewrite": Aim(ratio=1.3, better=Better.HIGHER),
    "resident_memory": Aim(ratio=1.2, better=Better.LOWER),
    "depth_cost": Aim(ratio=1.0, better=Better.LOWER),
    "streaming": Aim(ratio=0.95, better=Better.HIGHER),
}
"""By the figure's name; figures without a row are shown for information."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One figure of our server beside the peer's (or, for `streaming`, the bare loop's)."""

    ours: Result
    theirs: Result

    @property
    def ratio(self) -> float | None:
        ours, theirs = self.ours.median, self.theirs.median
        return ours / theirs if ours is not None and theirs else None

    @property
    def aim(self) -> Aim | None:
        return AIMS.get(self.ours.figure.name)

    @property
    def others_share(self) -> float:
        """The larger of both sides' medians."""
        return max(result.details().get("others_share", 0.0) for result in (self.ours, self.theirs))

    @property
    def met(self) -> bool | None:
        """None where there is no aim, or nothing to compare."""
        return None if self.aim is None or self.ratio is None else self.aim.met_by(self.ratio)

    def document(self) -> dict[str, object]:
        return {
            "ours": as_document(self.ours),
            "theirs": as_document(self.theirs),
            "ratio": self.ratio,
            "aim": str(self.aim) if self.aim else None,
            "met": self.met,
        }


def table(comparisons: Sequence[Comparison]) -> str:
    width = max(len(comparison.ours.figure.title) for comparison in comparisons)
    head = f"{'':{width}}  {'ours':>15}  {'theirs':>15}  {'':12}  {'ratio':>7}  aim"
    return "\n".join([head, *(_row(comparison, width) for comparison in comparisons)])


def machine() -> dict[str, object]:
    """The machine as far as it matters for figures; no names."""
    return {
        "processor": _processor(),
        "cores": psutil.cpu_count(logical=False),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "system": platform.system(),
        "python": platform.python_version(),
    }


def _row(comparison: Comparison, width: int) -> str:
    figure, ratio = comparison.ours.figure, comparison.ratio
    words = f"{figure.title:{width}}  {_value(comparison.ours)}  {_value(comparison.theirs)}  {figure.unit:12}"
    words += f"  {f'{ratio:.2f}x' if ratio is not None else '-':>7}"
    problem = comparison.ours.problem or comparison.theirs.problem
    verdict = {True: "met", False: "MISSED", None: ""}[comparison.met]
    if comparison.others_share > DISTURBED_SHARE:
        verdict += f", but others had {comparison.others_share:.0%} of the machine: run it again"
    aim = f"{comparison.aim} {verdict}" if comparison.aim else ""
    return f"{words}  {aim}{f' ({problem})' if problem else ''}".rstrip()


def _value(result: Result) -> str:
    spread = f"±{result.spread:.0%}" if result.spread is not None and len(result.samples) > 1 else ""
    return f"{number(result.median):>9} {spread:>5}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
