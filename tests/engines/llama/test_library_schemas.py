"""Schemas as pydantic and zod write them compile, and whatever they then admit validates."""

import datetime as dt
import decimal
import json
import pathlib
import random
import re
import uuid
from enum import Enum
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AnyUrl, BaseModel, ConfigDict, Field, RootModel

from pocketserver.chat import FinishReason, JsonSchema, JsonValue, Sampling
from pocketserver.engines.llama.process import LlamaEngine
from pocketserver.engines.llama.schema_check import SchemaFault, prepared
from pocketserver.engines.llama.schema_rewrite import SAME_PATTERNS
from tests.engines.llama.asking import answered, asking
from tests.engines.llama.schema_walk import admits, matcher_for, walk

Validator = jsonschema.Draft202012Validator
WALKS = 12


class Color(Enum):
    RED = "red"
    GREEN = "green"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(ge=1, le=9)


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str | None = None


class Bird(BaseModel):
    model_config = ConfigDict(extra="forbid")
    wings: int


class Fish(BaseModel):
    model_config = ConfigDict(extra="forbid")
    fins: float


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]


class Node(BaseModel):
    value: int
    children: list["Node"] = Field(default=[], max_length=2)
    next: "Node | None" = None


class Group(BaseModel):
    op: Literal["and", "or"]
    parts: list["Annotated[Group | Leaf, Field(discriminator='op')]"] = Field(min_length=1, max_length=2)


class Leaf(BaseModel):
    op: Literal["is"]
    value: bool


class Times(BaseModel):
    at: dt.datetime
    day: dt.date
    clock: dt.time
    lasts: dt.timedelta
    id: uuid.UUID


class Texts(BaseModel):
    code: str = Field(min_length=2, max_length=5, pattern="^[a-z]+$")
    url: AnyUrl
    file: pathlib.Path
    raw: bytes
    price: decimal.Decimal


class Maps(BaseModel):
    pets: dict[str, Pet]
    counts: dict[Color, int]
    sizes: dict[Literal["small", "large"], float]
    codes: dict[Annotated[str, Field(pattern="^[A-Z]{2}$")], bool]
    free: dict[str, Any]


class Numbers(BaseModel):
    share: float = Field(gt=0, lt=1)
    five: int = Field(multiple_of=5, ge=-20, le=20)
    pair: tuple[int, str]
    listed: list[Color] = Field(min_length=1, max_length=3)


class Whole(BaseModel):
    pet: Pet
    pets: list[Pet] = Field(min_length=1, max_length=2)
    other: Bird | Fish
    plain: int | str | None
    color: Color = Color.RED
    node: Node


MODELS: list[type[BaseModel]] = [
    *(Cat, Dog, Node, Group, Times, Texts, Maps, Numbers, Whole),
    *(RootModel[Pet], RootModel[Cat | Dog], RootModel[list[Bird | Fish]]),
]
ZOD_EMAIL = next(pattern for pattern in SAME_PATTERNS if "@" in pattern)
ZOD: dict[str, JsonValue] = {
    "record": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "number"}},
    "record of an enum": {
        "type": "object",
        "propertyNames": {"type": "string", "enum": ["a", "b"]},
        "additionalProperties": {"type": "boolean"},
        "required": ["a", "b"],
    },
    "safe integers": {"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991},
    "address": {"type": "string", "format": "email", "pattern": ZOD_EMAIL},
    "discriminated union": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "oneOf": [
            {
                "type": "object",
                "properties": {"status": {"type": "string", "const": word}, field: {"type": kind}},
                "required": ["status", field],
                "additionalProperties": False,
            }
            for word, field, kind in (("ok", "data", "string"), ("failed", "code", "integer"))
        ],
    },
    "nullish": {"anyOf": [{"anyOf": [{"type": "string"}, {"type": "null"}]}, {"not_a_keyword": 1, "type": "null"}]},
    "lazy": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "sub": {"type": "array", "items": {"$ref": "#"}, "maxItems": 1}},
        "required": ["name", "sub"],
        "additionalProperties": False,
    },
}
SCHEMAS = {model.__name__: model.model_json_schema() for model in MODELS} | ZOD


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_a_library_s_schema_admits_validates(name: str) -> None:
    schema = SCHEMAS[name]
    matcher = matcher_for(schema)
    assert not matcher.is_error(), matcher.get_error()
    validator = Validator(schema, format_checker=Validator.FORMAT_CHECKER)

    values = [walk(matcher, random.Random(number)) for number in range(WALKS)]

    found = [json.loads(text) for text in values if text is not None]
    assert len(found) >= WALKS / 2
    for value in found:
        validator.validate(value)


def test_each_option_of_a_union_is_admitted() -> None:
    union = RootModel[Pet].model_json_schema()
    assert admits(union, '{"kind": "cat", "lives": 3}')
    assert admits(union, '{"kind": "dog"}')
    assert not admits(union, '{"kind": "cat", "name": "Rex"}')
    assert not admits(union, '{"kind": "fox"}')


KIND = {"type": "object", "properties": {"k": {"const": "a"}}, "required": ["k"]}
OTHER_KIND = {"type": "object", "properties": {"k": {"const": "b"}}, "required": ["k"]}


@pytest.mark.parametrize(
    ("options", "apart"),
    [
        ([{"type": "string"}, {"type": "integer"}], True),
        ([{"type": "number"}, {"type": "integer"}], False),
        ([{"enum": [1, "x"]}, {"enum": [2, "y"]}], True),
        ([{"const": 1}, {"const": 1.0}], False),
        ([{"const": 1}, {"const": True}], True),
        ([{"const": {"a": [1]}}, {"const": {"a": [1.0]}}], False),
        ([{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], True),
        ([{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}], False),
        ([{"$ref": "#/$defs/a"}, {"anyOf": [{"$ref": "#/$defs/b"}, {"type": "null"}]}], True),
        ([{"$ref": "#/$defs/a"}, {"anyOf": [{"$ref": "#/$defs/b"}, {"type": "object"}]}], False),
        ([{**KIND, "required": []}, OTHER_KIND], True),  # the other one demands the member
        ([{**KIND, "required": []}, {**OTHER_KIND, "required": []}], False),
        ([{"allOf": [KIND, {"type": "object"}]}, OTHER_KIND], True),
        ([{"required": ["x"]}, {"additionalProperties": False}], False),  # both hold for a number
        ([{"type": "object", "required": ["x"]}, {"type": "object", "additionalProperties": False}], True),
        ([{"type": "string"}, False], True),
        ([{"type": "string"}, True], False),
        ([{"type": "string", "maxLength": 2}, {"type": "string", "minLength": 2}], False),
    ],
    ids=str,
)
def test_one_of_becomes_any_of_only_where_options_exclude_one_another(options: list[JsonValue], apart: bool) -> None:
    made = prepared({"oneOf": options, "$defs": {"a": KIND, "b": OTHER_KIND}})
    assert ("anyOf" in made) is apart
    assert ("oneOf" in made) is not apart


def test_one_of_keeps_an_any_of_beside_it() -> None:
    schema = {"anyOf": [{"enum": ["a", 1]}, {"enum": ["b"]}], "oneOf": [{"type": "string"}, {"type": "integer"}]}
    assert admits(schema, '"b"')
    assert admits(schema, "1")
    assert not admits(schema, "2")


def test_a_circle_of_references_is_no_endless_question() -> None:
    loop = {"oneOf": [{"$ref": "#/$defs/x"}, {"$ref": "#/$defs/y"}]}
    made = prepared({**loop, "$defs": {"x": {"allOf": [{"$ref": "#/$defs/y"}]}, "y": {"$ref": "#/$defs/x"}}})
    assert "oneOf" in made


def test_many_options_with_many_values_take_no_time() -> None:
    options = [{"enum": [f"{option} {word}" for word in range(300)]} for option in range(90)]
    assert "anyOf" in prepared({"oneOf": options})


def test_a_fault_inside_an_option_is_named_where_the_client_wrote_it() -> None:
    with pytest.raises(SchemaFault, match="#/oneOf/1/not"):
        prepared({"oneOf": [{"type": "string"}, {"type": "integer", "not": {}}]})


@given(st.from_regex(re.compile(r"[-+.\d]{0,6}", re.ASCII), fullmatch=True) | st.text("ab.'-@+_c", max_size=12))
def test_patterns_are_rewritten_to_their_equals(text: str) -> None:
    for written, read in SAME_PATTERNS.items():
        assert (re.search(written, text) is None) == (re.search(read, text) is None)


@pytest.mark.parametrize(
    ("day", "is_real"),
    [("2024-02-29", True), ("2000-02-29", True), ("2023-12-31", True), ("9382-02-29", False), ("1900-02-29", False)],
)
def test_a_date_is_one_that_the_calendar_has(day: str, is_real: bool) -> None:
    assert admits({"type": "string", "format": "date"}, json.dumps(day)) is is_real
    assert admits({"type": "string", "format": "date-time"}, json.dumps(f"{day}T10:00:00Z")) is is_real


@pytest.mark.real_model
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("name", ["Whole", "Group", "Times", "Maps", "discriminated union"])
async def test_the_model_s_answers_to_library_schemas_validate(engine: LlamaEngine, name: str) -> None:
    warm = Sampling(temperature=1.0, seed=3)
    request = asking("Go.", max_tokens=200, sampling=warm, constraint=JsonSchema(schema=SCHEMAS[name]))
    answer = await answered(engine, request)
    if answer.finished.reason is FinishReason.STOP:
        Validator(SCHEMAS[name]).validate(json.loads(answer.text))
    else:
        assert answer.text.startswith(("{", "["))
