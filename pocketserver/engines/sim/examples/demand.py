"""A schema taken apart: what one value must satisfy, as alternatives without composition keywords.

A `Demand` is a set of schemas that hold together. `Book` knows the whole document: where each schema stands, what a
`$ref` points to, and into which alternatives a demand falls.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from pocketserver.chat import JsonValue
from pocketserver.engines.llama.schema_check import Path, SchemaFault, children, shown
from pocketserver.engines.sim.examples.effort import Effort

Node: TypeAlias = dict[str, JsonValue]
KINDS = ("object", "array", "string", "integer", "number", "boolean", "null")
MAX_ALTERNATIVES = 4_000
_FOLLOWED = ("$ref", "allOf", "oneOf", "$defs", "definitions")


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """Schemas that must all be satisfied. `key` is equal for equal sets."""

    nodes: tuple[Node, ...]
    key: frozenset[int]


@dataclass(frozen=True, slots=True, eq=False)
class Alternative:
    """One way to satisfy a demand: all nodes' own keywords, and one of these kinds (`number` stands for both kinds)."""

    nodes: tuple[Node, ...]
    kinds: tuple[str, ...]

    def values(self, keyword: str) -> Iterator[JsonValue]:
        """What the nodes say under a keyword."""
        return (node[keyword] for node in self.nodes if keyword in node)


@dataclass(slots=True)
class _Unfolding:
    """What is still to be looked at, each with the schemas that led to it, and what holds so far."""

    pending: list[tuple[Node | tuple[Node, ...], frozenset[int]]]
    done: dict[int, Node] = field(default_factory=dict)
    kinds: frozenset[str] = frozenset(KINDS)


class Book:
    """One schema document, already looked over by `schema_check.prepared`."""

    def __init__(self, root: Node, effort: Effort) -> None:
        self.never: Node = {"enum": []}
        self._root = root
        self._effort = effort
        self._places: dict[int, Path] = {}
        self._anchors: dict[str, Node] = {}
        self._bare: dict[int, Node] = {}
        self._constants: dict[int, Node] = {}
        self._found: dict[frozenset[int], tuple[Alternative, ...]] = {}
        self._kept: list[Node] = []
        self._survey(root)

    def place(self, nodes: Iterable[Node], otherwise: str = "#") -> str:
        """Where the first of the schemas stands, as a pointer."""
        return next((shown(self._places[id(node)]) for node in nodes if id(node) in self._places), otherwise)

    def demand(self, schemas: Iterable[JsonValue]) -> Demand:
        """Raises SchemaFault for what is no schema."""
        nodes = {id(node): node for schema in schemas if (node := self._node(schema))}
        return Demand(tuple(nodes.values()), frozenset(nodes))

    def alternatives(self, demand: Demand) -> tuple[Alternative, ...]:
        """The ways to satisfy a demand; none when it is a contradiction in types. At most MAX_ALTERNATIVES."""
        found = self._found.get(demand.key)
        if found is None:
            found = self._found[demand.key] = tuple(self._unfold(demand))
        return found

    def closure(self, demand: Demand) -> tuple[Node, ...]:
        """The nodes that hold without a choice: the demand's own and those behind `$ref` and `allOf`."""
        found: dict[int, Node] = {}
        waiting = list(demand.nodes)
        while waiting:
            node = waiting.pop()
            if id(node) not in found:
                found[id(node)] = node
                waiting.extend(self._followed(node))
        return tuple(found.values())

    def bare(self, node: Node) -> Node:
        """The node without what is followed from it and without `oneOf`, the same object each time."""
        if id(node) not in self._bare:
            made = {key: value for key, value in node.items() if key not in _FOLLOWED}
            self._bare[id(node)] = self._keep(made, node)
        return self._bare[id(node)]

    def constant(self, value: JsonValue) -> Node:
        """A schema that admits that very value (by identity of the object)."""
        if id(value) not in self._constants:
            self._constants[id(value)] = self._keep({"const": value}, self._root)
        return self._constants[id(value)]

    def target(self, node: Node) -> Node:
        """What the node's `$ref` points to. Raises SchemaFault."""
        reference = str(node["$ref"])
        found: JsonValue = self._anchors.get(reference[1:], self._root)
        for part in reference[1:].split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            found = found[int(name)] if isinstance(found, list) else found[name]
        if not isinstance(found, dict | bool):
            raise SchemaFault(f"`$ref` points to {reference[:100]}, which is no schema, at {self.place((node,))}.")
        if isinstance(found, dict) and id(found) not in self._places:
            self._survey(found)
        return self._node(found)

    def _survey(self, root: Node) -> None:
        """Note each schema's place and anchor. `prepared` has limited how deep they are nested."""
        waiting: list[tuple[Path, JsonValue]] = [((), root)]
        while waiting:
            path, node = waiting.pop()
            if isinstance(node, dict):
                self._places.setdefault(id(node), path)
                if isinstance(anchor := node.get("$anchor"), str):
                    self._anchors[anchor] = node
                waiting.extend(children(path, node))

    def _node(self, schema: JsonValue) -> Node:
        if schema is False:
            return self.never
        if schema is not True and not isinstance(schema, dict):
            raise SchemaFault("A schema must be an object, true or false.")
        return {} if schema is True else schema

    def _keep(self, made: Node, origin: Node) -> Node:
        self._kept.append(made)  # its id stands for it, so it must stay
        self._places[id(made)] = self._places.get(id(origin), ())
        return made

    def _followed(self, node: Node) -> list[Node]:
        behind = [self.target(node)] if "$ref" in node else []
        return [found for found in (*behind, *map(self._node, node.get("allOf", ()))) if found]

    def _unfold(self, demand: Demand) -> Iterator[Alternative]:
        stack = [_Unfolding([(node, frozenset()) for node in reversed(demand.nodes)])]
        count = 0
        while stack and count < MAX_ALTERNATIVES:
            self._effort.spend()
            state = stack.pop()
            if not state.pending:
                count += 1
                yield Alternative(tuple(state.done.values()), _shown_kinds(state.kinds))
                continue
            stack.extend(self._advanced(state))

    def _advanced(self, state: _Unfolding) -> Iterable[_Unfolding]:
        """The states after the next pending schema: one after a node, one for each option after a choice."""
        first, above = state.pending.pop()
        if isinstance(first, tuple):
            return [
                _Unfolding([*state.pending, (option, above)], dict(state.done), state.kinds)
                for option in reversed(first)
            ]
        if id(first) in above:
            return ()  # it leads back to itself without a value in between
        if id(first) in state.done:
            return (state,)
        state.done[id(first)] = first
        state.kinds &= _kinds_of(first)
        above |= {id(first)}
        choices = [(tuple(map(self._node, first[key])), above) for key in ("anyOf", "oneOf") if key in first]
        state.pending = [*choices, *state.pending, *((node, above) for node in reversed(self._followed(first)))]
        return (state,) if state.kinds else ()


def _kinds_of(node: Mapping[str, JsonValue]) -> frozenset[str]:
    if "type" not in node:
        return frozenset(KINDS)
    named = node["type"] if isinstance(node["type"], list) else [node["type"]]
    return frozenset([*named, "integer"] if "number" in named else named)


def _shown_kinds(kinds: frozenset[str]) -> tuple[str, ...]:
    return tuple(kind for kind in KINDS if kind in kinds and not (kind == "integer" and "number" in kinds))
