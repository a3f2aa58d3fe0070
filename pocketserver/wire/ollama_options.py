"""`options` of Ollama's requests, over a model's stored PARAMETERs, over Ollama's defaults.

Source: Ollama's API documentation and the Modelfile reference, "Valid parameters and values". Unknown options are
ignored and named; a wrong type is refused. `null` means absent.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pocketserver.chat import JsonValue, Sampling
from pocketserver.errors import Refusal
from pocketserver.wire.json_body import invalid

Warn: TypeAlias = Callable[[str, str], None]
"""Told of a field and of what became of it."""

UNLIMITED_TOKENS = 2**31 - 1
"""`num_predict` of 0 and below: the answer ends by itself, or where the context is full."""
DEFAULT_REPEAT_LAST_N = 64
MAX_STOP = 64
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

_INTEGERS = ("top_k", "seed", "num_predict", "num_ctx", "repeat_last_n")

_UNUSED: Mapping[str, str] = {
    **dict.fromkeys(("num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread", "draft_num_predict"), "integer"),
    **dict.fromkeys(
        ("use_mmap", "numa", "low_vram", "f16_kv", "vocab_only", "logits_all", "use_mlock", "embedding_only"), "boolean"
    ),
    **dict.fromkeys(("tfs_z", "mirostat_tau", "mirostat_eta"), "float32"),
    "mirostat": "integer",
    "penalize_newline": "boolean",
}
"""Options that Ollama knows and that change nothing here: the server's own settings decide, or nobody does any more."""

KINDS: Mapping[str, str] = {
    **dict.fromkeys(_FLOATS, "float32"),
    **dict.fromkeys(_INTEGERS, "integer"),
    "stop": "array",
    **_UNUSED,
}
"""Every known option and its type, in the words of Ollama's own refusal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the options of one request come to. `num_ctx` None is the whole context that the model is served with."""

    sampling: Sampling
    max_tokens: int
    stop: tuple[str, ...]
    num_ctx: int | None


def parse(given: Mapping[str, JsonValue] | None, stored: Mapping[str, JsonValue], warn: Warn) -> Options:
    """Check the types of the request's options and lay them over the model's own. Raises Refusal that names one."""
    asked = {name: value for name, value in (given or {}).items() if value is not None}
    for name, value in asked.items():
        _check(name, value)
        if name not in KINDS or name in _UNUSED:
            warn(f"options.{name}", "ignored")
    values = {**stored, **asked}
    return Options(
        sampling=_sampling(values, warn),
        max_tokens=_max_tokens(values),
        stop=_stop(values.get("stop")),
        num_ctx=_num_ctx(values, warn),
    )


def check(given: Mapping[str, JsonValue] | None) -> None:
    """Only refuse what has a wrong type: for requests that need no sampling."""
    for name, value in (given or {}).items():
        if value is not None:
            _check(name, value)


def _check(name: str, value: JsonValue) -> None:
    kind = KINDS.get(name)
    if kind is None:
        return
    if kind == "array":
        if not isinstance(value, list):
            raise _wrong(name, "array")
        if not all(isinstance(text, str) for text in value):
            raise _wrong(name, "an array of strings")
        return
    if kind == "boolean":
        fits = isinstance(value, bool)
    else:
        fits = isinstance(value, int | float) and not isinstance(value, bool)
    if not fits:
        raise _wrong(name, kind)


def _wrong(name: str, kind: str) -> Refusal:
    return invalid(f"options.{name}", f'option "{name}" must be of type {kind}')


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


def _stop(given: JsonValue) -> tuple[str, ...]:
    stop: Sequence[str] = given if isinstance(given, list | tuple) else ((given,) if isinstance(given, str) else ())
    if len(stop) > MAX_STOP or any(len(text) > 1000 for text in stop):
        raise invalid("options.stop", f'option "stop" takes at most {MAX_STOP} texts of at most 1000 characters')
    return tuple(text for text in stop if text)
