"""Answers under a constraint: a value that is valid for the schema, a text that the regular expression matches."""

import json
import random
from collections.abc import Mapping
from typing import assert_never

from pocketserver.chat import AnyJsonObject, GenerationRequest, Grammar, JsonSchema, JsonValue
from pocketserver.engines.llama.schema_check import SchemaFault
from pocketserver.engines.sim.examples.effort import Effort, TooComplicated
from pocketserver.engines.sim.examples.maker import value_for
from pocketserver.engines.sim.examples.pattern import PatternFault, read_pattern
from pocketserver.engines.sim.examples.regex import Algebra
from pocketserver.engines.sim.examples.words import fair_word
from pocketserver.errors import Code, Refusal

SCHEMA_PARAM = "response_format.json_schema.schema"


def reply_to(request: GenerationRequest, *, seed: int | str = 0, param: str = SCHEMA_PARAM) -> str | None:
    """The text of a constrained answer; None where the answer is free.

    The same seed, request seed and messages make the same text. Raises Refusal(INVALID_PARAMETER) at `param`.
    """
    words = json.dumps([message.content for message in request.messages])
    full_seed = f"{seed}:{request.sampling.seed}:{words}"
    match request.constraint:
        case None:
            return None
        case AnyJsonObject():
            return '{"reply": "ok"}'
        case JsonSchema(schema=schema):
            return json.dumps(example(schema, seed=full_seed, param=param), ensure_ascii=False)
        case Grammar(syntax=syntax, definition=definition):
            return _matching(syntax, definition, full_seed, param)
        case _:
            assert_never(request.constraint)


def example(schema: Mapping[str, JsonValue] | bool, *, seed: int | str = 0, param: str = SCHEMA_PARAM) -> JsonValue:
    """One value that the schema admits, optional parts by the seed.

    Raises Refusal(INVALID_PARAMETER) at `param`, naming keyword and place, for what the llama engine refuses too, and
    for values that would be larger than 100,000 characters.
    """
    try:
        return value_for(schema, str(seed))
    except SchemaFault as fault:
        raise _refuse(str(fault), param) from fault


def tool_arguments(
    parameters: Mapping[str, JsonValue] | None, *, seed: int | str = 0, param: str = "tools[0].function.parameters"
) -> dict[str, JsonValue]:
    """Arguments for a call, always an object. Absent, empty, `null` and `[]` parameters or properties mean none.

    Raises Refusal(INVALID_PARAMETER) at `param`, like `example`.
    """
    made = example(_object_schema(parameters), seed=seed, param=param)
    assert isinstance(made, dict)
    return made


def _object_schema(parameters: Mapping[str, JsonValue] | None) -> dict[str, JsonValue]:
    schema = dict(parameters or {})
    schema["type"] = "object"
    if not isinstance(schema.get("properties"), Mapping):
        schema["properties"] = {}
    if not isinstance(schema.get("required", []), list):
        del schema["required"]
    return schema


def _matching(syntax: str, definition: str, seed: str, param: str) -> str:
    if syntax != "regex":
        raise _refuse(f"The simulator follows grammars of the syntax regex, not {syntax[:40]}. Use a regex.", param)
    algebra = Algebra(Effort())
    try:
        language = algebra.whole(read_pattern(definition, algebra))
        text = fair_word(algebra, language, random.Random(seed))  # noqa: S311 - repeatable on purpose
    except PatternFault as fault:
        raise _refuse(f"The regular expression {fault}.", param) from fault
    except (TooComplicated, RecursionError) as error:
        raise _refuse("The regular expression is too complicated to find a text for.", param) from error
    if text is None:
        raise _refuse("The regular expression matches no text.", param)
    return text


def _refuse(sentence: str, param: str) -> Refusal:
    return Refusal(Code.INVALID_PARAMETER, sentence, param=param)
