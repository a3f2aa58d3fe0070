"""Objects and arrays of one alternative: which places they have and what each place demands."""

import sys
from collections.abc import Iterator
from itertools import chain

from pocketserver.chat import JsonValue
from pocketserver.engines.sim.examples.admission import item_schemas, property_schemas
from pocketserver.engines.sim.examples.demand import Alternative, Book, Demand
from pocketserver.engines.sim.examples.languages import Languages

_NO_CONSTANT = object()


class Shapes:
    def __init__(self, book: Book, languages: Languages) -> None:
        self._book = book
        self._languages = languages

    def property(self, alternative: Alternative, name: str) -> Demand:
        """What all nodes together demand of a property."""
        found: list[JsonValue] = []
        for node in alternative.nodes:
            found += property_schemas(node, name, self._languages)
            if isinstance(constant := _constant(node), dict):
                found.append(self._book.constant(constant[name]) if name in constant else False)
        return self._book.demand(found)

    def item(self, alternative: Alternative, index: int) -> Demand:
        return self._book.demand(list(item_schemas(node, index + 1))[-1] for node in alternative.nodes)


def constant_of(alternative: Alternative) -> bool:
    """Whether the value is one of a list that the schema spells out."""
    return any("const" in node or "enum" in node for node in alternative.nodes)


def listed(alternative: Alternative) -> tuple[str, ...]:
    """The properties that the schema names, in its order."""
    return tuple(dict.fromkeys(chain.from_iterable(alternative.values("properties"))))


def required(alternative: Alternative) -> tuple[str, ...]:
    """The properties that must be there, those that are described first."""
    constants = (value for node in alternative.nodes if isinstance(value := _constant(node), dict))
    wanted = dict.fromkeys(chain(chain.from_iterable(alternative.values("required")), chain.from_iterable(constants)))
    return tuple(dict.fromkeys([*(name for name in listed(alternative) if name in wanted), *wanted]))


def patterns(alternative: Alternative) -> tuple[str, ...]:
    """The keys of `patternProperties`."""
    return tuple(dict.fromkeys(chain.from_iterable(alternative.values("patternProperties"))))


def counts(alternative: Alternative, of: str) -> tuple[int, int | None]:
    """The least and greatest number of `Items` or `Properties`; None is without end."""
    least, most = max(alternative.values(f"min{of}"), default=0), min(alternative.values(f"max{of}"), default=None)
    return min(least, sys.maxsize), most if most is None else min(most, sys.maxsize)


def described_items(alternative: Alternative) -> int:
    """How many items have a schema of their own; all later ones share one."""
    lists = chain(alternative.values("prefixItems"), alternative.values("items"))
    return max((len(value) for value in lists if isinstance(value, list)), default=0)


def spelled_out(alternative: Alternative) -> Iterator[list[JsonValue]]:
    """The lists of values that `const` and `enum` give."""
    for node in alternative.nodes:
        if "const" in node:
            yield [node["const"]]
        if "enum" in node:
            yield node["enum"]


def _constant(node: dict[str, JsonValue]) -> JsonValue:
    if "const" in node:
        return node["const"]
    values = node.get("enum", ())
    return values[0] if len(values) == 1 else _NO_CONSTANT
