"""From a JSON Schema to a value that it admits."""

from collections.abc import Iterator, Mapping

from pocketserver.chat import JsonValue
from pocketserver.engines.llama.schema_check import SchemaFault, prepared
from pocketserver.engines.sim.examples import shapes
from pocketserver.engines.sim.examples.admission import Admission
from pocketserver.engines.sim.examples.costs import MAX_CHARACTERS, MAX_DEPTH, Costs
from pocketserver.engines.sim.examples.demand import Alternative, Book, Demand
from pocketserver.engines.sim.examples.effort import Effort, TooComplicated
from pocketserver.engines.sim.examples.languages import Languages
from pocketserver.engines.sim.examples.survey import Survey
from pocketserver.engines.sim.examples.writer import Writer

_TRIES = 5
_ANNOTATIONS = frozenset(
    {"$schema", "$id", "$anchor", "$comment", "$defs", "definitions", "title", "description", "default", "examples"}
)


def value_for(schema: Mapping[str, JsonValue] | bool, seed: str) -> JsonValue:
    """One value that the schema admits; the same seed makes the same value. Raises SchemaFault for what cannot be."""
    try:
        return _Maker(prepared(schema)).make(seed)
    except (TooComplicated, RecursionError) as error:
        raise SchemaFault("The schema is too complicated to find a value for; make it smaller.") from error


class _Maker:
    def __init__(self, root: dict[str, JsonValue]) -> None:
        effort = Effort()
        self._root = root
        self._book = Book(root, effort)
        self._languages = Languages(effort)
        self._admission = Admission(self._book, self._languages, effort)
        self._costs = Costs(self._book, self._languages, self._admission, effort)
        self._survey = Survey(self._book, self._languages, self._costs, effort)

    def make(self, seed: str) -> JsonValue:
        demand = self._book.demand([self._root])
        self._survey.check(demand)
        self._check_length(demand)
        for attempt in range(_TRIES):
            value = Writer(self._costs, self._languages, f"{seed}:{attempt}").value(demand, MAX_DEPTH)
            if self._admission.admits(self._root, value):
                return value
        raise TooComplicated

    def _check_length(self, demand: Demand) -> None:
        least = self._costs.least(demand, MAX_DEPTH)
        if least is None:
            raise SchemaFault(self._blame(demand))
        if least > MAX_CHARACTERS:
            reason = f"The shortest value that the schema allows has more than {MAX_CHARACTERS:,} characters"
            raise SchemaFault(f"{reason}; lower `minLength`, `minItems` or `minProperties`.")

    def _blame(self, demand: Demand) -> str:
        """Which schema no value satisfies, as a sentence: the innermost that makes those around it impossible."""
        if self._costs.recursion_met:
            return (
                "Unsatisfiable schema: its required parts contain one another without end, so no value can be finished."
            )
        label, place = "the value", self._book.place(demand.nodes)
        while found := self._impossible_part(demand):
            label, demand = found
            place = self._book.place(self._book.closure(demand), place)
        if any(node is self._book.never for node in demand.nodes):
            return f"Unsatisfiable schema: {label} is required, but no value is allowed there, at {place}."
        return f"Unsatisfiable schema: no value satisfies {self._words(demand)}, for {label}, at {place}."

    def _words(self, demand: Demand) -> str:
        words = {word for node in self._book.closure(demand) for word in node} - _ANNOTATIONS
        return ", ".join(f"`{word}`" for word in sorted(words)[:8])

    def _impossible_part(self, demand: Demand) -> tuple[str, Demand] | None:
        for alternative in self._book.alternatives(demand):
            for label, part in self._parts(alternative):
                if self._costs.least(part, MAX_DEPTH) is None:
                    return label, part
        return None

    def _parts(self, alternative: Alternative) -> Iterator[tuple[str, Demand]]:
        """What must be inside, with a name for it."""
        if shapes.constant_of(alternative):
            return
        if "object" in alternative.kinds:
            for name in shapes.required(alternative):
                yield f"the property {name[:80]!r}", self._costs.shapes.property(alternative, name)
        if "array" in alternative.kinds:
            least, _ = shapes.counts(alternative, "Items")
            for index in range(min(least, shapes.described_items(alternative) + 1)):
                yield f"item {index}", self._costs.shapes.item(alternative, index)
