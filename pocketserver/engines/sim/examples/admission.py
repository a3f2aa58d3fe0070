"""Whether a schema admits a value: a validator for the keywords that the llama engine follows (draft 2020-12)."""

from collections.abc import Hashable, Iterable
from itertools import chain

from pocketserver.chat import JsonValue
from pocketserver.engines.sim.examples.demand import Book, Node
from pocketserver.engines.sim.examples.effort import Effort
from pocketserver.engines.sim.examples.languages import Languages
from pocketserver.engines.sim.examples.numbers import fraction


class Admission:
    def __init__(self, book: Book, languages: Languages, effort: Effort) -> None:
        self._book = book
        self._languages = languages
        self._effort = effort
        self._asking: set[tuple[int, int]] = set()
        self._enums: dict[int, frozenset[Hashable]] = {}

    def admits(self, schema: JsonValue, value: JsonValue) -> bool:
        """Raises SchemaFault for what is no schema, TooComplicated."""
        if isinstance(schema, bool):
            return schema
        question = (id(schema), id(value))
        if question in self._asking:
            return False  # it leads back to itself without a value in between
        self._effort.spend()
        self._asking.add(question)
        try:
            return self._composed(schema, value) and self._plain(schema, value)
        finally:
            self._asking.discard(question)

    def _composed(self, node: Node, value: JsonValue) -> bool:
        if "$ref" in node and not self.admits(self._book.target(node), value):
            return False
        if not all(self.admits(part, value) for part in node.get("allOf", ())):
            return False
        if "anyOf" in node and not any(self.admits(part, value) for part in node["anyOf"]):
            return False
        return "oneOf" not in node or sum(self.admits(part, value) for part in node["oneOf"]) == 1

    def _plain(self, node: Node, value: JsonValue) -> bool:
        if not self._is_named(node, value):
            return False
        match value:
            case bool() | None:
                return True
            case str():
                return self._admits_text(node, value)
            case int() | float():
                return _admits_number(node, value)
            case list():
                return self._admits_list(node, value)
            case _:
                return self._admits_object(node, value)

    def _is_named(self, node: Node, value: JsonValue) -> bool:
        """What `type`, `const` and `enum` say."""
        if "type" in node and not _is_of_type(node["type"], value):
            return False
        if "const" in node and frozen(node["const"]) != frozen(value):
            return False
        return "enum" not in node or frozen(value) in self._options(node["enum"])

    def _options(self, values: list[JsonValue]) -> frozenset[Hashable]:
        if id(values) not in self._enums:
            self._enums[id(values)] = frozenset(map(frozen, values))
        return self._enums[id(values)]

    def _admits_text(self, node: Node, value: str) -> bool:
        if not node.get("minLength", 0) <= len(value) <= node.get("maxLength", len(value)):
            return False
        return all(self._languages.matches(language, value) for language in self._languages.demanded(node))

    def _admits_list(self, node: Node, value: list[JsonValue]) -> bool:
        if not node.get("minItems", 0) <= len(value) <= node.get("maxItems", len(value)):
            return False
        return all(
            self.admits(schema, item) for schema, item in zip(item_schemas(node, len(value)), value, strict=True)
        )

    def _admits_object(self, node: Node, value: dict[str, JsonValue]) -> bool:
        if not node.get("minProperties", 0) <= len(value) <= node.get("maxProperties", len(value)):
            return False
        if not set(node.get("required", ())) <= set(value):
            return False
        return all(
            self.admits(schema, item)
            for name, item in value.items()
            for schema in property_schemas(node, name, self._languages)
        )


def item_schemas(node: Node, count: int) -> Iterable[JsonValue]:
    """The schema for each of the first items. A list under `items` is the older spelling of `prefixItems`."""
    older = isinstance(node.get("items"), list)
    prefix = node["items"] if older else node.get("prefixItems", ())
    rest = node.get("additionalItems" if older else "items", True)
    return chain(prefix[:count], (rest for _ in range(count - len(prefix))))


def property_schemas(node: Node, name: str, languages: Languages) -> list[JsonValue]:
    """What the node demands of a property's value."""
    found = [node["properties"][name]] if name in node.get("properties", {}) else []
    patterns = node.get("patternProperties", {})
    found += [schema for pattern, schema in patterns.items() if languages.matches(languages.searched(pattern), name)]
    return found or [node.get("additionalProperties", True)]


def frozen(value: JsonValue) -> Hashable:
    """Equal for values that are equal as JSON: 1 is 1.0, true is not 1, the order of properties does not count."""
    match value:
        case bool():
            return ("boolean", value)
        case list():
            return ("array", tuple(map(frozen, value)))
        case dict():
            return ("object", frozenset((name, frozen(item)) for name, item in value.items()))
        case _:
            plain: Hashable = value
            return plain


def _is_of_type(named: JsonValue, value: JsonValue) -> bool:
    kinds = named if isinstance(named, list) else [named]
    match value:
        case bool():
            return "boolean" in kinds
        case None:
            return "null" in kinds
        case int() | float():
            return "number" in kinds or ("integer" in kinds and value == int(value))
        case str():
            return "string" in kinds
        case list():
            return "array" in kinds
        case _:
            return "object" in kinds


def _admits_number(node: Node, value: float) -> bool:
    low, high = node.get("exclusiveMinimum"), node.get("exclusiveMaximum")
    if "minimum" in node and (value < node["minimum"] or (low is True and value == node["minimum"])):
        return False
    if "maximum" in node and (value > node["maximum"] or (high is True and value == node["maximum"])):
        return False
    if not isinstance(low, bool | None) and value <= low:
        return False
    if not isinstance(high, bool | None) and value >= high:
        return False
    return "multipleOf" not in node or fraction(value) % fraction(node["multipleOf"]) == 0
