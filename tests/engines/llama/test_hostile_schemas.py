"""Schemas of wrong types everywhere are read or refused by name, never a fault of ours."""

import contextlib

import pytest

from pocketserver.chat import JsonValue
from pocketserver.engines.llama.schema_check import SchemaFault, prepared
from pocketserver.engines.sim.example import example
from pocketserver.errors import Refusal

WORDS = [
    "type",
    "enum",
    "const",
    "properties",
    "patternProperties",
    "additionalProperties",
    "required",
    "minProperties",
    "maxProperties",
    "items",
    "prefixItems",
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "multipleOf",
    "$defs",
    "definitions",
    "$ref",
    "anyOf",
    "oneOf",
    "allOf",
    "propertyNames",
    "nullable",
    "uniqueItems",
    "x-note",
]
VALUES: list[JsonValue] = [
    None, True, False, -1, 0.5, 2**63, 10**400, "", "#/oneOf/²", "#/oneOf/" + "9" * 5000, [], {}, [[]], [{}], [None],
    {"a": 5}, [{"const": 1}, {"const": 10**400}],
]  # fmt: skip
BASES: list[dict[str, JsonValue]] = [
    {}, {"type": "object"}, {"type": "array", "items": {}}, {"oneOf": [{"const": 1}, {"const": 2}]},
]  # fmt: skip


@pytest.mark.parametrize("word", WORDS)
def test_any_value_of_a_keyword_is_taken_or_refused(word: str) -> None:
    for base in BASES:
        for value in VALUES:
            with contextlib.suppress(SchemaFault):
                assert isinstance(prepared({**base, word: value}), dict)
            with contextlib.suppress(Refusal):
                example({**base, word: value})


@pytest.mark.parametrize("wrong", [5, 0.5, True, "x", [1]])
def test_properties_that_are_no_object_are_refused_with_their_place(wrong: JsonValue) -> None:
    with pytest.raises(SchemaFault, match="#/items/properties"):
        prepared({"items": {"properties": wrong}})
