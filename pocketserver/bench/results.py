"""Samples become figures: medians, spreads, a table for people and a document for programs."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from pocketserver.bench.measures import Figure, Sample


@dataclass(slots=True, kw_only=True)
class Result:
    """One figure of one server: its samples so far, and why there are none, or no more."""

    figure: Figure
    samples: list[Sample] = field(default_factory=list)
    problem: str | None = None

    @property
    def median(self) -> float | None:
        return statistics.median(sample.value for sample in self.samples) if self.samples else None

    @property
    def spread(self) -> float | None:
        """Half the distance from the least to the largest sample, as a part of the median."""
        if not self.samples or not self.median:
            return None
        values = [sample.value for sample in self.samples]
        return (max(values) - min(values)) / 2 / self.median

    def details(self) -> dict[str, float]:
        """Medians of what the samples tell beside their values."""
        names = dict.fromkeys(name for sample in self.samples for name in sample.details)
        return {name: statistics.median(s.details[name] for s in self.samples if name in s.details) for name in names}


def as_document(result: Result) -> dict[str, object]:
    """One figure for programs. `median` is null, and `problem` a sentence, when it could not be measured."""
    return {
        "name": result.figure.name,
        "title": result.figure.title,
        "unit": result.figure.unit,
        "better": result.figure.better.value,
        "median": result.median,
        "samples": [sample.value for sample in result.samples],
        "details": result.details(),
        "problem": result.problem,
    }


def as_table(results: Sequence[Result]) -> str:
    """The figures for people, one a line."""
    width = max((len(result.figure.title) for result in results), default=0)
    return "\n".join(_row(result, width) for result in results)


def number(value: float | None) -> str:
    """Three significant digits, without exponents."""
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}"


def _row(result: Result, width: int) -> str:
    start = f"{result.figure.title:{width}}  {number(result.median):>8}"
    if result.median is None:
        return f"{start}  {result.problem or 'not measured'}"
    note = f"±{result.spread:.0%} of {len(result.samples)}" if result.spread is not None else ""
    return f"{start}  {result.figure.unit:13} {note}".rstrip()
