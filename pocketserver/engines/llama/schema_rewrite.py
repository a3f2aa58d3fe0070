"""Writes what schema libraries make in the words that llguidance takes; every rewriting keeps the meaning.

What no rewriting fits stays as it is, and is refused with its keyword and place.
"""

from collections.abc import Mapping, Sequence

from pocketserver.chat import JsonValue
from pocketserver.engines.llama.disjoint import Disjointness, pointed

HARMLESS: Mapping[str, tuple[JsonValue, ...]] = {
    "uniqueItems": (False,),
    "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}),
    "propertyNames": (True, {}),
}
"""Values with which an unsupported keyword demands nothing; the keyword is then left out."""
_HINT_FORMATS = frozenset(
    {"password", "int32", "int64", "float", "double", "binary", "path", "file-path", "directory-path"}
)
"""Formats that tell how a value is stored, shown or used, and do not narrow its text."""
SAME_PATTERNS: Mapping[str, str] = {
    r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$": r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)$",
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$": (
        r"^([A-Za-z0-9_'+-]+\.)*[A-Za-z0-9_'+-]*[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9-]*\.)+[A-Za-z]{2,}$"
    ),
}
"""Patterns with a look ahead that two libraries write (pydantic for decimals, zod for addresses), and their equals."""
_ANNOTATIONS = frozenset({"title", "description", "default", "examples", "deprecated", "$comment"})
_FOLLOWING = frozenset({"$ref", "anyOf", "oneOf", "allOf"})
_KNOWN = _ANNOTATIONS | _FOLLOWING | {
    "type", "enum", "const", "properties", "patternProperties", "additionalProperties", "required", "minProperties",
    "maxProperties", "items", "prefixItems", "additionalItems", "minItems", "maxItems", "minLength", "maxLength",
    "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "$defs",
    "definitions", "$id", "$anchor", "$schema",
}  # fmt: skip


def rewrite(node: dict[str, JsonValue], root: Mapping[str, JsonValue]) -> None:
    """Rewrite one schema object in place; the schemas inside it are for the caller."""
    _name_properties(node, root)
    for keyword, values in HARMLESS.items():
        if keyword in node and node[keyword] in values:
            del node[keyword]
    if isinstance(node.get("format"), str) and node["format"] in _HINT_FORMATS:
        del node["format"]
    if isinstance(node.get("pattern"), str):
        node["pattern"] = SAME_PATTERNS.get(node["pattern"], node["pattern"])
    if node.pop("nullable", False) is True:
        _allow_null(node)


def rewrite_references(root: Mapping[str, JsonValue], nodes: Sequence[dict[str, JsonValue]]) -> None:
    """Rewrite what refers to other places of a checked document, all of whose schema objects are given.

    A `oneOf` whose options visibly exclude one another becomes `anyOf`. Words without meaning go from beside `$ref`
    (`discriminator`, `x-…`), where llguidance takes no circle with them. What a `$ref` points into stays in its place.
    """
    pointers = "\n".join(str(node["$ref"]) for node in nodes if "$ref" in node)
    disjointness = Disjointness(root)
    for node in nodes:
        if _FOLLOWING & node.keys():
            for word in [word for word in node if word not in _KNOWN and f"/{word}" not in pointers]:
                del node[word]
        if "oneOf" in node and "/oneOf" not in pointers:
            _one_to_any(node, disjointness)


def _one_to_any(node: dict[str, JsonValue], disjointness: Disjointness) -> None:
    """Of options that exclude one another, one is as good as any."""
    common = {key: value for key, value in node.items() if key != "oneOf"}
    if not disjointness.all_apart(common, node["oneOf"]):
        return
    options = node.pop("oneOf")
    if "anyOf" in node:
        node["allOf"] = [*node.get("allOf", ()), {"anyOf": options}]
    else:
        node["anyOf"] = options


def _name_properties(node: dict[str, JsonValue], root: Mapping[str, JsonValue]) -> None:
    """`propertyNames` of a map (pydantic's `dict`, zod's `record`) as properties that are named or matched."""
    names = node.get("propertyNames")
    if isinstance(names, Mapping) and set(names) - _ANNOTATIONS == {"$ref"}:
        names = pointed(root, names["$ref"])
    if not isinstance(names, Mapping):
        return
    demands = {key: value for key, value in names.items() if key not in _ANNOTATIONS}
    if demands.pop("type", "string") != "string":
        return
    if not demands:
        del node["propertyNames"]
    if "properties" in node or "patternProperties" in node or len(demands) != 1:
        return
    value = node.get("additionalProperties", True)
    match demands:
        case {"enum": list(allowed)}:
            named = {"properties": {name: value for name in allowed if isinstance(name, str)}}
        case {"const": str(only)}:
            named = {"properties": {only: value}}
        case {"pattern": str(pattern)}:
            named = {"patternProperties": {SAME_PATTERNS.get(pattern, pattern): value}}
        case _:
            return
    del node["propertyNames"]
    node |= {**named, "additionalProperties": False}


def _allow_null(node: dict[str, JsonValue]) -> None:
    """OpenAPI's `nullable: true`, which llguidance would pass over."""
    if "type" in node:
        types = node["type"] if isinstance(node["type"], list) else [node["type"]]
        node["type"] = types if "null" in types else [*types, "null"]
    if isinstance(node.get("enum"), list) and None not in node["enum"]:
        node["enum"] = [*node["enum"], None]
