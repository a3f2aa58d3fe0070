"""Refuses what the llama engine refuses, everywhere in a schema that a value could reach, before a value is made."""

from collections.abc import Iterator
from itertools import combinations, islice

from pocketserver.engines.llama.schema_check import SchemaFault
from pocketserver.engines.sim.examples import shapes
from pocketserver.engines.sim.examples.costs import MAX_DEPTH, Costs
from pocketserver.engines.sim.examples.demand import Alternative, Book, Demand, Node
from pocketserver.engines.sim.examples.effort import Effort
from pocketserver.engines.sim.examples.keywords import fault_in
from pocketserver.engines.sim.examples.languages import Languages
from pocketserver.engines.sim.examples.numbers import LARGEST, RangeFault, range_of

_MAX_COMPARED_DEPTH = 8


class Survey:
    def __init__(self, book: Book, languages: Languages, costs: Costs, effort: Effort) -> None:
        self._book = book
        self._languages = languages
        self._costs = costs
        self._effort = effort

    def check(self, root: Demand) -> None:
        """Raises SchemaFault naming keyword and place, TooComplicated.

        Keywords by themselves are checked everywhere, how they go together only where a value can be.
        """
        for visit in (self._words_inside, self._places_inside):
            waiting, seen = [root], {root.key}
            while waiting:
                fresh = {inner.key: inner for inner in visit(waiting.pop()) if inner.key not in seen}
                seen.update(fresh)
                waiting.extend(fresh.values())

    def _words_inside(self, demand: Demand) -> Iterator[Demand]:
        self._check_words(demand)
        for alternative in self._book.alternatives(demand):
            self._effort.spend()
            self._check_patterns(alternative)
            self._check_ranges(alternative)
            if not shapes.constant_of(alternative):
                yield from self._properties(alternative)
                yield from self._items(alternative)

    def _places_inside(self, demand: Demand) -> Iterator[Demand]:
        self._check_choices(demand)
        self._check_reference(demand)
        for _, alternative, kind in self._costs.ways(demand, MAX_DEPTH):
            if kind == "object":
                self._check_object(alternative)
                yield from self._properties(alternative)
            elif kind == "array":
                _, most = shapes.counts(alternative, "Items")
                yield from islice(self._items(alternative), most)

    def _check_words(self, demand: Demand) -> None:
        """Every schema that the demand involves, also those that a contradiction keeps out of the alternatives."""
        waiting, seen = list(demand.nodes), set[int]()
        while waiting:
            node = waiting.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            if fault := fault_in(node):
                self._refuse(node, *fault)
            waiting.extend(self._book.closure(self._book.demand([node])))
            waiting.extend(self._book.demand([*node.get("anyOf", ()), *node.get("oneOf", ())]).nodes)

    def _check_reference(self, demand: Demand) -> None:
        """A `$ref` alone is not looked behind before it is needed; there, a contradiction is a fault."""
        node = demand.nodes[0] if len(demand.nodes) == 1 else {}
        if "$ref" not in node or self._costs.least(demand, MAX_DEPTH) is not None:
            return
        if self._costs.is_settled(demand):
            raise SchemaFault(f"Unsatisfiable schema: no value satisfies `$ref`, at {self._book.place((node,))}.")

    def _check_patterns(self, alternative: Alternative) -> None:
        for node in alternative.nodes:
            if "string" in alternative.kinds and "pattern" in node:
                self._read_patterns(node, "pattern", [node["pattern"]])
            if "object" in alternative.kinds:
                self._read_patterns(node, "patternProperties", list(node.get("patternProperties", ())))

    def _check_ranges(self, alternative: Alternative) -> None:
        for kind in {"number", "integer"} & set(alternative.kinds):
            self._check_range(alternative, whole=kind == "integer")

    def _check_object(self, alternative: Alternative) -> None:
        for first, second in combinations(shapes.patterns(alternative), 2):
            if self._languages.overlap(first, second):
                reason = f"has patterns that are not disjoint, {first[:80]!r} and {second[:80]!r}"
                self._refuse_in(alternative, "patternProperties", reason)
        least, most = shapes.counts(alternative, "Properties")
        lacking = least > len(shapes.required(alternative))
        if (lacking or most is not None) and self._has_optional(alternative):
            keyword = "minProperties" if lacking else "maxProperties"
            self._refuse_in(alternative, keyword, "is only supported when all listed properties are required")

    def _has_optional(self, alternative: Alternative) -> bool:
        optional = set(shapes.listed(alternative)) - set(shapes.required(alternative))
        demands = (self._costs.shapes.property(alternative, name) for name in optional)
        return any(self._costs.least(demand, MAX_DEPTH) is not None for demand in demands)

    def _check_range(self, alternative: Alternative, *, whole: bool) -> None:
        try:
            range_of(alternative, whole=whole)
        except RangeFault:
            keyword = next(name for name in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
                           if any(True for _ in alternative.values(name)))  # fmt: skip
            self._refuse_in(alternative, keyword, f"reaches {LARGEST:,}, which is too large")

    def _read_patterns(self, node: Node, keyword: str, patterns: list[str]) -> None:
        for pattern in patterns:
            try:
                self._languages.searched(pattern)
            except SchemaFault as fault:
                raise SchemaFault(f"`{keyword}` cannot be followed at {self._book.place((node,))}: {fault}.") from fault

    def _properties(self, alternative: Alternative) -> Iterator[Demand]:
        if "object" not in alternative.kinds:
            return
        for name in sorted({*shapes.listed(alternative), *shapes.required(alternative)}):
            yield self._costs.shapes.property(alternative, name)
        for node in alternative.nodes:
            for schema in (*node.get("patternProperties", {}).values(), node.get("additionalProperties", True)):
                yield self._book.demand([schema])

    def _items(self, alternative: Alternative) -> Iterator[Demand]:
        if "array" in alternative.kinds:
            for index in range(shapes.described_items(alternative) + 1):
                yield self._costs.shapes.item(alternative, index)

    def _check_choices(self, demand: Demand) -> None:
        """`oneOf` is followed only where its options visibly exclude one another."""
        closure = self._book.closure(demand)
        for node in closure:
            if len(node.get("oneOf", ())) < 2:
                continue
            common = [self._book.bare(other) for other in closure]
            options = [self._book.demand([*common, option]) for option in node["oneOf"]]
            possible = [option for option in options if self._costs.least(option, MAX_DEPTH) is not None]
            if not all(self._exclude(first, second) for first, second in combinations(possible, 2)):
                self._refuse(node, "oneOf", "has options that may overlap; use `anyOf`")

    def _exclude(self, first: Demand, second: Demand, depth: int = 0) -> bool:
        """Whether llguidance, too, sees that no value satisfies both."""
        if depth > _MAX_COMPARED_DEPTH:
            return False
        pairs = ((one, other) for one in self._possible(first) for other in self._possible(second))
        return all(self._apart(one, other, depth) for one, other in pairs)

    def _possible(self, demand: Demand) -> list[Alternative]:
        return list(dict.fromkeys(alternative for _, alternative, _ in self._costs.ways(demand, MAX_DEPTH)))

    def _apart(self, first: Alternative, second: Alternative, depth: int) -> bool:
        self._effort.spend()
        kinds = self._live_kinds(first) & self._live_kinds(second)
        if not kinds:
            return True
        if kinds <= {"string", "boolean"}:
            return self._spelled_apart(first, second)
        if kinds != {"object"}:
            return False
        names = {*shapes.required(first), *shapes.required(second)}
        inside = self._costs.shapes.property
        return any(self._exclude(inside(first, name), inside(second, name), depth + 1) for name in sorted(names))

    def _spelled_apart(self, first: Alternative, second: Alternative) -> bool:
        if not (shapes.constant_of(first) and shapes.constant_of(second)):
            return False
        values = [{v for v in self._costs.literals(one) if isinstance(v, str | bool)} for one in (first, second)]
        return values[0].isdisjoint(values[1])

    def _live_kinds(self, alternative: Alternative) -> set[str]:
        """The kinds of value it has, numbers as one kind."""
        if shapes.constant_of(alternative):
            return {_kind_of(value) for value in self._costs.literals(alternative)}
        return {"number" if kind == "integer" else kind for kind in alternative.kinds}

    def _refuse_in(self, alternative: Alternative, keyword: str, reason: str) -> None:
        self._refuse(next(node for node in alternative.nodes if keyword in node), keyword, reason)

    def _refuse(self, node: Node, keyword: str, reason: str) -> None:
        raise SchemaFault(f"`{keyword}` {reason}, at {self._book.place((node,))}.")


def _kind_of(value: object) -> str:
    kinds = ((bool, "boolean"), (str, "string"), (dict, "object"), (list, "array"), (int | float, "number"))
    return next((kind for known, kind in kinds if isinstance(value, known)), "null")
