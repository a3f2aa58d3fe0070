"""How long the shortest value of a demand is: the way to values that end, and to those that would never."""

import json
import random
from collections.abc import Iterator
from itertools import count, islice

from pocketserver.chat import JsonValue
from pocketserver.engines.sim.examples import shapes
from pocketserver.engines.sim.examples.admission import Admission
from pocketserver.engines.sim.examples.demand import Alternative, Book, Demand
from pocketserver.engines.sim.examples.effort import Effort, TooComplicated
from pocketserver.engines.sim.examples.languages import Languages, lengths
from pocketserver.engines.sim.examples.numbers import number, range_of
from pocketserver.engines.sim.examples.shapes import Shapes

MAX_DEPTH = 64
MAX_CHARACTERS = 100_000
LITERAL = "literal"
"""Beside the kinds of JSON value: one of the values that the schema spells out."""

_PLAIN = {"null": 4, "boolean": 4, "number": 3, "integer": 3}
_MAX_INVENTED, _MAX_PATTERNED = 500, 50
_MAX_TRIED_NAMES = 20


class Costs:
    """Lengths in characters, roughly; None where there is no value within the depth."""

    def __init__(self, book: Book, languages: Languages, admission: Admission, effort: Effort) -> None:
        self.shapes = Shapes(book, languages)
        self.recursion_met = False
        self._book = book
        self._languages = languages
        self._admission = admission
        self._effort = effort
        self._exact: dict[frozenset[int], int | None] = {}
        self._limited: dict[tuple[frozenset[int], int], int | None] = {}
        self._literals: dict[Alternative, list[JsonValue]] = {}
        self._names: dict[Alternative, list[str]] = {}

    def least(self, demand: Demand, depth: int) -> int | None:
        """The length of the shortest value that is nested at most so deep."""
        if demand.key in self._exact:
            return self._exact[demand.key]
        if depth == 0 or (demand.key, depth) in self._limited:
            self.recursion_met = True
            return self._limited.get((demand.key, depth))
        outside, self.recursion_met = self.recursion_met, False
        found = min((cost for cost, _, _ in self.ways(demand, depth)), default=None)
        if self.recursion_met:
            self._limited[demand.key, depth] = found
        else:
            self._exact[demand.key] = found
        self.recursion_met |= outside
        return found

    def is_settled(self, demand: Demand) -> bool:
        """Whether what is known of the demand holds for any depth."""
        return demand.key in self._exact

    def ways(self, demand: Demand, depth: int) -> list[tuple[int, Alternative, str]]:
        """Each way to satisfy the demand, with its least length."""
        found = []
        for alternative in self._book.alternatives(demand):
            kinds = (LITERAL,) if shapes.constant_of(alternative) else alternative.kinds
            for kind in kinds:
                self._effort.spend()
                if (cost := self._cost(alternative, kind, depth)) is not None:
                    found.append((cost, alternative, kind))
        return found

    def literals(self, alternative: Alternative) -> list[JsonValue]:
        """The spelled-out values that satisfy all the rest too."""
        if alternative not in self._literals:
            values = min(shapes.spelled_out(alternative), key=len)
            nodes = [self._without(node, values) for node in alternative.nodes]
            self._literals[alternative] = [
                value for value in values if all(self._admission.admits(node, value) for node in nodes)
            ]
        return self._literals[alternative]

    def fillers(self, alternative: Alternative, depth: int) -> list[str] | None:
        """Names beyond the required ones that `minProperties` makes necessary; None when there are not enough."""
        taken = shapes.required(alternative)
        missing = shapes.counts(alternative, "Properties")[0] - len(taken)
        if missing <= 0:
            return []
        optional = [name for name in shapes.listed(alternative) if name not in taken]
        usable = (name for name in optional if self._fits(alternative, name, depth))
        found = list(islice(usable, missing))
        found += self._invented(alternative, depth, missing - len(found))
        return found if len(found) == missing else None

    def _without(self, node: dict[str, JsonValue], values: list[JsonValue]) -> dict[str, JsonValue]:
        """The node's own keywords; the list that the values come from is not asked again."""
        bare = self._book.bare(node)
        return {key: value for key, value in bare.items() if not (key == "enum" and value is values)}

    def _cost(self, alternative: Alternative, kind: str, depth: int) -> int | None:
        match kind:
            case "object":
                return self._object(alternative, depth)
            case "array":
                return self._array(alternative, depth)
            case "string":
                return self._text(alternative)
            case "number" | "integer":
                found = number(range_of(alternative, whole=kind == "integer"), _fixed())
                return None if found is None else len(str(found))
            case "literal":
                return min((len(json.dumps(value)) for value in self.literals(alternative)), default=None)
            case _:
                return _PLAIN[kind]

    def _text(self, alternative: Alternative) -> int | None:
        least, most = lengths(alternative)
        if least > MAX_CHARACTERS and (most is None or most >= least):
            return least
        found = self._languages.text(alternative, _fixed())
        return None if found is None else least + 2

    def _array(self, alternative: Alternative, depth: int) -> int | None:
        least, most = shapes.counts(alternative, "Items")
        if most is not None and least > most:
            return None
        described = shapes.described_items(alternative)
        total = 2
        for index in range(min(least, described)):
            cost = self.least(self.shapes.item(alternative, index), depth - 1)
            if cost is None:
                return None
            total += cost + 2
        return total if least <= described else self._with_rest(alternative, depth, total, least - described)

    def _with_rest(self, alternative: Alternative, depth: int, total: int, others: int) -> int | None:
        rest = self.shapes.item(alternative, shapes.described_items(alternative))
        cost = self.least(rest, depth - 1)
        return None if cost is None else total + others * (cost + 2)

    def _object(self, alternative: Alternative, depth: int) -> int | None:
        names = shapes.required(alternative)
        _, most = shapes.counts(alternative, "Properties")
        total = 2
        for name in names:
            cost = self.least(self.shapes.property(alternative, name), depth - 1)
            if cost is None:
                return None
            total += cost + len(name) + 6
        more = self.fillers(alternative, depth)
        if more is None or (most is not None and len(names) + len(more) > most):
            return None
        return total + sum(self._place(alternative, name, depth) for name in more)

    def _place(self, alternative: Alternative, name: str, depth: int) -> int:
        return (self.least(self.shapes.property(alternative, name), depth - 1) or 0) + len(name) + 6

    def _fits(self, alternative: Alternative, name: str, depth: int) -> bool:
        return self.least(self.shapes.property(alternative, name), depth - 1) is not None

    def _invented(self, alternative: Alternative, depth: int, wanted: int) -> list[str]:
        """Names that the schema does not list but allows, always the same ones."""
        if wanted > _MAX_INVENTED:
            raise TooComplicated
        if wanted > 0 and alternative not in self._names:
            plain = (f"extra_{number}" for number in count(1))
            self._names[alternative] = self._usable(alternative, depth, plain, wanted)
            if len(self._names[alternative]) < wanted:
                self._names[alternative] = self._patterned(alternative, depth, wanted)
        return self._names.get(alternative, [])[: max(wanted, 0)]

    def _usable(self, alternative: Alternative, depth: int, names: Iterator[str], wanted: int) -> list[str]:
        """So many of the names as may be used; the search ends when the first few may not."""
        known = set(shapes.listed(alternative)) | set(shapes.required(alternative))
        tried = islice((name for name in names if name not in known), wanted + _MAX_TRIED_NAMES)
        return list(islice((name for name in tried if self._fits(alternative, name, depth)), wanted))

    def _patterned(self, alternative: Alternative, depth: int, wanted: int) -> list[str]:
        """Names that `patternProperties` finds."""
        if wanted > _MAX_PATTERNED and shapes.patterns(alternative):
            raise TooComplicated
        unwanted = [*shapes.listed(alternative), *shapes.required(alternative)]
        found: list[str] = []
        for pattern in shapes.patterns(alternative):
            while len(found) < wanted:
                name = self._languages.name([pattern], [*unwanted, *found], _fixed())
                if name is None or not self._fits(alternative, name, depth):
                    break
                found.append(name)
        return found


def _fixed() -> random.Random:
    return random.Random(0)  # noqa: S311 - repeatable on purpose
