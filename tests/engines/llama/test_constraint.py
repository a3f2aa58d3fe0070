"""Schemas are kept to the letter, or refused by keyword and place in a bounded time."""

import json
import time
from typing import Any

import jsonschema
import pytest

from pocketserver.chat import AnyJsonObject, FinishReason, Grammar, JsonSchema, JsonValue
from pocketserver.engines.llama.process import LlamaEngine
from pocketserver.errors import Code, Refusal
from tests.engines.llama.asking import answered, asking

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.real_model]

SECONDS_FOR_A_HOSTILE_SCHEMA = 60.0  # nominal: 5

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 1, "maximum": 99},
        "mood": {"enum": ["\u958b\u5fc3", "\U0001f600", 'a"b\\c\n']},
    },
    "required": ["name", "age", "mood"],
    "additionalProperties": False,
}
REFERRING = {
    "type": "array",
    "minItems": 2,
    "maxItems": 2,
    "items": {"$ref": "#/$defs/Turn"},
    "$defs": {
        "Who": {"enum": ["Ann", "Bo"]},
        "Turn": {
            "type": "object",
            "properties": {"who": {"$ref": "#/$defs/Who"}, "n": {"$ref": "#/definitions/N"}},
            "required": ["who", "n"],
            "additionalProperties": False,
        },
    },
    "definitions": {"N": {"type": "integer", "minimum": 1, "maximum": 9}},
}


@pytest.mark.parametrize(
    "schema",
    [
        PERSON,
        REFERRING,
        {"type": "boolean"},
        {"const": {"a": [1, "x"]}},
        {"type": "string", "maxLength": 5},
        {"type": "integer", "minimum": 3, "maximum": 5, "nullable": True},
        {"type": "string", "format": "date"},
        {"type": "array", "items": {"type": "boolean"}, "minItems": 3, "maxItems": 3, "uniqueItems": False},
        {"anyOf": [{"type": "null"}, {"enum": ["yes", "no"]}]},
        {"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 10},
        {"type": "string", "enum": ["a", "b"], "format": "password"},
    ],
    ids=lambda schema: json.dumps(schema)[:40],
)
async def test_answers_validate_against_their_schema(engine: LlamaEngine, schema: dict[str, JsonValue]) -> None:
    answer = await answered(engine, asking("Two people talk.", max_tokens=120, constraint=JsonSchema(schema=schema)))
    value = json.loads(answer.text)
    checked = dict(schema)
    if checked.pop("nullable", False):
        checked = {"anyOf": [checked, {"type": "null"}]}
    jsonschema.validate(value, checked, cls=jsonschema.Draft202012Validator)
    assert answer.finished.reason is FinishReason.STOP


async def test_forced_tokens_come_in_groups_and_are_counted(engine: LlamaEngine) -> None:
    answer = await answered(engine, asking("A person.", max_tokens=60, constraint=JsonSchema(schema=PERSON)))
    assert answer.deltas[0].text.startswith('{"name":')
    assert answer.deltas[0].tokens > 1
    assert answer.finished.usage.completion_tokens >= sum(delta.tokens for delta in answer.deltas)


async def test_scores_do_not_change_a_constrained_answer(engine: LlamaEngine) -> None:
    constraint = JsonSchema(schema=PERSON)
    plain = await answered(engine, asking("A person.", max_tokens=60, constraint=constraint))
    scored = await answered(engine, asking("A person.", max_tokens=60, constraint=constraint, top_logprobs=2))
    assert json.loads(scored.text).keys() == json.loads(plain.text).keys()
    assert b"".join(score.bytes for score in scored.scores).decode() == scored.text


async def test_any_json_object_is_an_object_or_cut_by_length(engine: LlamaEngine) -> None:
    answer = await answered(engine, asking("Say {}", max_tokens=40, constraint=AnyJsonObject()))
    assert answer.text.startswith("{")
    if answer.finished.reason is FinishReason.STOP:
        assert isinstance(json.loads(answer.text), dict)


@pytest.mark.parametrize("schema", [{}, True, {"description": "anything"}], ids=str)
async def test_an_empty_schema_allows_any_json(engine: LlamaEngine, schema: dict[str, JsonValue] | bool) -> None:
    constraint = JsonSchema(schema=schema)
    answer = await answered(engine, asking("Say true.", max_tokens=20, constraint=constraint))
    assert answer.finished.reason is FinishReason.LENGTH or json.loads(answer.text) is not ...


async def test_the_token_limit_inside_json_is_a_length(engine: LlamaEngine) -> None:
    answer = await answered(engine, asking("A person.", max_tokens=4, constraint=JsonSchema(schema=PERSON)))
    assert answer.finished.reason is FinishReason.LENGTH
    assert answer.finished.usage.completion_tokens == 4


async def test_a_value_that_ends_on_the_last_allowed_token_is_a_stop(engine: LlamaEngine) -> None:
    constraint = JsonSchema(schema={"const": "exactly this text"})
    whole = await answered(engine, asking("x", max_tokens=50, constraint=constraint))
    count = whole.finished.usage.completion_tokens
    exact = await answered(engine, asking("x", max_tokens=count, constraint=constraint))
    assert exact.text == whole.text
    assert exact.finished.reason is FinishReason.STOP


async def test_grammars_hold(engine: LlamaEngine) -> None:
    lark = Grammar(syntax="lark", definition='start: "yes" | "no"')
    assert (await answered(engine, asking("Really?", constraint=lark))).text in {"yes", "no"}
    regex = Grammar(syntax="regex", definition="[0-9]{3}-[0-9]{4}")
    number = (await answered(engine, asking("Number?", constraint=regex))).text
    assert len(number) == 8
    assert number[3] == "-"


async def refused(engine: LlamaEngine, constraint: JsonSchema | Grammar) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await answered(engine, asking("x", max_tokens=2, constraint=constraint))
    assert caught.value.code is Code.INVALID_PARAMETER
    return caught.value


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "string", "pattern": "^(unclosed"}, "#/pattern"),
        ({"properties": {"a": {"$ref": "https://schemas.invalid/x.json"}}}, "#/properties/a/$ref"),
        ({"type": "strng"}, "#/type"),
        ({"type": "object", "properties": {"a": {"type": "string", "pattern": "^a(?=b)"}}}, "#/properties/a/pattern"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/missing"}}}, "#/$defs/missing"),
        ({"items": {"not": {}}}, "#/items/not"),
        ({"anyOf": [{"type": "array", "uniqueItems": True}]}, "#/anyOf/0/uniqueItems"),
        ({"type": "object", "properties": {"d": {"type": "string", "format": "phone"}}}, "#/properties/d/format"),
        ({"type": "object", "properties": {"e": {"enum": []}}, "required": ["e"]}, "Unsatisfiable schema"),
        ({"type": "integer", "multipleOf": 999_983}, "#/multipleOf"),
        ({"type": "array", "minItems": 100_000_000, "items": {}}, "#/minItems"),
        ({"properties": {"a": {"type": "string", "minLength": 100_000_000}}}, "#/properties/a/minLength"),
        ({"type": "string", "pattern": "^a{1000000}$"}, "#/pattern"),
        ({"type": "string", "pattern": "^(ab){0,1000000}$"}, "#/pattern"),
        ({"properties": None}, "#/properties"),
        (False, "false"),
    ],
    ids=str,
)
async def test_what_cannot_be_kept_is_named_with_its_place(engine: LlamaEngine, schema: Any, words: str) -> None:
    refusal = await refused(engine, JsonSchema(schema=schema))
    assert words in refusal.message
    assert refusal.param == "response_format.json_schema.schema"


async def test_a_bad_grammar_is_refused(engine: LlamaEngine) -> None:
    await refused(engine, Grammar(syntax="lark", definition="start: missing_rule"))
    await refused(engine, Grammar(syntax="regex", definition="(unclosed"))
    await refused(engine, Grammar(syntax="gbnf", definition='root ::= "x"'))


def deep(levels: int) -> dict[str, JsonValue]:
    schema: dict[str, JsonValue] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def forked(levels: int) -> dict[str, JsonValue]:
    schema: dict[str, JsonValue] = {"type": "string"}
    for _ in range(levels):
        side = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
        schema = {"anyOf": [side, {"type": "object", "properties": {"b": {"type": "null"}}, "required": ["b"]}]}
    return schema


CHAIN = {"$ref": "#/$defs/n0", "$defs": {f"n{i}": {"allOf": [{"$ref": f"#/$defs/n{i + 1}"}]} for i in range(500)}}
CHAIN["$defs"]["n500"] = {"type": "string"}  # type: ignore[index]

HOSTILE: dict[str, JsonValue] = {
    "3,000 nested arrays": deep(3000),
    "400 nested anyOf": forked(400),
    "an enum of 200,000": {"enum": [f"{number:012}" for number in range(200_000)]},
    "an enum of 50,000": {"enum": [f"{number:012}" for number in range(50_000)]},
    "a counted pattern": {"type": "string", "pattern": "(a{1,1000}){1,1000}"},
    "many items": {"type": "array", "minItems": 100_000_000, "items": {}},
    "a chain of references": CHAIN,
    "5,000 properties": {"type": "object", "properties": {f"p{number}": {"type": "integer"} for number in range(5000)}},
    "huge numbers": {"type": "number", "minimum": -1e300, "maximum": 1e300},
    "several multiples": {"allOf": [{"type": "integer", "multipleOf": 997}, {"multipleOf": 991}, {"multipleOf": 983}]},
    "a circle": {"$ref": "#"},
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_schema_is_refused_or_answered_in_a_bounded_time(engine: LlamaEngine, name: str) -> None:
    started, worker = time.monotonic(), engine.status.worker_pid
    code: Code | None = None
    try:
        await answered(engine, asking("x", max_tokens=2, constraint=JsonSchema(schema=HOSTILE[name])))
    except Refusal as refusal:
        code = refusal.code
    assert code in {None, Code.INVALID_PARAMETER}
    assert time.monotonic() - started < SECONDS_FOR_A_HOSTILE_SCHEMA
    assert engine.status.worker_pid == worker
    assert (await answered(engine, asking("Still there?", max_tokens=2))).deltas
