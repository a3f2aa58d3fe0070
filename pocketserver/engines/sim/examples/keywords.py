"""What is wrong with a schema's keywords by themselves, in the cases that the llama engine refuses too."""

from collections.abc import Callable, Mapping

from pocketserver.chat import JsonValue
from pocketserver.engines.sim.examples.demand import Node
from pocketserver.engines.sim.examples.formats import ANYTHING, PATTERNS

_UNFOLLOWED = (
    "not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems", "dependentRequired",
    "dependentSchemas", "dependencies", "propertyNames", "unevaluatedProperties", "unevaluatedItems",
)  # fmt: skip


def _is_count(value: JsonValue) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: JsonValue) -> bool:
    finite = not isinstance(value, float) or value - value == 0
    return isinstance(value, int | float) and not isinstance(value, bool) and finite


def _is_number_or_flag(value: JsonValue) -> bool:
    return isinstance(value, bool) or _is_number(value)


def _is_text(value: JsonValue) -> bool:
    return isinstance(value, str)


def _is_list(value: JsonValue) -> bool:
    return isinstance(value, list)


def _is_known_format(value: JsonValue) -> bool:
    return value == ANYTHING or (isinstance(value, str) and value in PATTERNS)


_NUMBERS, _TEXTS = frozenset({"number", "integer"}), frozenset({"string"})
_LISTS, _OBJECTS = frozenset({"array"}), frozenset({"object"})
_ALL = frozenset({"object", "array", "string", "integer", "number", "boolean", "null"})
_FORMATS = ", ".join(sorted(PATTERNS))

RULES: Mapping[str, tuple[frozenset[str], Callable[[JsonValue], bool], str]] = {
    "enum": (_ALL, _is_list, "must be a list"),
    "anyOf": (_ALL, _is_list, "must be a list"),
    "oneOf": (_ALL, _is_list, "must be a list"),
    "minLength": (_TEXTS, _is_count, "must be a whole number from 0"),
    "maxLength": (_TEXTS, _is_count, "must be a whole number from 0"),
    "minItems": (_LISTS, _is_count, "must be a whole number from 0"),
    "maxItems": (_LISTS, _is_count, "must be a whole number from 0"),
    "minProperties": (_OBJECTS, _is_count, "must be a whole number from 0"),
    "maxProperties": (_OBJECTS, _is_count, "must be a whole number from 0"),
    "minimum": (_NUMBERS, _is_number, "must be a number"),
    "maximum": (_NUMBERS, _is_number, "must be a number"),
    "exclusiveMinimum": (_NUMBERS, _is_number_or_flag, "must be a number"),
    "exclusiveMaximum": (_NUMBERS, _is_number_or_flag, "must be a number"),
    "multipleOf": (_NUMBERS, _is_number, "must be a number"),
    "pattern": (_TEXTS, _is_text, "must be a regular expression as text"),
    "format": (_TEXTS, _is_known_format, f"must be one of {_FORMATS}"),
}
"""Keyword: the kinds of value it speaks of, whether its own value is right, and what it must be."""


def fault_in(node: Node) -> tuple[str, str] | None:
    """The first keyword that cannot be honoured, and why. Keywords for other types than the node's are passed over."""
    for keyword in _UNFOLLOWED:
        if keyword in node:
            return keyword, "is not supported"
    kinds = _kinds(node)
    for keyword, (concerned, is_right, demand) in RULES.items():
        if keyword in node and concerned & kinds and not is_right(node[keyword]):
            return keyword, demand
    return None


def _kinds(node: Node) -> frozenset[str]:
    named = node.get("type", _ALL)
    return frozenset({named} if isinstance(named, str) else named)
