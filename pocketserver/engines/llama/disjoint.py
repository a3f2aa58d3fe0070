"""Whether two JSON Schemas can never hold for the same value, as far as their words show it.

llguidance takes `oneOf` only where its options exclude one another, and does not look behind a `$ref` for that.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pocketserver.chat import JsonValue

Node: TypeAlias = Mapping[str, JsonValue]

_ALL_TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
_DEPTH = 8
_MOST_COMPARISONS = 5_000
_INDEX = re.compile("[0-9]{1,9}")
"""A place in a list; Python would read more digits than ASCII has, and refuse thousands of them."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """What one schema object says by itself. `values` holds the sets of values that it allows, where it names them."""

    node: Node
    types: frozenset[str]
    values: Sequence[frozenset[str]]


class Disjointness:
    """Answers for schemas inside one document, `root`, where `$ref` points. What takes too long is not proven."""

    def __init__(self, root: Node) -> None:
        self._root = root
        self._left = _MOST_COMPARISONS
        self._known: dict[int, _Facts] = {}  # by identity, which lasts as long as the node that is kept here

    def all_apart(self, common: Node, options: Sequence[JsonValue]) -> bool:
        """True when no value holds for two of the options, each taken together with `common`."""
        wholes = [{"allOf": [common, option]} for option in options]
        return all(self.apart(left, right) for at, left in enumerate(wholes) for right in wholes[:at])

    def apart(self, left: JsonValue, right: JsonValue, depth: int = 0) -> bool:
        """True when no value holds for both."""
        self._left -= 1
        if self._left < 0 or depth > _DEPTH:
            return False
        ours, theirs = self._parts(left), self._parts(right)
        facts = [self._facts(part) for part in ours], [self._facts(part) for part in theirs]
        common = _ALL_TYPES.intersection(*(fact.types for side in facts for fact in side))
        return (
            not common
            or any(one.isdisjoint(two) for one in _values(facts[0]) for two in _values(facts[1]))
            or self._options_apart(ours, right, depth)
            or self._options_apart(theirs, left, depth)
            or (common == {"object"} and self._members_apart(ours, theirs, depth))
        )

    def _options_apart(self, parts: Sequence[Node], other: JsonValue, depth: int) -> bool:
        """True when each option of some choice among the parts is apart from the other schema."""
        choices = [part[word] for part in parts for word in ("anyOf", "oneOf") if isinstance(part.get(word), list)]
        return any(all(self.apart(option, other, depth + 1) for option in options) for options in choices)

    def _members_apart(self, ours: Sequence[Node], theirs: Sequence[Node], depth: int) -> bool:
        """True when a member that must be there cannot be what both sides want of it."""
        return any(
            any(self.apart(one, two, depth + 1) for one in _member(ours, name) for two in _member(theirs, name))
            or (name in _required(ours) and _forbids(theirs, name))
            or (name in _required(theirs) and _forbids(ours, name))
            for name in sorted(_required(ours) | _required(theirs))
        )

    def _facts(self, node: Node) -> _Facts:
        if id(node) not in self._known:
            self._known[id(node)] = _facts_of(node)
        return self._known[id(node)]

    def _parts(self, schema: JsonValue) -> list[Node]:
        """Everything that holds at once: the schema, what it refers to, and all parts of its `allOf`."""
        found: list[Node] = []
        waiting, seen = [schema], set[int]()
        while waiting:
            node = waiting.pop()
            if node is False:
                node = {"enum": []}
            if not isinstance(node, Mapping) or id(node) in seen:
                continue
            seen.add(id(node))
            found.append(node)
            if isinstance(node.get("allOf"), list):
                waiting.extend(node["allOf"])
            if "$ref" in node:
                waiting.append(pointed(self._root, node["$ref"]))
        return found


def pointed(root: JsonValue, reference: JsonValue) -> JsonValue:
    """What a `$ref` inside a document points to; None where that is nothing."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    node = root
    for part in reference[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, list) and _INDEX.fullmatch(name) and int(name) < len(node):
            node = node[int(name)]
        elif isinstance(node, Mapping) and name in node:
            node = node[name]
        else:
            return None
    return node


def _facts_of(node: Node) -> _Facts:
    allowed = _ALL_TYPES
    if "type" in node:
        declared = node["type"] if isinstance(node["type"], list) else [node["type"]]
        names = {name for name in declared if isinstance(name, str)}
        allowed &= names | ({"integer"} if "number" in names else set())
    lists = [[node["const"]]] if "const" in node else []
    if isinstance(node.get("enum"), list):
        lists.append(node["enum"])
    for values in lists:
        allowed &= {name for value in values for name in _types_of(value)}
    try:
        named = [frozenset(map(_canonical, values)) for values in lists]
    except RecursionError:
        named = []
    return _Facts(node, allowed, named)


def _values(facts: Sequence[_Facts]) -> list[frozenset[str]]:
    return [values for fact in facts for values in fact.values]


def _types_of(value: JsonValue) -> tuple[str, ...]:
    if isinstance(value, bool):
        return ("boolean",)
    if isinstance(value, int | float):
        return ("integer", "number") if isinstance(value, int) or value.is_integer() else ("number",)
    kinds = ((str, "string"), (Mapping, "object"), (list, "array"))
    return (next((name for kind, name in kinds if isinstance(value, kind)), "null"),)


def _canonical(value: JsonValue) -> str:
    """Equal text for values that JSON Schema calls equal."""
    return json.dumps(_plain_numbers(value), sort_keys=True)


def _plain_numbers(value: JsonValue) -> JsonValue:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain_numbers(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain_numbers(item) for key, item in value.items()}
    return value


def _required(parts: Sequence[Node]) -> set[str]:
    lists = [part["required"] for part in parts if isinstance(part.get("required"), list)]
    return {name for names in lists for name in names if isinstance(name, str)}


def _member(parts: Sequence[Node], name: str) -> list[JsonValue]:
    """All that the parts say of one member."""
    mappings = [part["properties"] for part in parts if isinstance(part.get("properties"), Mapping)]
    return [mapping[name] for mapping in mappings if name in mapping]


def _forbids(parts: Sequence[Node], name: str) -> bool:
    return any(
        part.get("additionalProperties") is False
        and not part.get("patternProperties")
        and name not in (part.get("properties") or {})
        for part in parts
    )
