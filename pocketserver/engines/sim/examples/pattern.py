"""Reads a regular expression into an expression of the algebra.

The dialect is that of llguidance (Rust's `regex` without look-around, back-references and word boundaries), so that the
simulator refuses what a device refuses. Anchors are characters here: see `characters.BEGIN`.
"""

from dataclasses import dataclass, replace

from pocketserver.engines.sim.examples import character_class as classes
from pocketserver.engines.sim.examples.character_class import CharacterClass, exactly
from pocketserver.engines.sim.examples.characters import BEGIN, END
from pocketserver.engines.sim.examples.regex import Algebra, Node

MAX_LENGTH = 20_000
MAX_NESTING = 100

_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a"}
_ANCHORS = {"A": BEGIN, "z": END}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_BOUNDARIES = frozenset("bB<>")


class PatternFault(Exception):  # noqa: N818 - it says what is wrong with the pattern
    """Why a pattern cannot be followed, as the end of a sentence."""


@dataclass(frozen=True, slots=True)
class _Flags:
    without_case: bool = False
    dot_is_all: bool = False


def read_pattern(text: str, algebra: Algebra) -> Node:
    """The language of the pattern itself, neither anchored nor searched. Raises PatternFault, TooComplicated."""
    if len(text) > MAX_LENGTH:
        raise PatternFault(f"is longer than {MAX_LENGTH:,} characters")
    return _Reader(text, algebra).whole()


class _Reader:
    def __init__(self, text: str, algebra: Algebra) -> None:
        self._text = text
        self._at = 0
        self._algebra = algebra
        self._flags = _Flags()
        self._nesting = 0

    def whole(self) -> Node:
        node = self._alternatives()
        if self._at < len(self._text):
            raise PatternFault("closes a group that was not opened")
        return node

    def _alternatives(self) -> Node:
        flags = self._flags
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        self._flags = flags
        return self._algebra.either(options)

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._at < len(self._text) and self._peek() not in "|)":
            node = self._repeated(self._atom())
            if not (parts and node is parts[-1] and _is_anchor(node)):  # `^^` is one anchor
                parts.append(node)
        return self._algebra.sequence(parts)

    def _repeated(self, node: Node) -> Node:
        while (bounds := self._bounds()) is not None:
            self._take("?")
            if _is_anchor(node):
                raise PatternFault("repeats an anchor")
            node = self._algebra.repeat(node, *bounds)
        return node

    def _bounds(self) -> tuple[int, int | None] | None:
        simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if self._peek() in simple:
            return simple[self._next()]
        if not self._take("{"):
            return None
        low, comma, high = self._until("}").partition(",")
        least = _count(low)
        most = least if not comma else _count(high) if high.strip() else None
        if most is not None and most < least:
            raise PatternFault("repeats at least more often than at most")
        return least, most

    def _atom(self) -> Node:
        letter = self._next()
        match letter:
            case "(":
                return self._group()
            case "[":
                return self._characters(self._bracket())
            case "\\":
                return self._escaped()
            case ".":
                return self._characters(classes.EVERYTHING if self._flags.dot_is_all else classes.NO_NEWLINE)
            case "^" | "$":
                return self._mark(BEGIN if letter == "^" else END)
            case "*" | "+" | "?" | "{":
                raise PatternFault(f"has nothing to repeat before {letter!r}")
            case _:
                return self._characters(_one(letter))

    def _group(self) -> Node:
        outer = self._flags
        if self._take("?") and self._group_head():
            return self._algebra.empty
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise PatternFault(f"is nested more than {MAX_NESTING} groups deep")
        node = self._alternatives()
        self._nesting -= 1
        self._flags = outer
        if not self._take(")"):
            raise PatternFault("has a group that is not closed")
        return node

    def _group_head(self) -> bool:
        """Read what follows `(?`; True when it was only flags, which hold for the rest of the group around."""
        for look in ("=", "!", "<=", "<!", ">", "P=", "#", "("):
            if self._text.startswith(look, self._at):
                raise PatternFault("uses look-around, a back-reference or another group that is not supported")
        if self._take("P<") or self._take("<"):
            self._until(">")
            return False
        return self._flag_letters()

    def _flag_letters(self) -> bool:
        switched_on = True
        while (letter := self._next()) not in ":)":
            if letter == "-":
                switched_on = False
            elif letter == "i":
                self._flags = replace(self._flags, without_case=switched_on)
            elif letter == "s":
                self._flags = replace(self._flags, dot_is_all=switched_on)
            elif letter not in "uUR":
                raise PatternFault(f"uses the flag {letter!r}, which is not supported")
        return letter == ")"

    def _escaped(self) -> Node:
        letter = self._peek()
        if letter in _ANCHORS:
            return self._mark(_ANCHORS[self._next()])
        if letter in _BOUNDARIES:
            raise PatternFault(f"uses the word boundary \\{letter}, which is not supported")
        return self._characters(self._escape())

    def _escape(self) -> CharacterClass:
        letter = self._next()
        if letter in classes.SHORTHANDS:
            return classes.SHORTHANDS[letter]
        if letter in "pP":
            return self._property(negated=letter == "P")
        if letter in _HEX_DIGITS:
            return _one(self._hex(_HEX_DIGITS[letter]))
        if letter in _CONTROLS:
            return _one(_CONTROLS[letter])
        if letter.isdigit() or letter == "k":
            raise PatternFault("uses a back-reference, which is not supported")
        if letter.isalnum() or ord(letter) > 127:
            raise PatternFault(f"uses \\{letter}, which is not supported")
        return _one(letter)

    def _property(self, *, negated: bool) -> CharacterClass:
        name = self._until("}") if self._take("{") else self._next()
        found = classes.unicode_property(name)
        if found is None:
            raise PatternFault(f"uses the Unicode property {name[:40]!r}, which is not known here")
        return ~found if negated else found

    def _hex(self, digits: int) -> str:
        spelled = self._until("}") if self._take("{") else "".join(self._next() for _ in range(digits))
        try:
            letter = chr(int(spelled, 16))
        except (ValueError, OverflowError) as error:
            raise PatternFault("has a character code that does not exist") from error
        if "\ud800" <= letter <= "\udfff":
            raise PatternFault("names half a character (a surrogate)")
        return letter

    def _bracket(self) -> CharacterClass:
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise PatternFault(f"is nested more than {MAX_NESTING} groups deep")
        negated = self._take("^")
        found = _one("]") if self._take("]") else classes.EMPTY
        while not self._take("]"):
            found = self._bracket_part(found)
        self._nesting -= 1
        found = found.without_case() if self._flags.without_case else found
        return ~found if negated else found

    def _bracket_part(self, found: CharacterClass) -> CharacterClass:
        if self._take("&&"):
            return found & self._operand()
        if self._take("--"):
            return found & ~self._operand()
        if self._take("~~"):
            other = self._operand()
            return (found & ~other) | (other & ~found)
        return found | self._bracket_item()

    def _operand(self) -> CharacterClass:
        found = classes.EMPTY
        while self._peek() != "]" and self._text[self._at : self._at + 2] not in {"&&", "--", "~~"}:
            found |= self._bracket_item()
        return found

    def _bracket_item(self) -> CharacterClass:
        if (named := self._posix()) is not None:
            return named
        if self._take("["):
            return self._bracket()
        first = self._bracket_character()
        following = self._text[self._at : self._at + 2]
        if not following.startswith("-") or following in {"-]", "--"}:
            return first
        self._at += 1
        last = self._bracket_character()
        if len(first.sure) != 1 or len(last.sure) != 1 or first != exactly(first.sure) or last != exactly(last.sure):
            return self._loose_range(first, last)
        if first.sure > last.sure:
            raise PatternFault("has a range whose end comes before its beginning")
        return exactly(((first.sure[0][0], last.sure[0][1]),))

    def _loose_range(self, first: CharacterClass, last: CharacterClass) -> CharacterClass:
        """`[\\d-x]`: the hyphen means itself after a class, and is a fault before one."""
        if len(last.sure) != 1 or last != exactly(last.sure):
            raise PatternFault("has a range that ends in a class")
        return first | _one("-") | last

    def _bracket_character(self) -> CharacterClass:
        return self._escape() if self._take("\\") else _one(self._next())

    def _posix(self) -> CharacterClass | None:
        """`[:alpha:]`; with an unknown name it is an ordinary class."""
        stop = self._text.find(":]", self._at)
        if not self._text.startswith("[:", self._at) or stop < 0:
            return None
        found = classes.posix(self._text[self._at + 2 : stop])
        self._at = stop + 2 if found else self._at
        return found

    def _characters(self, found: CharacterClass) -> Node:
        found = found.without_case() if self._flags.without_case else found
        return self._algebra.characters(found.sure)

    def _mark(self, mark: int) -> Node:
        return self._algebra.characters(((mark, mark),))

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1] or "\0"

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise PatternFault("ends too early")
        self._at += 1
        return self._text[self._at - 1]

    def _take(self, expected: str) -> bool:
        if not self._text.startswith(expected, self._at):
            return False
        self._at += len(expected)
        return True

    def _until(self, end: str) -> str:
        stop = self._text.find(end, self._at)
        if stop < 0:
            raise PatternFault(f"misses a {end!r}")
        text = self._text[self._at : stop]
        self._at = stop + len(end)
        return text


def _is_anchor(node: Node) -> bool:
    return node.ranges in {((BEGIN, BEGIN),), ((END, END),)}


def _one(letter: str) -> CharacterClass:
    return exactly(((ord(letter), ord(letter)),))


def _count(text: str) -> int:
    if not text.strip().isascii() or not text.strip().isdigit() or len(text) > 10:
        raise PatternFault("has a repetition count that is not a number")
    return int(text)
