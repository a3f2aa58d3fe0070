"""`options` of Ollama's requests, over a model's stored PARAMETERs, over Ollama's defaults.

Source: Ollama's API documentation and the Modelfile reference, "Valid parameters and values". Unknown options are
ignored and named; a wrong type is refused. `null` means absent.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from pocketserver.chat import JsonValue, Sampling
from pocketserver.models.options import OPTIONS, OptionFault, checked_value
from pocketserver.models.stored import ParameterValue
from pocketserver.wire.json_body import invalid

Warn: TypeAlias = Callable[[str, str], None]
"""Told of a field and of what became of it."""

UNLIMITED_TOKENS = 2**31 - 1
"""`num_predict` of 0 and below: the answer ends by itself, or where the context is full."""
DEFAULT_REPEAT_LAST_N = 64
_WHOLE_CONTEXT = 1_000_000

_FLOATS: Mapping[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "typical_p": (0.0, 1.0),
    "repeat_penalty": (0.01, 10.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
}
"""Options of the sampler with the values that it can use; what is outside is clamped and named."""

_USED = frozenset({*_FLOATS, "top_k", "seed", "num_predict", "num_ctx", "repeat_last_n", "stop"})
"""Every other option changes nothing: the server's own settings decide, or nobody does any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the options of one request come to. `num_ctx` None is the whole context that the model is served with."""

    sampling: Sampling
    max_tokens: int
    stop: tuple[str, ...]
    num_ctx: int | None


def parse(given: Mapping[str, JsonValue] | None, stored: Mapping[str, JsonValue], warn: Warn) -> Options:
    """Lay the request's options over the model's own. Raises Refusal that names the option of a wrong type."""
    asked = checked(given)
    for name in given or {}:
        if name not in _USED and (given or {})[name] is not None:
            warn(f"options.{name}", "ignored")
    values = {**stored, **asked}
    return Options(
        sampling=_sampling(values, warn),
        max_tokens=_max_tokens(values),
        stop=tuple(values.get("stop") or ()),
        num_ctx=_num_ctx(values, warn),
    )


def checked(given: Mapping[str, JsonValue] | None) -> dict[str, ParameterValue]:
    """The known options that are there. Raises Refusal, in Ollama's words, for one of a wrong type."""
    found = {name: value for name, value in (given or {}).items() if name in OPTIONS and value is not None}
    return {name: _checked(name, value) for name, value in found.items()}


def _checked(name: str, value: JsonValue) -> ParameterValue:
    if name == "stop" and isinstance(value, list):
        value = [text for text in value if text != ""]
    try:
        return checked_value(name, value)
    except OptionFault as fault:
        raise invalid(f"options.{name}", str(fault)) from fault


def _sampling(values: Mapping[str, JsonValue], warn: Warn) -> Sampling:
    seed = _integer(values, "seed", -1)
    return Sampling(
        temperature=_number(values, "temperature", 0.8, warn),
        top_k=min(max(_integer(values, "top_k", 40), 0), 10_000_000),
        top_p=_number(values, "top_p", 0.9, warn),
        min_p=_number(values, "min_p", 0.0, warn),
        typical_p=_number(values, "typical_p", 1.0, warn),
        repeat_penalty=_number(values, "repeat_penalty", 1.0, warn),
        presence_penalty=_number(values, "presence_penalty", 0.0, warn),
        frequency_penalty=_number(values, "frequency_penalty", 0.0, warn),
        penalty_last_n=_repeat_last_n(values),
        seed=None if seed < 0 else seed & 0xFFFFFFFF,
    )


def _number(values: Mapping[str, JsonValue], name: str, default: float, warn: Warn) -> float:
    low, high = _FLOATS[name]
    value = values.get(name, default)
    used = float(min(max(value, low), high))
    if used != value:
        warn(f"options.{name}", f"clamped to {used:g}")
    return used


def _integer(values: Mapping[str, JsonValue], name: str, default: int) -> int:
    """Floats are cut, as Ollama does."""
    value = values.get(name, default)
    return int(min(max(value, -(2**63)), 2**63))


def _repeat_last_n(values: Mapping[str, JsonValue]) -> int:
    window = _integer(values, "repeat_last_n", DEFAULT_REPEAT_LAST_N)
    return _WHOLE_CONTEXT if window < 0 else min(window, _WHOLE_CONTEXT)


def _max_tokens(values: Mapping[str, JsonValue]) -> int:
    wanted = _integer(values, "num_predict", -1)
    return UNLIMITED_TOKENS if wanted <= 0 else min(wanted, UNLIMITED_TOKENS)


def _num_ctx(values: Mapping[str, JsonValue], warn: Warn) -> int | None:
    wanted = _integer(values, "num_ctx", 0)
    if "num_ctx" in values and wanted <= 0:
        warn("options.num_ctx", "ignored")
    return wanted if wanted > 0 else None
