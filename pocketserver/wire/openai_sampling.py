"""The fields of sampling and stopping that OpenAI's chat and completions share, and the local extensions of them.

Source: the OpenAI API reference; `top_k` and those below it are llama-server's and vLLM's.
"""

from collections.abc import Mapping
from functools import lru_cache
from operator import attrgetter

import msgspec

from pocketserver.chat import Sampling
from pocketserver.wire.json_body import invalid

MAX_STOP = 64
MOST_TOKENS = 2**31 - 1
_LARGEST_SHOWN = 10**15


class SamplingFields(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a request's body; `null` means absent."""

    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None


class Defaults(msgspec.Struct, frozen=True, kw_only=True):
    """What a field means that the client left out: the server's settings, not OpenAI's values."""

    max_tokens: int
    temperature: float
    top_p: float
    stop: tuple[str, ...]


_given = attrgetter(*SamplingFields.__struct_fields__)
_NOTHING_GIVEN = (None,) * len(SamplingFields.__struct_fields__)


def sampling(fields: SamplingFields, defaults: Defaults) -> Sampling:
    """Raises INVALID_PARAMETER for a value outside its range, with the field's name."""
    return _usual(defaults) if _given(fields) == _NOTHING_GIVEN else _read(fields, defaults)


@lru_cache(maxsize=8)
def _usual(defaults: Defaults) -> Sampling:
    """What most requests get: they leave all of it to the server."""
    return _read(SamplingFields(), defaults)


def _read(fields: SamplingFields, defaults: Defaults) -> Sampling:
    return Sampling(
        temperature=in_range("temperature", fields.temperature, 0, 2, defaults.temperature),
        top_p=in_range("top_p", fields.top_p, 0, 1, defaults.top_p),
        top_k=int(in_range("top_k", fields.top_k, -1, 10_000_000, 0)),
        min_p=in_range("min_p", fields.min_p, 0, 1, 0.0),
        typical_p=in_range("typical_p", fields.typical_p, 0, 1, 1.0),
        repeat_penalty=in_range("repeat_penalty", fields.repeat_penalty, 0.01, 10, 1.0),
        frequency_penalty=in_range("frequency_penalty", fields.frequency_penalty, -2, 2, 0.0),
        presence_penalty=in_range("presence_penalty", fields.presence_penalty, -2, 2, 0.0),
        penalty_last_n=int(in_range("repeat_last_n", fields.repeat_last_n, 0, 1_000_000, 64)),
        dry_multiplier=in_range("dry_multiplier", fields.dry_multiplier, 0, 100, 0.0),
        dry_base=in_range("dry_base", fields.dry_base, 1, 10, 1.75),
        dry_allowed_length=int(in_range("dry_allowed_length", fields.dry_allowed_length, 1, 1000, 2)),
        logit_bias=_logit_bias(fields.logit_bias or {}),
        seed=None if fields.seed is None else fields.seed & 0xFFFFFFFF,
    )


def stop_texts(given: str | list[str] | None, defaults: Defaults) -> tuple[str, ...]:
    """Empty texts stop nothing, and never at once."""
    if given is None:
        return defaults.stop
    stop = (given,) if isinstance(given, str) else tuple(given)
    if len(stop) > MAX_STOP or any(len(text) > 1000 for text in stop):
        raise invalid("stop", f"`stop` takes at most {MAX_STOP} texts of at most 1000 characters.")
    return tuple(text for text in stop if text)


def in_range(name: str, value: float | None, low: float, high: float, default: float) -> float:
    """The value, or the default for none. Raises INVALID_PARAMETER."""
    if value is None:
        return default
    if not low <= value <= high:
        raise invalid(name, f"`{name}` must be between {low:g} and {high:g}, not {shown(value)}.")
    return value


def shown(value: float) -> str:
    """A number for a sentence. JSON's integers have no limit, and the largest are no float."""
    return f"{value:g}" if abs(value) < _LARGEST_SHOWN else "a number that large"


def _logit_bias(given: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    biases = []
    for token, bias in given.items():
        if not (token.isascii() and token.isdigit() and len(token) < 10):
            raise invalid("logit_bias", "`logit_bias` maps token ids, written as text, to numbers from -100 to 100.")
        biases.append((int(token), in_range("logit_bias", bias, -100, 100, 0)))
    return tuple(biases)
