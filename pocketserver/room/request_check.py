"""Whether a request that came over a link may go to an engine: the bounds that wire modules hold their clients to.

A guest of ours has checked all of it already; another program that holds a key need not have.
"""

import math
from collections.abc import Callable, Mapping

import msgspec

from pocketserver.chat import AnyJsonObject, GenerationRequest, Grammar, JsonSchema, JsonValue
from pocketserver.errors import Code, Refusal

_MOST_TOKENS = 10_000_000
_MOST_ENTRIES = 4096
_RANGES: Mapping[str, tuple[Callable[[GenerationRequest], float | None], float, float]] = {
    "max_tokens": (lambda request: request.max_tokens, 0, _MOST_TOKENS),
    "top_logprobs": (lambda request: request.top_logprobs, 0, 20),
    "reasoning_budget": (lambda request: request.reasoning_budget, 0, _MOST_TOKENS),
    "temperature": (lambda request: request.sampling.temperature, 0, 100),
    "top_p": (lambda request: request.sampling.top_p, 0, 1),
    "top_k": (lambda request: request.sampling.top_k, -1, _MOST_TOKENS),
    "min_p": (lambda request: request.sampling.min_p, 0, 1),
    "typical_p": (lambda request: request.sampling.typical_p, 0, 1),
    "repeat_penalty": (lambda request: request.sampling.repeat_penalty, 0, 100),
    "frequency_penalty": (lambda request: request.sampling.frequency_penalty, -100, 100),
    "presence_penalty": (lambda request: request.sampling.presence_penalty, -100, 100),
    "penalty_last_n": (lambda request: request.sampling.penalty_last_n, -1, _MOST_TOKENS),
    "dry_multiplier": (lambda request: request.sampling.dry_multiplier, 0, 100),
    "dry_base": (lambda request: request.sampling.dry_base, 0, 100),
    "dry_allowed_length": (lambda request: request.sampling.dry_allowed_length, 0, _MOST_TOKENS),
    "seed": (lambda request: request.sampling.seed, 0, 2**32 - 1),
}
_LENGTHS: Mapping[str, Callable[[GenerationRequest], int]] = {
    "stop": lambda request: len(request.stop),
    "tools": lambda request: len(request.tools),
    "logit_bias": lambda request: len(request.sampling.logit_bias),
    "via": lambda request: len(request.via),
}


def check(request: GenerationRequest) -> None:
    """Raise INVALID_PARAMETER, naming the field, for a request that no wire module lets through."""
    for name, (value_of, low, high) in _RANGES.items():
        value = value_of(request)
        if value is not None and not low <= value <= high:  # NaN is nowhere
            raise _refused(name, f"must be from {low:g} to {high:g}")
    for name, length_of in _LENGTHS.items():
        if length_of(request) > _MOST_ENTRIES:
            raise _refused(name, f"may have {_MOST_ENTRIES} entries at most")
    _check_prompt(request)
    _check_biases(request)
    _check_documents(request)


def _check_prompt(request: GenerationRequest) -> None:
    if (request.prompt is None) == (not request.messages):
        raise _refused("messages", "or a prompt must be given, and not both")
    if any(not 0 <= token < 2**31 for token in request.prompt_tokens):
        raise _refused("prompt", "holds a number that is no token")


def _check_biases(request: GenerationRequest) -> None:
    for token, bias in request.sampling.logit_bias:
        if not 0 <= token < 2**31 or not math.isfinite(bias) or abs(bias) > 1000:
            raise _refused("logit_bias", "maps tokens to numbers from -1000 to 1000")


def _check_documents(request: GenerationRequest) -> None:
    """MessagePack has more kinds of values than JSON, which is all that templates and schemas know."""
    documents: list[JsonValue] = [tool.parameters for tool in request.tools]
    if request.template_arguments:
        documents.append(request.template_arguments)
    match request.constraint:
        case JsonSchema(schema=schema):
            documents.append(schema)
        case Grammar() | AnyJsonObject() | None:
            pass
    if not all(map(_is_json, documents)):
        raise _refused("tools", "and schemas must be JSON")


def _is_json(document: JsonValue) -> bool:
    try:
        same: bool = msgspec.json.decode(msgspec.json.encode(document)) == document
    except (ValueError, TypeError, RecursionError):
        return False
    return same


def _refused(name: str, rule: str) -> Refusal:
    return Refusal(Code.INVALID_PARAMETER, f"`{name}` {rule}.", param=name)
