"""The API of one profile as an OpenAPI 3.1 document, from the wire types, the error tables and the profile itself."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pocketserver import __version__
from pocketserver.application import FAMILIES, shape_of
from pocketserver.errors import Code
from pocketserver.operations import GATE, KEYS, NDJSON, OPERATIONS, SSE, Operation
from pocketserver.profile import Profile
from pocketserver.wire.error_table import ErrorTable

_COMPONENTS = "#/components/schemas/"
_TEXT = {"type": "string"}
_STREAMS: Mapping[str, str] = {
    SSE: "Server-sent events. The data of each is one JSON document.",
    NDJSON: "Lines, each one JSON document.",
}
_CODES = [code.value for code in Code]
_ERRORS: Mapping[str, dict[str, Any]] = {
    "openai": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "param", "code"],
                "properties": {
                    "message": _TEXT,
                    "type": _TEXT,
                    "param": {"type": ["string", "null"]},
                    "code": {"enum": [*_CODES, None]},
                },
            }
        },
    },
    "anthropic": {
        "type": "object",
        "required": ["type", "error"],
        "properties": {
            "type": {"const": "error"},
            "error": {
                "type": "object",
                "required": ["type", "message"],
                "properties": {"type": _TEXT, "message": _TEXT},
            },
            "request_id": _TEXT,
        },
    },
    "ollama": {"type": "object", "required": ["error"], "properties": {"error": _TEXT}},
}
"""The shape of each family's errors, as its table writes them."""


def document(profile: Profile) -> dict[str, Any]:
    """The whole document. The same profile gives the same one, in the same order."""
    served = [operation for operation in OPERATIONS if operation.path in profile.routes]
    bodies, components = _bodies(served)
    tables = {
        prefix: FAMILIES[family](statuses=profile.statuses, codes=profile.codes, retry_after=profile.retry_after)
        for prefix, family in profile.error_families.items()
    }
    paths: dict[str, dict[str, Any]] = {}
    for operation in served:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, profile, tables, bodies)
    families = sorted({*profile.error_families.values()})
    schemas = {**components, **{_error_name(family): _ERRORS[family] for family in families}}
    return {
        "openapi": "3.1.0",
        "info": {"title": f"pocketserver, profile {profile.name}", "version": __version__, "summary": profile.summary},
        "servers": [{"url": f"http://127.0.0.1:{profile.settings['port']}"}],
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": _security_schemes(profile)},
    }


def _bodies(operations: Sequence[Operation]) -> tuple[Mapping[type, dict[str, Any]], dict[str, Any]]:
    """A reference for each type of body, and the schemas that they refer to, by names without our package."""
    types = [*dict.fromkeys(operation.body for operation in operations if operation.body is not None)]
    references, components = msgspec.json.schema_components(types, ref_template=_COMPONENTS + "{name}")
    text = msgspec.json.encode([list(references), components]).decode()
    short = re.sub(r"pocketserver\.wire\.", "", text)
    references, components = msgspec.json.decode(short)
    return dict(zip(types, references, strict=True)), dict(sorted(components.items()))


def _operation(
    operation: Operation,
    profile: Profile,
    tables: Mapping[str, ErrorTable],
    bodies: Mapping[type, dict[str, Any]],
) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": _operation_id(operation),
        "summary": operation.summary,
        "parameters": [*_path_parameters(operation), *_query_parameters(operation)],
        "responses": _responses(operation, profile, tables),
    }
    if operation.body is not None or operation.method == "post":
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _body(operation, profile, bodies)}},
        }
    if _asks_for_key(profile):
        needed: list[dict[str, list[str]]] = [{name: []} for name in _security_schemes(profile)]
        described["security"] = [*needed, {}] if operation.path in profile.keyless else needed
    return described


def _body(operation: Operation, profile: Profile, bodies: Mapping[type, dict[str, Any]]) -> dict[str, Any]:
    if operation.body is None:
        return {"type": "object", "description": "A body of any API that generates."}
    needs = [*operation.needs]
    if profile.model_required and "model" in operation.body.__struct_fields__:
        needs.append("model")
    reference = bodies[operation.body]
    return {"allOf": [reference, {"type": "object", "required": needs}]} if needs else reference


def _path_parameters(operation: Operation) -> list[dict[str, Any]]:
    names = re.findall(r"\{(\w+)\}", operation.path)
    return [{"name": name, "in": "path", "required": True, "schema": _TEXT} for name in names]


def _query_parameters(operation: Operation) -> list[dict[str, Any]]:
    return [{"name": name, "in": "query", "description": text, "schema": _TEXT} for name, text in operation.query]


def _responses(operation: Operation, profile: Profile, tables: Mapping[str, ErrorTable]) -> dict[str, Any]:
    family = profile.error_families[max((p for p in tables if operation.path.startswith(p)), key=len)]
    return {"200": _success(operation), **_refusals(operation, profile, shape_of(tables, operation.path), family)}


def _success(operation: Operation) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if operation.answers == "application/json":
        content[operation.answers] = {"schema": {"type": "object", "required": [*operation.members]}}
    elif operation.answers:
        content[operation.answers] = {"schema": _TEXT}
    if operation.path == "/":
        content["text/html"] = {"schema": _TEXT}
    if operation.streams is not None:
        content[operation.streams] = {"schema": {"description": _STREAMS[operation.streams]}}
    described: dict[str, Any] = {"description": _success_words(operation)}
    return {**described, "content": content} if content else described


def _success_words(operation: Operation) -> str:
    if operation.streams is None:
        return "Done."
    when = "unless `stream` is false" if operation.streams_unasked else "with `stream: true`"
    return f"The answer; {when} as {operation.streams}."


def _refusals(operation: Operation, profile: Profile, table: ErrorTable, family: str) -> dict[str, Any]:
    """By status, with the codes that it may stand for."""
    asks = _asks_for_key(profile) and operation.path not in profile.keyless
    codes = GATE | operation.fails | (KEYS if asks else frozenset())
    by_status: dict[int, list[str]] = {}
    for code in (code for code in Code if code in codes):
        by_status.setdefault(table.status(code), []).append(table.code(code).value)
    schemas = [{"$ref": _COMPONENTS + _error_name(family)}]
    if operation.path.startswith("/v1/models") and "anthropic" in profile.error_families.values():
        schemas.append({"$ref": _COMPONENTS + _error_name("anthropic")})
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    return {
        str(status): {
            "description": ", ".join(dict.fromkeys(by_status[status])),
            "content": {"application/json": {"schema": schema}},
        }
        for status in sorted(by_status)
    }


def _asks_for_key(profile: Profile) -> bool:
    return profile.settings.get("auth") == "on"


def _security_schemes(profile: Profile) -> dict[str, Any]:
    if not _asks_for_key(profile):
        return {}
    schemes: dict[str, Any] = {"bearer": {"type": "http", "scheme": "bearer"}}
    if "anthropic" in profile.error_families.values():
        schemes["x_api_key"] = {"type": "apiKey", "in": "header", "name": "x-api-key"}
    return schemes


def _error_name(family: str) -> str:
    return f"{family.capitalize()}Error"


def _operation_id(operation: Operation) -> str:
    return operation.method + re.sub(r"[^a-z0-9]+", "_", operation.path).rstrip("_")
