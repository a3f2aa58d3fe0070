"""Examples for schemas: valid for the schema, repeatable, refused where a device refuses, and never slow."""

import json
import re
import string
import time
from collections.abc import Mapping

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketserver.chat import (
    AnyJsonObject,
    Constraint,
    GenerationRequest,
    Grammar,
    JsonSchema,
    JsonValue,
    Message,
    Role,
    Sampling,
)
from pocketserver.engines.llama.schema_check import SchemaFault, prepared
from pocketserver.engines.sim.example import example, reply_to, tool_arguments
from pocketserver.errors import Code, Refusal
from tests.engines.sim.schema_table import (
    CHAIN,
    EXPRESSION,
    FOLLOWED,
    FOLLOWED_HERE_ALONE,
    REFUSED,
    REFUSED_HERE_ALONE,
    TREE,
    an_object,
    defining,
)

SEEDS = (0, 1)
GENEROUS_SECONDS = 20.0
FORMATS = jsonschema.FormatChecker(["date", "email", "ipv4", "ipv6", "uuid"])
NOT_PYTHON = {"^x{2}{3}$", r"^[\d-x]+$"}
"""Patterns that Python's own `re` reads in another way, or not at all."""


def shown(schema: JsonValue) -> str:
    return json.dumps(schema)[:60]


def assert_valid(schema: JsonValue, value: JsonValue) -> None:
    if isinstance(schema, Mapping):
        schema = prepared(schema)  # OpenAPI's `nullable` becomes a type list
    jsonschema.Draft202012Validator(schema, format_checker=FORMATS).validate(value)


def refusal_of(schema: JsonValue) -> Refusal:
    with pytest.raises(Refusal) as caught:
        example(schema)
    return caught.value


def asking(constraint: Constraint | None, *, seed: int | None = None, text: str = "hi") -> GenerationRequest:
    message = Message(role=Role.USER, content=text)
    return GenerationRequest(
        id="r", model="m", messages=(message,), sampling=Sampling(seed=seed), constraint=constraint
    )


@pytest.mark.parametrize("schema", [*FOLLOWED, *FOLLOWED_HERE_ALONE], ids=shown)
def test_the_example_is_valid_for_its_schema(schema: JsonValue) -> None:
    for seed in SEEDS:
        value = example(schema, seed=seed)
        assert json.loads(json.dumps(value)) == value
        if not (isinstance(schema, Mapping) and schema.get("pattern") in NOT_PYTHON):
            assert_valid(schema, value)


@pytest.mark.parametrize(("schema", "word"), [*REFUSED, *REFUSED_HERE_ALONE], ids=shown)
def test_what_cannot_be_followed_is_refused_with_its_keyword(schema: JsonValue, word: str) -> None:
    refusal = refusal_of(schema)

    assert refusal.code is Code.INVALID_PARAMETER
    assert refusal.param == "response_format.json_schema.schema"
    assert word in refusal.message
    assert len(refusal.message) < 1_000


@pytest.mark.parametrize(
    "schema", [TREE, CHAIN, EXPRESSION, {}, an_object(a={"type": "integer"}, b={}, c={})], ids=shown
)
def test_the_same_seed_makes_the_same_value_and_others_differ(schema: JsonValue) -> None:
    values = [json.dumps(example(schema, seed=seed)) for seed in range(20)]

    assert values == [json.dumps(example(schema, seed=seed)) for seed in range(20)]
    assert len(set(values)) > 1


def test_required_properties_are_always_there_and_optional_ones_sometimes() -> None:
    schema = an_object("a", a={"type": "null"}, b={"type": "null"})

    seen = {tuple(example(schema, seed=seed)) for seed in range(30)}

    assert seen == {("a",), ("a", "b")}


def test_properties_come_in_the_order_of_the_schema() -> None:
    schema = an_object("c", "z", "a", c={}, a={}, b={})

    assert [name for name in example(schema) if name != "b"] == ["c", "a", "z"]


def test_recursive_schemas_end_with_short_values() -> None:
    for schema in (TREE, CHAIN, EXPRESSION):
        assert all(len(json.dumps(example(schema, seed=seed))) < 5_000 for seed in range(20))


@pytest.mark.parametrize(
    "name", ["date-time", "date", "time", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "duration"]
)
def test_formats_are_those_of_their_standards(name: str) -> None:
    checks = {
        "date-time": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ",
        "time": r"\d\d:\d\d:\d\dZ",
        "hostname": r"[a-z]+\.example\.(com|org)",
        "uri": r"https://example\.(com|org)/[a-z]+",
        "duration": r"P(\dD)?(T\d+[HM])?",
    }
    for seed in range(20):
        value = example({"type": "string", "format": name}, seed=seed)
        FORMATS.check(value, name)
        assert re.fullmatch(checks.get(name, ".+"), value)


# --- tools and requests


@pytest.mark.parametrize(
    "parameters",
    [
        None,
        {},
        {"properties": None},
        {"properties": []},
        {"type": "object"},
        {"type": "object", "properties": {}},
        {"required": None},
    ],
    ids=repr,
)
def test_tools_without_parameters_get_an_empty_object(parameters: Mapping[str, JsonValue] | None) -> None:
    assert tool_arguments(parameters) == {}


def test_tool_arguments_are_an_object_with_what_is_required() -> None:
    parameters = {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}

    for seed in range(10):
        made = tool_arguments(parameters, seed=seed)
        assert isinstance(made["city"], str)
        assert set(made) <= {"city", "days"}


def test_the_field_at_fault_is_the_callers() -> None:
    with pytest.raises(Refusal) as caught:
        tool_arguments({"properties": {"a": {"not": {}}}}, param="tools[2].function.parameters")

    assert caught.value.param == "tools[2].function.parameters"
    assert "#/properties/a/not" in caught.value.message


def test_a_free_answer_has_no_constrained_text() -> None:
    assert reply_to(asking(None)) is None


def test_any_json_object_is_an_object() -> None:
    assert isinstance(json.loads(reply_to(asking(AnyJsonObject())) or ""), dict)


def test_a_schema_is_answered_by_the_seeds_of_engine_and_request() -> None:
    request = asking(JsonSchema(schema=EXPRESSION), seed=7)

    text = reply_to(request, seed=3)

    assert text == reply_to(request, seed=3)
    assert_valid(EXPRESSION, json.loads(text or ""))
    others = {reply_to(asking(JsonSchema(schema=EXPRESSION), seed=seed), seed=3) for seed in range(10)}
    assert len(others) > 1


@pytest.mark.parametrize("pattern", [r"yes|no", r"\d{3}-[a-f]+", r"^a+$", "", r"(?i)[a-z]{5}"])
def test_a_regular_expression_is_matched_by_the_whole_text(pattern: str) -> None:
    for seed in range(5):
        text = reply_to(asking(Grammar(syntax="regex", definition=pattern), seed=seed))
        assert text is not None
        assert re.fullmatch(pattern, text)


@pytest.mark.parametrize(
    ("syntax", "definition", "words"),
    [
        ("lark", 'start: "a"', "lark"),
        ("regex", "(", "not closed"),
        ("regex", "a$b", "matches no text"),
        ("regex", "(?=a)", "look-around"),
        ("regex", "(a{1000}){1000}", "too complicated"),
    ],
)
def test_grammars_that_cannot_be_followed_are_refused(syntax: str, definition: str, words: str) -> None:
    with pytest.raises(Refusal, match=words) as caught:
        reply_to(asking(Grammar(syntax=syntax, definition=definition)), param="response_format.grammar")

    assert caught.value.param == "response_format.grammar"


# --- hostile schemas


def nested(levels: int) -> JsonValue:
    schema: JsonValue = {"type": "null"}
    for _ in range(levels):
        schema = an_object("a", a=schema)
    return schema


def bomb(levels: int) -> JsonValue:
    """Each level requires the next one ten times."""
    inner = {f"d{level}": level_object(f"#/$defs/d{level + 1}") for level in range(levels)}
    return defining({"$ref": "#/$defs/d0"}, **inner, **{f"d{levels}": {"type": "null"}})


def level_object(reference: str) -> JsonValue:
    return an_object(
        *string.ascii_lowercase[:10], **{name: {"$ref": reference} for name in string.ascii_lowercase[:10]}
    )


HOSTILE: dict[str, JsonValue] = {
    "a million items": {"type": "array", "minItems": 10**6, "items": {"type": "array", "minItems": 10**6}},
    "10**30 items": {"type": "array", "minItems": 10**30},
    "an enum of 200,000": {"enum": [f"value {index}" for index in range(200_000)]},
    "100 levels": nested(100),
    "900 levels": nested(900),
    "a bomb of references": bomb(20),
    "references in a ring": defining({"$ref": "#/$defs/a"}, a={"$ref": "#/$defs/b"}, b={"$ref": "#/$defs/a"}),
    "a ring through allOf": {"allOf": [{"$ref": "#"}]},
    "impossible choices": {"allOf": [{"anyOf": [{"const": f"{a}{b}"} for b in range(10)]} for a in range(10)]},
    "choices times choices": {
        "allOf": [{"anyOf": [{"pattern": f"{a}{b}"} for b in range(10)]} for a in range(12)],
        "type": "string",
    },
    "patterns together": {
        "allOf": [{"pattern": f"{letter}.{{20}}$"} for letter in string.ascii_lowercase],
        "type": "string",
    },
    "a counted pattern": {"type": "string", "pattern": "^((((a{100}){100}){100}){100}){100}$"},
    "a long pattern": {"type": "string", "pattern": "(a?)" * 6_000},
    "a deep pattern": {"type": "string", "pattern": "(" * 5_000 + ")" * 5_000},
    "many patterns of names": {
        "type": "object",
        "patternProperties": {f"^{index}.*a.{{9}}$": {} for index in range(150)},
    },
    "many properties": {"type": "object", "minProperties": 10**6},
    "a long text": {"type": "string", "minLength": 10**9},
    "many patterned names": {
        "minProperties": 400,
        "patternProperties": {"^[a-z]{4}$": {}},
        "additionalProperties": False,
        "type": "object",
    },
    "not a number": {"type": "number", "minimum": float("nan")},
    "endless": {"type": "number", "minimum": float("inf")},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_are_refused_soon(name: str) -> None:
    began = time.monotonic()

    refusal = refusal_of(HOSTILE[name])

    assert refusal.code is Code.INVALID_PARAMETER
    assert len(refusal.message) < 1_000
    assert time.monotonic() - began < GENEROUS_SECONDS


@pytest.mark.parametrize(
    "schema",
    [nested(25), {"allOf": [{"anyOf": [{"type": "string"}, {"type": "null"}]} for _ in range(8)]}, {"enum": list(range(50_000))},
     {"type": "object", "properties": {f"p{index}": {"type": "string"} for index in range(1_500)}},
     {"allOf": [{"enum": list(range(50_000))}, {"enum": list(range(49_999, 60_000))}]}],
    ids=["25 levels", "many choices", "an enum of 50,000", "1,500 properties", "two large enums"],
)  # fmt: skip
def test_large_but_honest_schemas_are_answered(schema: JsonValue) -> None:
    began = time.monotonic()

    assert_valid(schema, example(schema))

    assert time.monotonic() - began < GENEROUS_SECONDS


# --- schemas by chance

counts = st.integers(0, 4)
names = st.sampled_from(["a", "b", "xa", "xb", "c d"])
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 12), st.sampled_from(["a", "ab", "1", "xyz", ""]), st.just(2.5)
)
patterns = st.sampled_from(["^a", "b$", "[0-9]", "^[a-z]*$", "^x.{2}$", "a|b", "^(ab)*$", r"^\w+$"])
flags: st.SearchStrategy[JsonValue] = st.booleans()
texts = st.fixed_dictionaries(
    {"type": st.just("string")}, optional={"minLength": counts, "maxLength": st.integers(2, 9), "pattern": patterns}
)
numbers = st.fixed_dictionaries(
    {"type": st.sampled_from(["integer", "number", ["integer", "null"]])},
    optional={
        "minimum": st.integers(-9, 9),
        "maximum": st.integers(0, 30),
        "exclusiveMinimum": st.integers(-9, 3),
        "exclusiveMaximum": st.sampled_from([0.5, 1, 12]),
        "multipleOf": st.sampled_from([1, 2, 7, 0.5, 0.1, 0.25]),
    },
)
leaves: st.SearchStrategy[JsonValue] = st.one_of(
    texts,
    numbers,
    flags,
    st.just({}),
    st.builds(lambda kind: {"type": kind}, st.sampled_from(["null", "boolean", "array", "object", "string"])),
    st.builds(lambda value: {"const": value}, scalars),
    st.builds(lambda values: {"enum": values}, st.lists(scalars, min_size=1, max_size=4)),
    st.builds(lambda name: {"$ref": f"#/$defs/{name}"}, st.sampled_from(["one", "two"])),
)


def larger(inner: st.SearchStrategy[JsonValue]) -> st.SearchStrategy[JsonValue]:
    schemas = st.lists(inner, min_size=1, max_size=3)
    objects = st.fixed_dictionaries(
        {"properties": st.dictionaries(names, inner, max_size=3)},
        optional={
            "type": st.just("object"),
            "required": st.lists(names, max_size=2, unique=True),
            "additionalProperties": inner,
            "patternProperties": st.builds(lambda schema: {"^x": schema}, inner),
            "minProperties": counts,
            "maxProperties": counts,
        },
    )
    arrays = st.fixed_dictionaries(
        {"type": st.sampled_from(["array", ["array", "null"]])},
        optional={"items": inner, "prefixItems": schemas, "minItems": counts, "maxItems": counts},
    )
    chosen = st.fixed_dictionaries(
        {},
        optional={
            "allOf": schemas,
            "anyOf": schemas,
            "oneOf": schemas,
            "type": st.sampled_from(["object", "string", "integer"]),
        },
    )
    return st.one_of(objects, arrays, chosen)


wholes = st.builds(
    lambda schema, one, two: {**schema, "$defs": {"one": one, "two": two}} if isinstance(schema, dict) else schema,
    st.recursive(leaves, larger, max_leaves=8),
    leaves,
    larger(leaves),
)


def follows_itself(schema: JsonValue, value: JsonValue) -> bool:
    """Whether the validator ends on it: it does not on references that lead back without a value in between."""
    try:
        jsonschema.Draft202012Validator(schema).is_valid(value)
    except RecursionError:
        return True
    return False


@settings(max_examples=250, deadline=None, derandomize=True)
@given(schema=wholes, seed=st.integers(0, 9))
def test_examples_of_random_schemas_are_valid_or_refused(schema: JsonValue, seed: int) -> None:
    try:
        value = example(schema, seed=seed)
    except Refusal as refusal:
        assert refusal.code is Code.INVALID_PARAMETER  # noqa: PT017 - both ends are right
    else:
        assert follows_itself(schema, value) or jsonschema.Draft202012Validator(schema).is_valid(value)


# --- beside llguidance


class Device:
    """What the llama engine says to a schema."""

    def __init__(self) -> None:
        llguidance = pytest.importorskip("llguidance", reason="the llama extra is not installed")
        self._matcher = llguidance.LLMatcher
        self._tokenizer = llguidance.LLTokenizer("byte")

    def fault(self, schema: JsonValue) -> str | None:
        try:
            matcher = self._matcher(self._tokenizer, self._grammar(schema), log_level=0)
        except SchemaFault as fault:
            return str(fault)
        if not matcher.is_error():
            matcher.compute_bitmask()
        return str(matcher.get_error()) if matcher.is_error() else None

    def accepts(self, schema: JsonValue, text: str) -> bool:
        matcher = self._matcher(self._tokenizer, self._grammar(schema), log_level=0)
        tokens = self._tokenizer.tokenize_bytes(text.encode())
        return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())

    def _grammar(self, schema: JsonValue) -> str:
        return str(self._matcher.grammar_from_json_schema(json.dumps(prepared(schema))))


@pytest.fixture(scope="module")
def device() -> Device:
    return Device()


@pytest.mark.parametrize("schema", FOLLOWED, ids=shown)
def test_a_device_would_have_written_the_example_too(device: Device, schema: JsonValue) -> None:
    assert device.fault(schema) is None
    for seed in SEEDS:
        assert device.accepts(schema, json.dumps(example(schema, seed=seed), ensure_ascii=False))


@pytest.mark.parametrize("schema", [schema for schema, _ in REFUSED], ids=shown)
def test_a_device_refuses_the_same_schemas(device: Device, schema: JsonValue) -> None:
    assert device.fault(schema) is not None


@pytest.mark.parametrize("schema", [schema for schema, _ in REFUSED_HERE_ALONE], ids=shown)
def test_what_is_refused_here_alone_is_still_so(device: Device, schema: JsonValue) -> None:
    assert device.fault(schema) is None


@settings(max_examples=150, deadline=None, derandomize=True)
@given(schema=wholes)
def test_what_a_device_refuses_of_random_schemas_is_refused_here(device: Device, schema: JsonValue) -> None:
    fault = device.fault(schema)
    if fault is not None and "oneOf" not in fault:
        refusal_of(schema)
