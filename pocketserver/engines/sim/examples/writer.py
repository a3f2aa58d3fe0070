"""Makes a value of a demand: by chance where there is a choice, the shortest where there is no room."""

import random

from pocketserver.chat import JsonValue
from pocketserver.engines.sim.examples import shapes
from pocketserver.engines.sim.examples.costs import MAX_DEPTH, Costs
from pocketserver.engines.sim.examples.demand import Alternative, Demand
from pocketserver.engines.sim.examples.languages import Languages
from pocketserver.engines.sim.examples.numbers import number, range_of

SPARE_CHARACTERS = 1_500
"""How much longer than the shortest value an example may be."""
ROOMY_LEVELS = 12
"""Deeper inside, only what must be is written."""
_MORE_ITEMS = 3
_OPTIONAL_CHANCE = 0.75
_HINTS = {
    "object": ("properties", "required", "additionalProperties", "patternProperties", "minProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "string": ("pattern", "format", "minLength", "maxLength"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
"""Keywords that tell which kind is meant where the schema names no type."""


class Writer:
    def __init__(self, costs: Costs, languages: Languages, seed: str) -> None:
        self._costs = costs
        self._languages = languages
        self._chosen = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self._spare = SPARE_CHARACTERS

    def value(self, demand: Demand, depth: int) -> JsonValue:
        """A value nested at most so deep. `costs.least` must have found one."""
        ways = self._costs.ways(demand, depth)
        cheapest = min(cost for cost, _, _ in ways)
        spare = self._spare if depth > MAX_DEPTH - ROOMY_LEVELS else 0
        affordable = [way for way in ways if way[0] - cheapest <= spare]
        cost, alternative, kind = self._preferred(affordable)
        self._spare -= cost - cheapest
        return self._made(alternative, kind, depth)

    def _preferred(self, ways: list[tuple[int, Alternative, str]]) -> tuple[int, Alternative, str]:
        telling = [way for way in ways if way[2] != "null"]
        ways = telling if telling and self._chosen.random() < 0.9 else ways
        alternative = self._chosen.choice(list(dict.fromkeys(way[1] for way in ways)))
        same = [way for way in ways if way[1] is alternative]
        hinted = [way for way in same if _is_hinted(alternative, way[2])]
        if hinted:
            return hinted[0]
        nested = [way for way in same if way[2] not in {"object", "array"}]
        return self._chosen.choice(nested or same)

    def _made(self, alternative: Alternative, kind: str, depth: int) -> JsonValue:  # noqa: PLR0911 - one return a kind
        match kind:
            case "object":
                return self._object(alternative, depth)
            case "array":
                return self._array(alternative, depth)
            case "string":
                return self._languages.text(alternative, self._chosen)
            case "number" | "integer":
                return number(range_of(alternative, whole=kind == "integer"), self._chosen)
            case "boolean":
                return self._chosen.random() < 0.5
            case "literal":
                value = self._chosen.choice(self._costs.literals(alternative))
                return int(value) if isinstance(value, float) and "number" not in alternative.kinds else value
            case _:
                return None

    def _object(self, alternative: Alternative, depth: int) -> dict[str, JsonValue]:
        wanted = {*shapes.required(alternative), *(self._costs.fillers(alternative, depth) or ())}
        names = list(dict.fromkeys([*shapes.listed(alternative), *shapes.required(alternative), *sorted(wanted)]))
        _, most = shapes.counts(alternative, "Properties")
        left = len(names) if most is None else most - len(wanted)
        made: dict[str, JsonValue] = {}
        for name in names:
            demand = self._costs.shapes.property(alternative, name)
            if name not in wanted:
                if left <= 0 or not self._afford(demand, depth, len(name) + 6):
                    continue
                left -= 1
            made[name] = self.value(demand, depth - 1)
        return made

    def _array(self, alternative: Alternative, depth: int) -> list[JsonValue]:
        least, most = shapes.counts(alternative, "Items")
        wished = max(least, self._chosen.randint(1, _MORE_ITEMS), shapes.described_items(alternative))
        made: list[JsonValue] = []
        for index in range(wished if most is None else min(wished, most)):
            demand = self._costs.shapes.item(alternative, index)
            if index >= least and not self._afford(demand, depth, 2, chance=1.0):
                break
            made.append(self.value(demand, depth - 1))
        return made

    def _afford(self, demand: Demand, depth: int, around: int, chance: float = _OPTIONAL_CHANCE) -> bool:
        """Whether something optional is written too; it is then paid for."""
        if depth <= MAX_DEPTH - ROOMY_LEVELS:
            return False
        cost = self._costs.least(demand, depth - 1)
        if self._chosen.random() > chance or cost is None or cost + around > self._spare:
            return False
        self._spare -= cost + around
        return True


def _is_hinted(alternative: Alternative, kind: str) -> bool:
    words = _HINTS.get("number" if kind == "integer" else kind, ())
    return any(word in node for node in alternative.nodes for word in words)
