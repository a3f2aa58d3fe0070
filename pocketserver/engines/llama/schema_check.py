"""Looks a JSON Schema over before it is compiled: what cannot be honoured or takes too long is named with its place.

A schema is foreign input. The walk keeps its own stack, so that deep nesting costs no recursion.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import TypeAlias

from pocketserver.chat import JsonValue
from pocketserver.engines.llama.disjoint import pointed
from pocketserver.engines.llama.schema_rewrite import rewrite, rewrite_references

MAX_SCHEMA_BYTES = 1024 * 1024
MAX_DEPTH = 60  # llguidance gives up at 62
MAX_PROPERTIES = 2_000  # of one object; so many optional ones cost 20 ms a token
MAX_COMMON_MULTIPLE = 10_000
"""`multipleOf` is compiled to an automaton with so many states; 999,983 takes seconds and hundreds of MB."""
MAX_LEAST = 1_000_000
"""Of `minItems` and the like: no answer is that long, so one that has it would never come."""
MAX_REPEATS = 100_000
"""Of a part of a `pattern`: llguidance fails in the middle of an answer at ten times as many."""

_TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
_NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions")
_LISTED_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE_SCHEMAS = ("items", "additionalProperties")
_UNSUPPORTED = (
    "not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems", "dependentRequired",
    "dependentSchemas", "dependencies", "propertyNames", "unevaluatedProperties", "unevaluatedItems", "$dynamicRef",
    "$recursiveRef", "extends", "disallow", "divisibleBy",
)  # fmt: skip
Path: TypeAlias = tuple[str | int, ...]


class SchemaFault(Exception):  # noqa: N818 - it says what is wrong with the schema
    """A sentence that names the keyword and its place."""


def prepared(schema: Mapping[str, JsonValue] | bool) -> dict[str, JsonValue]:
    """A copy that means the same to llguidance. Raises SchemaFault."""
    if isinstance(schema, bool):
        if not schema:
            raise SchemaFault("The schema `false` allows no value at all.")
        return {}
    copied = _copied(schema)
    multiples: list[int] = []
    for path, node in subschemas(copied):
        rewrite(node, copied)
        _check_node(path, node, copied, multiples)
    rewrite_references(copied, [node for _, node in subschemas(copied)])
    return copied


def subschemas(schema: dict[str, JsonValue]) -> Iterator[tuple[Path, dict[str, JsonValue]]]:
    """Each schema object inside with its path, the whole first."""
    stack: list[tuple[Path, JsonValue]] = [((), schema)]
    while stack:
        path, node = stack.pop()
        if len(path) > 3 * MAX_DEPTH or _depth(path) > MAX_DEPTH:
            raise SchemaFault(f"The schema is nested more than {MAX_DEPTH} levels deep at {shown(path)}.")
        if isinstance(node, dict):
            yield path, node
            stack.extend(reversed(list(children(path, node))))
        elif not isinstance(node, bool):
            raise SchemaFault(f"A schema must be an object, true or false, at {shown(path)}.")


def children(path: Path, node: dict[str, JsonValue]) -> Iterator[tuple[Path, JsonValue]]:
    """The schemas directly inside a schema object."""
    for keyword in _NAMED_SCHEMAS:
        if keyword in node:
            yield from (((*path, keyword, name), value) for name, value in _mapping(path, keyword, node).items())
    for keyword in _LISTED_SCHEMAS:
        if keyword in node:
            yield from (((*path, keyword, index), value) for index, value in enumerate(_list(path, keyword, node)))
    for keyword in _SINGLE_SCHEMAS:
        value = node.get(keyword)
        if isinstance(value, list):
            yield from (((*path, keyword, index), item) for index, item in enumerate(value))
        elif keyword in node:
            yield (*path, keyword), value


def shown(path: Path) -> str:
    """A path as a JSON pointer that begins with `#`, cut to a readable length."""
    text = "#" + "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in path)
    return text if len(text) <= 200 else f"{text[:120]}…{text[-60:]}"


def _depth(path: Path) -> int:
    return sum(1 for part in path if isinstance(part, str) and part in _CONTAINERS)


_CONTAINERS = frozenset({*_NAMED_SCHEMAS, *_LISTED_SCHEMAS, *_SINGLE_SCHEMAS})


def _copied(schema: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    try:
        text = json.dumps(schema, ensure_ascii=False)
    except RecursionError as error:
        raise SchemaFault(f"The schema is nested more than {MAX_DEPTH} levels deep.") from error
    if len(text.encode("utf-8", errors="replace")) > MAX_SCHEMA_BYTES:
        raise SchemaFault(f"The schema is larger than {MAX_SCHEMA_BYTES:,} bytes.")
    copied = json.loads(text)
    assert isinstance(copied, dict)
    return copied


def _check_node(path: Path, node: dict[str, JsonValue], root: dict[str, JsonValue], multiples: list[int]) -> None:
    for keyword in _UNSUPPORTED:
        if keyword in node:
            raise SchemaFault(f"The keyword `{keyword}` is not supported, at {shown((*path, keyword))}.")
    _check_type(path, node)
    properties = node.get("properties")
    if isinstance(properties, dict) and len(properties) > MAX_PROPERTIES:
        raise SchemaFault(f"More than {MAX_PROPERTIES:,} properties in one object, at {shown((*path, 'properties'))}.")
    if "required" in node and not _is_text_list(node["required"]):
        raise SchemaFault(f"`required` must be a list of property names, at {shown((*path, 'required'))}.")
    _check_counts(path, node)
    if "$ref" in node:
        _check_reference(path, node["$ref"], root)
    if "multipleOf" in node:
        _check_multiple((*path, "multipleOf"), node["multipleOf"], multiples)


def _check_type(path: Path, node: dict[str, JsonValue]) -> None:
    if "type" not in node:
        return
    types = node["type"] if isinstance(node["type"], list) else [node["type"]]
    wrong = [kind for kind in types if not (isinstance(kind, str) and kind in _TYPES)]
    if wrong or not types:
        raise SchemaFault(f"`type` must be one of {', '.join(sorted(_TYPES))}, at {shown((*path, 'type'))}.")


def _check_counts(path: Path, node: dict[str, JsonValue]) -> None:
    for keyword in ("minItems", "minLength", "minProperties"):
        least = node.get(keyword)
        if isinstance(least, int) and least > MAX_LEAST:
            raise SchemaFault(f"`{keyword}` is more than any answer can hold, at {shown((*path, keyword))}.")
    pattern = node.get("pattern")
    if isinstance(pattern, str) and any(len(count) > 6 or int(count) > MAX_REPEATS for count in _repeats(pattern)):
        place = shown((*path, "pattern"))
        raise SchemaFault(f"`pattern` repeats a part more than {MAX_REPEATS:,} times, at {place}.")


def _repeats(pattern: str) -> list[str]:
    """The numbers in `{2}`, `{2,}` and `{2,3}`."""
    return [count for pair in re.findall(r"\{([0-9]+)(?:,([0-9]*))?\}", pattern) for count in pair if count]


def _check_reference(path: Path, reference: JsonValue, root: dict[str, JsonValue]) -> None:
    place = shown((*path, "$ref"))
    if not isinstance(reference, str) or not reference.startswith("#"):
        raise SchemaFault(f"`$ref` must point into the schema itself (`#/$defs/…`); nothing is fetched, at {place}.")
    if pointed(root, reference) is None:
        raise SchemaFault(f"`$ref` points to {reference[:100]}, which does not exist, at {place}.")


def _check_multiple(path: Path, value: JsonValue, multiples: list[int]) -> None:
    """Refuse what compiles to too large an automaton, also by the common multiple of several."""
    try:
        sign, digits, _ = Decimal(str(value)).as_tuple()
    except InvalidOperation as error:
        raise SchemaFault(f"`multipleOf` must be a number above 0, at {shown(path)}.") from error
    number = int("".join(map(str, digits[:20])) or "0")
    if isinstance(value, bool) or sign or number == 0:
        raise SchemaFault(f"`multipleOf` must be a number above 0, at {shown(path)}.")
    multiples.append(number)
    if math.lcm(*multiples) > MAX_COMMON_MULTIPLE:
        raise SchemaFault(f"`multipleOf` {value} is too large to be checked while writing, at {shown(path)}.")


def _mapping(path: Path, keyword: str, node: dict[str, JsonValue]) -> dict[str, JsonValue]:
    value = node[keyword]
    if not isinstance(value, dict):
        raise SchemaFault(f"`{keyword}` must be an object, at {shown((*path, keyword))}.")
    return value


def _list(path: Path, keyword: str, node: dict[str, JsonValue]) -> list[JsonValue]:
    value = node[keyword]
    if not isinstance(value, list):
        raise SchemaFault(f"`{keyword}` must be a list, at {shown((*path, keyword))}.")
    return value


def _is_text_list(value: JsonValue) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
