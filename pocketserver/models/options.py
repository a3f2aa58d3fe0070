"""Ollama's model options: which there are, of which type, and which have an effect here. One table, no engine."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from pocketserver.chat import JsonValue
from pocketserver.errors import Code, Refusal
from pocketserver.models.stored import ParameterValue

MAX_STOPS = 64
MAX_STOP_CHARACTERS = 4_096
_INT64 = 1 << 63


class Kind(StrEnum):
    """The type of an option's value, in the word that Ollama's errors use."""

    INTEGER = "integer"
    FLOAT = "float32"
    BOOLEAN = "boolean"
    STRINGS = "array"


@dataclass(frozen=True, slots=True)
class Option:
    """`used` is false for what is accepted for the sake of old Modelfiles and has no effect."""

    kind: Kind
    used: bool = True


OPTIONS: Mapping[str, Option] = {
    "temperature": Option(Kind.FLOAT),
    "top_k": Option(Kind.INTEGER),
    "top_p": Option(Kind.FLOAT),
    "min_p": Option(Kind.FLOAT),
    "typical_p": Option(Kind.FLOAT),
    "seed": Option(Kind.INTEGER),
    "num_predict": Option(Kind.INTEGER),
    "num_ctx": Option(Kind.INTEGER),
    "num_keep": Option(Kind.INTEGER),
    "repeat_last_n": Option(Kind.INTEGER),
    "repeat_penalty": Option(Kind.FLOAT),
    "presence_penalty": Option(Kind.FLOAT),
    "frequency_penalty": Option(Kind.FLOAT),
    "stop": Option(Kind.STRINGS),
    "num_batch": Option(Kind.INTEGER),
    "num_gpu": Option(Kind.INTEGER),
    "main_gpu": Option(Kind.INTEGER),
    "use_mmap": Option(Kind.BOOLEAN),
    "num_thread": Option(Kind.INTEGER),
    "draft_num_predict": Option(Kind.INTEGER),
    "numa": Option(Kind.BOOLEAN, used=False),
    "low_vram": Option(Kind.BOOLEAN, used=False),
    "f16_kv": Option(Kind.BOOLEAN, used=False),
    "vocab_only": Option(Kind.BOOLEAN, used=False),
    "logits_all": Option(Kind.BOOLEAN, used=False),
    "use_mlock": Option(Kind.BOOLEAN, used=False),
    "embedding_only": Option(Kind.BOOLEAN, used=False),
    "penalize_newline": Option(Kind.BOOLEAN, used=False),
    "tfs_z": Option(Kind.FLOAT, used=False),
    "mirostat": Option(Kind.INTEGER, used=False),
    "mirostat_tau": Option(Kind.FLOAT, used=False),
    "mirostat_eta": Option(Kind.FLOAT, used=False),
}


class OptionFault(ValueError):  # noqa: N818 - a finding about a value
    """A value that an option cannot have, as a sentence that names both."""


def checked_value(name: str, value: JsonValue) -> ParameterValue:
    """A JSON value for an option of the table, converted as Ollama does. Raises OptionFault.

    A number with a fraction is cut for an integer; a list is needed where the option is one.
    """
    kind = OPTIONS[name].kind
    converted = _CHECKS[kind](value)
    if converted is None:
        raise OptionFault(f'option "{name}" must be of type {kind.value}')
    return converted


def value_of_text(name: str, text: str) -> ParameterValue:
    """An option's value as a Modelfile writes it; `stop` gives the list of this one. Raises OptionFault."""
    kind = OPTIONS[name].kind
    converted = _CHECKS[kind](_READ[kind](text))
    if converted is None:
        raise OptionFault(f"{text!a} is no value for {name}, which must be of type {kind.value}")
    return converted


def text_of_value(value: ParameterValue) -> list[str]:
    """The lines in which a Modelfile or a list of parameters says a value: one, or one for each of a list."""
    if isinstance(value, list):
        return value
    return [str(value).lower() if isinstance(value, bool) else str(value)]


def checked_parameters(
    values: Mapping[str, JsonValue], *, field: str = "parameters"
) -> tuple[dict[str, ParameterValue], list[str]]:
    """Options out of a JSON body: those of the table, and the names that are not in it.

    A null is an absent value. `stop` may be a single text where a model is made. Raises INVALID_PARAMETER.
    """
    known: dict[str, ParameterValue] = {}
    unknown = []
    for name, value in values.items():
        if name not in OPTIONS:
            unknown.append(name)
        elif value is not None:
            try:
                known[name] = checked_value(name, [value] if name == "stop" and isinstance(value, str) else value)
            except OptionFault as fault:
                raise Refusal(Code.INVALID_PARAMETER, str(fault), param=f"{field}.{name}") from fault
    return known, unknown


def _integer(value: JsonValue) -> int | None:
    number = _number(value)
    return None if number is None or not -_INT64 <= number < _INT64 else int(number)


def _float(value: JsonValue) -> float | None:
    number = _number(value)
    return None if number is None or abs(number) > 3.4e38 else float(number)  # the largest float32


def _number(value: JsonValue) -> int | float | None:
    """JSON has no infinity, but Python's reader makes one of 1e999; booleans are integers to Python alone."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if isinstance(value, int) or math.isfinite(value) else None


def _boolean(value: JsonValue) -> bool | None:
    return value if isinstance(value, bool) else None


def _strings(value: JsonValue) -> list[str] | None:
    if not isinstance(value, list) or len(value) > MAX_STOPS:
        return None
    sound = all(isinstance(each, str) and 0 < len(each) <= MAX_STOP_CHARACTERS for each in value)
    return list(value) if sound else None


_CHECKS: Mapping[Kind, Callable[[JsonValue], ParameterValue | None]] = {
    Kind.INTEGER: _integer,
    Kind.FLOAT: _float,
    Kind.BOOLEAN: _boolean,
    Kind.STRINGS: _strings,
}


_INTEGER_TEXT = re.compile(r"[-+]?[0-9]{1,19}")
_FLOAT_TEXT = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_BOOLEANS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}

_READ: Mapping[Kind, Callable[[str], JsonValue]] = {
    Kind.INTEGER: lambda text: int(text) if _INTEGER_TEXT.fullmatch(text) else None,
    Kind.FLOAT: lambda text: float(text) if _FLOAT_TEXT.fullmatch(text) else None,
    Kind.BOOLEAN: lambda text: _BOOLEANS.get(text.lower()),
    Kind.STRINGS: lambda text: [text],
}
