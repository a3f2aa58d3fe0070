"""Finds a number between bounds that is a multiple of what it must be."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from pocketserver.chat import JsonValue
from pocketserver.engines.sim.examples.demand import Alternative

LARGEST = 10**18
"""A range that begins there or beyond is refused, as llguidance refuses it."""
_SPAN = 20
_MAX_DIGITS = 17


class RangeFault(Exception):  # noqa: N818 - it says what is wrong with the range
    """The bounds are too large for a device."""


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds with whether they are excluded; `step` is what the number must be a multiple of."""

    low: Fraction | None
    high: Fraction | None
    low_open: bool
    high_open: bool
    step: Fraction | None


def range_of(alternative: Alternative, *, whole: bool) -> Range:
    """All bounds together. Raises RangeFault."""
    low, low_open = _bound(alternative, "minimum", "exclusiveMinimum", 1)
    high, high_open = _bound(alternative, "maximum", "exclusiveMaximum", -1)
    limits = [bound for bound in (low, high) if bound is not None]
    outside = (low is not None and low >= LARGEST) or (high is not None and high <= -LARGEST)
    if outside or (not whole and any(abs(limit) >= LARGEST for limit in limits)):
        raise RangeFault
    return Range(low, high, low_open, high_open, _step(alternative, whole=whole))


def number(wanted: Range, chosen: random.Random) -> int | float | None:
    """A number of the range; None when there is none (or none that a float can say exactly)."""
    for step in (wanted.step,) if wanted.step else _grids():
        if (indices := _indices(wanted, step)) is None:
            continue
        low, high = indices
        entire = -(-low // step.denominator) * step.denominator  # the first multiple that is a whole number
        tried = [low + chosen.randint(0, min(high - low, 1_000)), entire, *range(low, min(high, low + 200) + 1)]
        found = (_said(index * step, step) for index in tried if index <= high)
        if (value := next((value for value in found if value is not None), None)) is not None:
            return value
    return None


def fraction(value: JsonValue) -> Fraction:
    """The number as it is written, not as binary floats hold it."""
    return Fraction(str(value))


def _bound(alternative: Alternative, keyword: str, exclusive: str, sign: int) -> tuple[Fraction | None, bool]:
    found = [(sign * fraction(value), False) for value in alternative.values(keyword)]
    for node in alternative.nodes:
        limit = node.get(exclusive)
        if limit is True and keyword in node:  # draft 4
            found.append((sign * fraction(node[keyword]), True))
        elif limit is not None and not isinstance(limit, bool):
            found.append((sign * fraction(limit), True))
    if not found:
        return None, False
    limit, is_open = max(found)
    return sign * limit, is_open


def _step(alternative: Alternative, *, whole: bool) -> Fraction | None:
    steps = [fraction(value) for value in alternative.values("multipleOf")] + ([Fraction(1)] if whole else [])
    if not steps:
        return None
    common = steps[0]
    for step in steps[1:]:
        top = math.lcm(common.numerator * step.denominator, step.numerator * common.denominator)
        common = Fraction(top, common.denominator * step.denominator)
    return common


def _grids() -> Iterator[Fraction]:
    return (Fraction(1, 10**digits) for digits in range(_MAX_DIGITS))


def _indices(wanted: Range, step: Fraction) -> tuple[int, int] | None:
    """The first and last multiple to choose from, both inside; near the bound that is given, or near zero."""
    low = None if wanted.low is None else math.ceil(wanted.low / step)
    high = None if wanted.high is None else math.floor(wanted.high / step)
    if low is not None and wanted.low_open and low * step == wanted.low:
        low += 1
    if high is not None and wanted.high_open and high * step == wanted.high:
        high -= 1
    if low is None:
        low = 1 if high is None else min(1, high - _SPAN)
    if high is None:
        high = low + max(_SPAN, step.denominator)
    return (low, high) if low <= high else None


def _said(value: Fraction, step: Fraction) -> int | float | None:
    """The value as JSON says it; None when its float is another number, or is no multiple in binary arithmetic."""
    if value.denominator == 1:
        return int(value)
    nearest = float(value)
    if fraction(nearest) != value or "e" in str(nearest):
        return None
    by_floats = nearest / float(step)
    return nearest if by_floats == int(by_floats) else None
