"""A small JSON value that validates against a schema, for answers under a constraint."""

import json
from collections.abc import Mapping

from pocketserver.chat import AnyJsonObject, GenerationRequest, JsonSchema, JsonValue
from pocketserver.errors import Code, Refusal

_MAX_DEPTH = 64
_UNREADABLE = frozenset({"not", "if", "contains", "dependentSchemas", "propertyNames", "unevaluatedProperties"})


def reply_to(request: GenerationRequest) -> str | None:
    """The text of a constrained answer; None where the answer is free. Raises INVALID_PARAMETER."""
    match request.constraint:
        case AnyJsonObject():
            return '{"reply": "ok"}'
        case JsonSchema(schema=schema):
            return json.dumps(example(schema), ensure_ascii=False)
        case _:
            return None


def example(schema: JsonValue, root: JsonValue = None, depth: int = 0) -> JsonValue:
    """One value that the schema admits, the simplest of its kind. Raises INVALID_PARAMETER naming the keyword."""
    root = schema if root is None else root
    if depth > _MAX_DEPTH:
        raise _refuse("the schema is nested too deeply")
    if schema is True:
        return {}
    if not isinstance(schema, Mapping):
        raise _refuse("a schema must be an object")
    unreadable = sorted(_UNREADABLE & set(schema))
    if unreadable:
        raise _refuse(f"the keyword {unreadable[0]!r} is not supported")
    if "$ref" in schema:
        return example(_pointed(str(schema["$ref"]), root), root, depth + 1)
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return example(schema[key][0], root, depth + 1)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    return _of_type(schema, root, depth)


def _of_type(schema: Mapping[str, JsonValue], root: JsonValue, depth: int) -> JsonValue:
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    match kind:
        case "object":
            properties = schema.get("properties") or {}
            wanted = [name for name in properties if name in (schema.get("required") or properties)]
            return {name: example(properties[name], root, depth + 1) for name in wanted}
        case "array":
            count = min(int(schema.get("minItems", 0)), 1000)
            return [example(schema.get("items", True), root, depth + 1) for _ in range(count)]
        case "string":
            return "text".ljust(int(schema.get("minLength", 0)), ".")[: int(schema.get("maxLength", 10_000))]
        case "integer" | "number":
            return schema.get("minimum", schema.get("maximum", 1))
        case "boolean":
            return True
        case "null":
            return None
        case _:
            raise _refuse(f"the type {kind!r} does not exist")


def _pointed(reference: str, root: JsonValue) -> JsonValue:
    if not reference.startswith("#"):
        raise _refuse(f"the $ref {reference!r} points outside the schema")
    found = root
    for part in [part for part in reference[1:].split("/") if part]:
        if not isinstance(found, Mapping) or part not in found:
            raise _refuse(f"the $ref {reference!r} points nowhere")
        found = found[part]
    return found


def _refuse(reason: str) -> Refusal:
    return Refusal(
        Code.INVALID_PARAMETER,
        f"The schema cannot be followed: {reason}.",
        param="response_format.json_schema.schema",
    )
