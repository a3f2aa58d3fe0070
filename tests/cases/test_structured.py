"""Answers held to a schema, asked for as clients do: each holds, or is refused with the keyword and its place."""

import asyncio
import json
from typing import Any

import aiohttp
import jsonschema
import pytest

from tests.cases.asking import Answered, ask, ask_raw

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.real_model]
REAL = pytest.mark.parametrize("server", ["real"], indirect=True)
PLACE = "response_format.json_schema.schema"
TALK = {
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
MOOD = ["\u958b\u5fc3", "\U0001f600", 'a"b\\c\n']


def form(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "out", "strict": True, "schema": schema, **more}}


def value_of(answer: Answered) -> Any:
    assert answer.status == 200, answer.body
    return json.loads(answer.text)


@REAL
async def test_references_hold_through_both_kinds_of_definitions(http: aiohttp.ClientSession) -> None:  # SO-01
    answer = await ask(http, response_format=form(TALK), max_tokens=200)
    value = value_of(answer)
    jsonschema.Draft202012Validator(TALK).validate(value)
    assert {turn["who"] for turn in value} <= {"Ann", "Bo"}
    assert answer.finish_reason == "stop"


@REAL
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "string", "pattern": "^(unclosed"}, "#/pattern"),
        ({"type": "object", "properties": {"a": {"$ref": "https://schemas.invalid/x.json"}}}, "#/properties/a/$ref"),
        ({"type": "strng"}, "#/type"),
        ({"type": "object", "properties": {"a": {"type": "string", "pattern": "^a(?=b)"}}}, "#/properties/a/pattern"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/missing"}}}, "#/$defs/missing"),
    ],
    ids=str,
)
async def test_a_schema_that_cannot_be_held_is_refused_before_any_event(  # SO-03
    http: aiohttp.ClientSession, schema: Any, words: str, stream: bool
) -> None:
    answer = await ask(http, response_format=form(schema), stream=stream)
    assert answer.status == 400
    assert answer.error["code"] == "invalid_parameter"
    assert answer.error["param"] == PLACE
    assert words in answer.error["message"]


@REAL
@pytest.mark.parametrize("ascii_only", [True, False])
async def test_escapes_are_a_spelling_and_not_content(http: aiohttp.ClientSession, ascii_only: bool) -> None:  # SO-05
    key = "\u5fc3\u60c5"
    schema = {"type": "object", "properties": {key: {"enum": MOOD}}, "required": [key], "additionalProperties": False}
    body = {
        "model": "default",
        "messages": [{"role": "user", "content": "hi"}],
        "response_format": form(schema),
        "temperature": 0,
        "max_tokens": 60,
    }
    answer = await ask_raw(http, json.dumps(body, ensure_ascii=ascii_only).encode())
    value = value_of(answer)
    assert list(value) == [key]
    assert value[key] in MOOD


@REAL
@pytest.mark.parametrize(
    ("wanted", "param"),
    [
        ({"type": "json_schema", "json_schema": {"name": "x"}}, PLACE),
        ({"type": "json_schema"}, "response_format.json_schema"),
        (form(True), PLACE),
        ({"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}, "response_format.json_schema.name"),
        ({"type": "xml"}, "response_format.type"),
    ],
)
async def test_incomplete_forms_name_what_is_missing(  # SO-07
    http: aiohttp.ClientSession, wanted: dict[str, Any], param: str
) -> None:
    answer = await ask(http, response_format=wanted)
    assert answer.status == 400
    assert answer.error["param"] == param
    if wanted["type"] == "xml":
        assert all(word in answer.error["message"] for word in ("text", "json_object", "json_schema"))


@REAL
@pytest.mark.parametrize("schema", [{}, {"description": "anything"}])
async def test_a_schema_without_demands_gives_any_json(http: aiohttp.ClientSession, schema: Any) -> None:  # SO-07
    answer = await ask(http, response_format=form(schema), max_tokens=60, seed=1)
    assert answer.status == 200
    if answer.finish_reason == "stop":
        json.loads(answer.text)


@REAL
async def test_properties_hold_without_a_type(http: aiohttp.ClientSession) -> None:  # SO-07
    schema = {"properties": {"a": {"type": "integer"}}, "required": ["a"]}
    answers = [await ask(http, response_format=form(schema), max_tokens=60, seed=seed) for seed in range(8)]
    finished = [answer for answer in answers if answer.finish_reason == "stop"]
    assert {answer.status for answer in answers} == {200}
    assert finished, "no answer came to its end, so nothing was checked"
    for answer in finished:
        jsonschema.Draft202012Validator(schema).validate(value_of(answer))


@REAL
async def test_a_schema_beside_json_object_is_applied(http: aiohttp.ClientSession) -> None:  # SO-07
    schema = {"type": "object", "properties": {"k": {"const": "v"}}, "required": ["k"], "additionalProperties": False}
    answer = await ask(http, response_format={"type": "json_object", "schema": schema}, max_tokens=30)
    assert value_of(answer) == {"k": "v"}


@REAL
async def test_a_server_answers_health_and_others_while_a_huge_schema_compiles(  # SO-09
    http: aiohttp.ClientSession,
) -> None:
    schema = {"enum": [f"{number:012}" for number in range(60_000)]}
    asking = asyncio.create_task(ask(http, response_format=form(schema)))
    while not asking.done():
        async with http.get("/health") as response:
            assert response.status == 200
        await asyncio.sleep(0.1)
    assert (await asking).status in {200, 400}
    assert (await ask(http)).status == 200


@REAL
async def test_the_token_limit_inside_a_value_is_a_length(http: aiohttp.ClientSession) -> None:
    answer = await ask(http, response_format=form(TALK), max_tokens=3)
    assert answer.finish_reason == "length"
    assert answer.text.startswith("[")


@REAL
async def test_several_choices_all_hold_to_the_schema(http: aiohttp.ClientSession) -> None:
    answer = await ask(http, response_format=form(TALK), max_tokens=100, n=2)
    choices = answer.document["choices"]
    assert len(choices) == 2
    for choice in choices:
        jsonschema.Draft202012Validator(TALK).validate(json.loads(choice["message"]["content"]))
