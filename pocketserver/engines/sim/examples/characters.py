"""Sets of characters as ranges of code points."""

import random
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from typing import TypeAlias

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Sorted, apart from each other, both ends included."""

BEGIN, END = 0x110000, 0x110001
"""Stand before and after each text, so that `^` and `$` are characters like others."""
EVERY: Ranges = ((0, 0xD7FF), (0xE000, 0x10FFFF))
ASCII: Ranges = ((0, 0x7F),)
BEYOND_ASCII: Ranges = ((0x80, 0xD7FF), (0xE000, 0x10FFFF))
EVERY_AND_ENDS: Ranges = (*EVERY, (BEGIN, END))

_SCANNED = 0x3100
"""Unicode properties are looked up to here; all common alphabets lie below, and Han follows as one range."""
_HAN: Ranges = ((0x4E00, 0x9FFF),)
_LIKED: tuple[Ranges, ...] = (
    ((ord("a"), ord("z")),),
    ((ord("1"), ord("9")),),
    ((ord("0"), ord("0")),),
    ((ord("A"), ord("Z")),),
    ((ord("-"), ord("-")), (ord("_"), ord("_"))),
    ((ord(" "), ord("~")),),
    ((0xC0, 0x24F),),
    ((0x370, 0xD7FF),),
)


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The union, in the normal form."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return tuple(found)


def intersection(first: Ranges, second: Ranges) -> Ranges:
    pairs = ((max(a, c), min(b, d)) for a, b in first for c, d in second if c <= b and a <= d)
    return merged(pairs)


def complement(ranges: Ranges) -> Ranges:
    """The characters outside; surrogates belong to neither side."""
    edges = [-1, *(edge for low, high in ranges for edge in (low, high)), 0x110000]
    gaps = ((low + 1, high - 1) for low, high in list(pairwise(edges))[::2] if high - low > 1)
    return intersection(tuple(gaps), EVERY)


def contains(ranges: Ranges, code: int) -> bool:
    return any(low <= code <= high for low, high in ranges)


def pick(ranges: Ranges, chosen: random.Random) -> str:
    """One character, a letter or digit where possible."""
    for liked in _LIKED:
        if common := intersection(ranges, liked):
            low, high = chosen.choice(common)
            return chr(chosen.randint(low, high))
    return chr(ranges[0][0])


@lru_cache(maxsize=64)
def with_property(name: str) -> Ranges | None:
    """The characters of a general category (`Lu`, `L`) or a script (`Greek`); None for other names."""
    plain = {"letter": "L", "alphabetic": "L", "uppercase": "Lu", "lowercase": "Ll", "digit": "Nd", "number": "N"}
    wanted = plain.get(name.lower(), name)
    if wanted.lower() == "han":
        return _HAN
    codes = [code for code in range(_SCANNED) if unicodedata.category(chr(code)).startswith(wanted)]
    prefix = f"{wanted.upper()} "
    codes = codes or [code for code in range(_SCANNED) if unicodedata.name(chr(code), "").startswith(prefix)]
    return merged((code, code) for code in codes) or None
