"""Regular languages by derivatives: what remains to be read after a character. Intersection and complement are exact.

Rules: a node is made only by an `Algebra`, which makes equal nodes once; so nodes are compared by identity and nothing
walks a whole expression twice. J. Brzozowski, Derivatives of Regular Expressions (1964).
"""

from collections.abc import Iterable
from enum import Enum, auto
from itertools import pairwise

from pocketserver.engines.sim.examples.characters import BEGIN, END, EVERY, EVERY_AND_ENDS, Ranges, contains
from pocketserver.engines.sim.examples.effort import Effort


class Kind(Enum):
    CHARACTER = auto()
    EMPTY_TEXT = auto()
    SEQUENCE = auto()
    EITHER = auto()
    BOTH = auto()
    NOT = auto()
    REPEAT = auto()


class Node:
    """One expression. `nullable` says whether it matches the empty text; `most` None is without end."""

    __slots__ = ("cuts", "kind", "least", "most", "nullable", "parts", "ranges")

    def __init__(
        self, kind: Kind, parts: tuple["Node", ...], ranges: Ranges, least: int, most: int | None, *, nullable: bool
    ) -> None:
        self.kind = kind
        self.parts = parts
        self.ranges = ranges
        self.least = least
        self.most = most
        self.nullable = nullable
        self.cuts = _cuts(self)


class Algebra:
    """Makes expressions and takes them apart. Raises TooComplicated when the effort is used up."""

    def __init__(self, effort: Effort) -> None:
        self._effort = effort
        self._made: dict[tuple[object, ...], Node] = {}
        self._derived: dict[tuple[Node, int], Node] = {}
        self.nothing = self.characters(())
        self.empty = self._node(Kind.EMPTY_TEXT, nullable=True)
        self.anything = self.repeat(self.characters(EVERY_AND_ENDS), 0, None)

    def characters(self, ranges: Ranges) -> Node:
        return self._node(Kind.CHARACTER, ranges=ranges, nullable=False)

    def text(self, text: str) -> Node:
        return self.sequence([self.characters(((ord(letter), ord(letter)),)) for letter in text])

    def sequence(self, parts: Iterable[Node]) -> Node:
        tail = self.empty
        for part in reversed(list(parts)):
            tail = self._then(part, tail)
        return tail

    def either(self, options: Iterable[Node]) -> Node:
        parts = set(_flat(Kind.EITHER, options)) - {self.nothing}
        if self.anything in parts:
            return self.anything
        if len(parts) < 2:
            return parts.pop() if parts else self.nothing
        return self._node(Kind.EITHER, _ordered(parts), nullable=any(part.nullable for part in parts))

    def both(self, demands: Iterable[Node]) -> Node:
        parts = set(_flat(Kind.BOTH, demands)) - {self.anything}
        if self.nothing in parts:
            return self.nothing
        if len(parts) < 2:
            return parts.pop() if parts else self.anything
        return self._node(Kind.BOTH, _ordered(parts), nullable=all(part.nullable for part in parts))

    def negation(self, node: Node) -> Node:
        if node is self.nothing:
            return self.anything
        if node is self.anything:
            return self.nothing
        return self._node(Kind.NOT, (node,), nullable=not node.nullable)

    def repeat(self, node: Node, least: int, most: int | None) -> Node:
        if (
            most == 0
            or node.kind is Kind.EMPTY_TEXT
            or (not least and node.ranges == () and node.kind is Kind.CHARACTER)
        ):
            return self.empty
        if (least, most) == (1, 1) or (node.ranges == () and node.kind is Kind.CHARACTER):
            return node
        return self._node(Kind.REPEAT, (node,), least=least, most=most, nullable=least == 0 or node.nullable)

    def any_text(self, least: int = 0, most: int | None = None) -> Node:
        """All texts of that many characters, without the marks of beginning and end."""
        return self.repeat(self.characters(EVERY), least, most)

    def whole(self, node: Node) -> Node:
        """The text, between its marks, is matched from beginning to end; anchors inside are allowed."""
        begin, end = (self.characters(((mark, mark),)) for mark in (BEGIN, END))
        framed = self.sequence([begin, self.any_text(), end])
        free = self.sequence([self.repeat(begin, 0, 1), node, self.repeat(end, 0, 1)])
        return self.both([framed, free])

    def inside(self, node: Node) -> Node:
        """Some part of the text is matched, as the keyword `pattern` asks."""
        return self.both([self.whole(self.any_text()), self.sequence([self.anything, node, self.anything])])

    def derive(self, node: Node, code: int) -> Node:
        """What must follow after that character."""
        known = self._derived.get((node, code))
        if known is None:
            self._effort.spend()
            known = self._derived[node, code] = self._derive(node, code)
        return known

    def steps(self, node: Node) -> dict[Node, Ranges]:
        """Each expression that can follow, with the characters that lead to it. Marks of the end are left out."""
        found: dict[Node, list[tuple[int, int]]] = {}
        self._effort.spend()
        edges = sorted({0, 0xD800, 0xE000, BEGIN, *(cut for cut in node.cuts if cut < BEGIN)})
        for low, after in pairwise(edges):
            if low != 0xD800 and (rest := self.derive(node, low)) is not self.nothing:
                found.setdefault(rest, []).append((low, after - 1))
        return {rest: tuple(ranges) for rest, ranges in found.items()}

    def matches(self, node: Node, text: str) -> bool:
        """Whether a framed language (`whole`, `inside`) has the text."""
        for code in (BEGIN, *map(ord, text), END):
            node = self.derive(node, code)
        return node.nullable

    def _derive(self, node: Node, code: int) -> Node:  # noqa: PLR0911 - one return a kind
        match node.kind:
            case Kind.CHARACTER:
                return self.empty if contains(node.ranges, code) else self.nothing
            case Kind.EMPTY_TEXT:
                return self.nothing
            case Kind.SEQUENCE:
                first, rest = node.parts
                head = self._then(self.derive(first, code), rest)
                return self.either([head, self.derive(rest, code)]) if first.nullable else head
            case Kind.EITHER:
                return self.either([self.derive(part, code) for part in node.parts])
            case Kind.BOTH:
                return self.both([self.derive(part, code) for part in node.parts])
            case Kind.NOT:
                return self.negation(self.derive(node.parts[0], code))
            case Kind.REPEAT:
                most = None if node.most is None else node.most - 1
                again = self.repeat(node.parts[0], max(node.least - 1, 0), most)
                return self._then(self.derive(node.parts[0], code), again)

    def _then(self, first: Node, rest: Node) -> Node:
        if first is self.nothing or rest is self.nothing:
            return self.nothing
        if first is self.empty or rest is self.empty:
            return rest if first is self.empty else first
        if first.kind is Kind.SEQUENCE:
            return self._then(first.parts[0], self._then(first.parts[1], rest))
        return self._node(Kind.SEQUENCE, (first, rest), nullable=first.nullable and rest.nullable)

    def _node(
        self,
        kind: Kind,
        parts: tuple[Node, ...] = (),
        *,
        ranges: Ranges = (),
        least: int = 0,
        most: int | None = None,
        nullable: bool,
    ) -> Node:
        key = (kind, parts, ranges, least, most)
        found = self._made.get(key)
        if found is None:
            self._effort.spend(1 + len(parts) // 4)
            found = self._made[key] = Node(kind, parts, ranges, least, most, nullable=nullable)
        return found


def _flat(kind: Kind, nodes: Iterable[Node]) -> Iterable[Node]:
    for node in nodes:
        yield from node.parts if node.kind is kind else (node,)


def _ordered(parts: set[Node]) -> tuple[Node, ...]:
    return tuple(sorted(parts, key=id))


def _cuts(node: Node) -> frozenset[int]:
    """Code points at which the derivative may change: between two of them it is the same."""
    if node.kind is Kind.CHARACTER:
        return frozenset(edge for low, high in node.ranges for edge in (low, high + 1))
    if node.kind is Kind.SEQUENCE and not node.parts[0].nullable:
        return node.parts[0].cuts
    return frozenset[int]().union(*(part.cuts for part in node.parts))
