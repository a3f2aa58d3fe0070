"""Character classes of a regular expression: `[a-z]`, `\\d`, `\\p{L}`.

What Unicode adds to `\\w` or `\\D` differs between dialects. So each class is known from both sides: the
characters in it for everybody, from which examples are made, and those in it for somebody, which a negation excludes.
"""

from dataclasses import dataclass

from pocketserver.engines.sim.examples.characters import (
    ASCII,
    BEYOND_ASCII,
    EVERY,
    Ranges,
    complement,
    intersection,
    merged,
    with_property,
)


def _spelled(*pairs: str) -> Ranges:
    return merged((ord(pair[0]), ord(pair[-1])) for pair in pairs)


_DIGIT, _WORD = _spelled("09"), _spelled("09", "AZ", "az", "_")
_SPACE, _BLANK = _spelled("\t\r", " "), _spelled("\t", " ")
_ALPHA = _spelled("AZ", "az")
_PUNCTUATION = _spelled("!/", ":@", "[`", "{~")
_POSIX: dict[str, Ranges] = {
    "alnum": merged((*_ALPHA, *_DIGIT)),
    "alpha": _ALPHA,
    "ascii": ASCII,
    "blank": _BLANK,
    "cntrl": ((0, 31), (127, 127)),
    "digit": _DIGIT,
    "graph": _spelled("!~"),
    "lower": _spelled("az"),
    "print": _spelled(" ~"),
    "punct": _PUNCTUATION,
    "space": _SPACE,
    "upper": _spelled("AZ"),
    "word": _WORD,
    "xdigit": _spelled("09", "AF", "af"),
}


@dataclass(frozen=True, slots=True)
class CharacterClass:
    """`sure` is part of `possible`."""

    sure: Ranges
    possible: Ranges

    def __or__(self, other: "CharacterClass") -> "CharacterClass":
        return CharacterClass(merged((*self.sure, *other.sure)), merged((*self.possible, *other.possible)))

    def __and__(self, other: "CharacterClass") -> "CharacterClass":
        return CharacterClass(intersection(self.sure, other.sure), intersection(self.possible, other.possible))

    def __invert__(self) -> "CharacterClass":
        return CharacterClass(complement(self.possible), complement(self.sure))

    def without_case(self) -> "CharacterClass":
        """With the other case of each ASCII letter."""
        return CharacterClass(_both_cases(self.sure), _both_cases(self.possible))


def exactly(ranges: Ranges) -> CharacterClass:
    return CharacterClass(ranges, ranges)


EMPTY = exactly(())
EVERYTHING = exactly(EVERY)
NO_NEWLINE = ~exactly(((10, 10), (13, 13)))


def _with_unicode(ascii_part: Ranges) -> CharacterClass:
    return CharacterClass(ascii_part, merged((*ascii_part, *BEYOND_ASCII)))


SHORTHANDS = {
    "d": _with_unicode(_DIGIT),
    "w": _with_unicode(_WORD),
    "s": _with_unicode(_SPACE),
    "D": _with_unicode(intersection(complement(_DIGIT), ASCII)),
    "W": _with_unicode(intersection(complement(_WORD), ASCII)),
    "S": _with_unicode(intersection(complement(_SPACE), ASCII)),
}


def posix(name: str) -> CharacterClass | None:
    """The class written `[:name:]` or `[:^name:]`."""
    ranges = _POSIX.get(name.removeprefix("^"))
    if ranges is None:
        return None
    return ~exactly(ranges) if name.startswith("^") else exactly(ranges)


def unicode_property(name: str) -> CharacterClass | None:
    """The class written `\\p{name}`, also as `Script=name`."""
    ranges = with_property(name.rpartition("=")[2])
    if ranges is None:
        return None
    return CharacterClass(ranges, merged((*ranges, *intersection(BEYOND_ASCII, ((0x3100, 0x10FFFF),)))))


def _both_cases(ranges: Ranges) -> Ranges:
    upper, lower = _spelled("AZ"), _spelled("az")
    down = ((low + 32, high + 32) for low, high in intersection(ranges, upper))
    up = ((low - 32, high - 32) for low, high in intersection(ranges, lower))
    return merged((*ranges, *down, *up))
