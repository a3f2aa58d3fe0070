"""The fields that several of Ollama's requests share: `keep_alive`, `think`, `format` and model names.

Sources: Ollama's API documentation, and Go's `time.ParseDuration` for durations.
"""

import re
from collections.abc import Mapping

from pocketserver.chat import AnyJsonObject, Constraint, JsonSchema, JsonValue
from pocketserver.errors import Code, Refusal
from pocketserver.wire.json_body import invalid

FOR_EVER = -1.0
"""A `keep_alive` that never unloads; every negative one means that."""
_LONGEST_SECONDS = 9.2e9  # what fits into 63 bits of nanoseconds; longer is for ever
_UNIT_SECONDS: Mapping[str, float] = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0,
}  # fmt: skip
_NUMBER = r"(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})"
_STEP = re.compile(rf"({_NUMBER})(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_DURATION = re.compile(rf"[+-]?(?:0|(?:{_STEP.pattern})+)", re.ASCII)
_LONGEST_TEXT = 200
_LEVELS = ("high", "medium", "low", "max")
_NAME_PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_NAME = re.compile(rf"(?:(?:[A-Za-z0-9_][A-Za-z0-9_.:-]{{0,349}}/)?{_NAME_PART}/)?{_NAME_PART}(?::{_NAME_PART})?")


def keep_alive(given: JsonValue) -> float | None:
    """Seconds to keep the model after the request. None is the server's default, negative is for ever, 0 unloads.

    Numbers are seconds, strings are durations with units (`5m`, `1h30m`, `-1m`); only `"0"` needs none.
    """
    if given is None or given == "":
        return None
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        raise _bad_keep_alive(given)
    seconds = _duration_seconds(given) if isinstance(given, str) else given
    if seconds < 0 or seconds > _LONGEST_SECONDS:
        return FOR_EVER
    return float(seconds)


def _duration_seconds(text: str) -> float:
    if len(text) > _LONGEST_TEXT or not _DURATION.fullmatch(text):
        raise _bad_keep_alive(text)
    seconds = sum(float(number) * _UNIT_SECONDS[unit] for number, unit in _STEP.findall(text))
    return -seconds if text.startswith("-") else seconds


def _bad_keep_alive(given: JsonValue) -> Refusal:
    shown = ascii(given)[:40] if isinstance(given, str) else "this value"
    missing = ": a unit is missing" if isinstance(given, str) and re.fullmatch(r"[+-]?[\d.]+", given) else ""
    return invalid(
        "keep_alive",
        f"keep_alive {shown} is no duration{missing}. Write seconds as a number (300, -1 for ever, 0 to unload) or a "
        'duration with a unit ("5m", "1h30m", "-1m").',
    )


def think(given: JsonValue) -> str | None:
    """The `reasoning_effort` that is meant: None when the client says nothing, `none` for false."""
    if given is None or given == "":
        return None
    if isinstance(given, bool):
        return "medium" if given else "none"
    if isinstance(given, str) and given in _LEVELS:
        return given
    shown = given if isinstance(given, str) and len(given) < 40 else "…"
    raise invalid("think", f'invalid think value: "{shown}" (must be "high", "medium", "low", "max", true, or false)')


def constraint(given: JsonValue) -> Constraint | None:
    """What `format` holds the answer to: `"json"` or a schema; nothing when absent, null or empty."""
    if given is None or given == "":
        return None
    if given == "json":
        return AnyJsonObject()
    if isinstance(given, dict):
        return JsonSchema(schema=given, strict=True)
    shown = given[:40] if isinstance(given, str) else type(given).__name__
    raise invalid("format", f'invalid format: {shown!a}; expected "json" or a valid JSON Schema object')


def required_name(*given: str | None) -> str:
    """The first name that is there, as the client wrote it. Raises 400 for none and for what cannot be a name."""
    name = next((name for name in given if name), None)
    if name is None:
        raise Refusal(Code.MALFORMED_REQUEST, "model is required", param="model")
    if not _NAME.fullmatch(name) or ".." in name:
        raise invalid("model", "invalid model name")
    return name
