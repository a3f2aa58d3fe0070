"""A broad sample of schemas on the real model: an answer validates, and what is refused is named with its place."""

import json

import jsonschema
import pytest

from pocketserver.chat import FinishReason, JsonSchema, JsonValue, Sampling
from pocketserver.engines.llama.process import LlamaEngine
from pocketserver.errors import Code, Refusal
from tests.engines.llama.asking import answered, asking
from tests.engines.sim.schema_table import FOLLOWED, REFUSED

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.real_model]

WARM = Sampling(temperature=0.8, seed=5)
Validator = jsonschema.Draft202012Validator


def can_be_judged(schema: JsonValue) -> bool:
    """Whether the validator reads this schema as JSON Schema means it: Python's patterns and floats are its own."""
    try:
        Validator.check_schema(schema, format_checker=Validator.FORMAT_CHECKER)
    except jsonschema.SchemaError:
        return False
    return "\\\\W" not in json.dumps(schema) and "0.1" not in json.dumps(schema)


SAMPLE = [schema for schema in FOLLOWED if can_be_judged(schema)][::6]


async def test_every_finished_answer_validates(engine: LlamaEngine) -> None:
    finished = 0
    for schema in SAMPLE:
        request = asking("Go.", max_tokens=32, sampling=WARM, constraint=JsonSchema(schema=schema))
        answer = await answered(engine, request)
        if answer.finished.reason is FinishReason.LENGTH:
            continue
        finished += 1
        Validator(schema).validate(json.loads(answer.text))
    assert len(SAMPLE) >= 38
    assert finished > len(SAMPLE) / 2


async def test_what_is_refused_names_a_place(engine: LlamaEngine) -> None:
    refused = 0
    for schema, _ in REFUSED[::4]:
        refusal = await refusal_of(engine, schema)
        if refusal is None:  # more is possible here than in the simulator
            continue
        refused += 1
        assert refusal.code is Code.INVALID_PARAMETER
        assert refusal.param == "response_format.json_schema.schema"
        assert "#" in refusal.message or "`false`" in refusal.message, schema
    assert refused > len(REFUSED) / 8


async def refusal_of(engine: LlamaEngine, schema: JsonValue) -> Refusal | None:
    try:
        await answered(engine, asking("Go.", max_tokens=1, constraint=JsonSchema(schema=schema)))
    except Refusal as refusal:
        return refusal
    return None
