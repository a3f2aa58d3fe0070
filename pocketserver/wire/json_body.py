"""A request body as a typed value, or the refusal that names the field at fault."""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import msgspec

from pocketserver.chat import JsonValue
from pocketserver.errors import Code, Refusal

T = TypeVar("T")
Warn: TypeAlias = Callable[[str, str], None]
"""Tell the client that a field (first) was not done as asked (second)."""
_NO_WORDS: Mapping[str, str] = MappingProxyType({})
_NOTHING = frozenset({b"null", b"{}", b"[]"})
"""Values that ask for nothing."""

_DIGITS = b"0123456789"
_MANY = 19
_MANY_DIGITS = re.compile(rb"[0-9]{%d}" % _MANY)
"""So many may be an integer beyond 64 bits, which nothing that carries a request on can hold (MessagePack)."""
_PLACE = re.compile(r"(?s)(.*) - at `(key in )?\$\.?(.*)`$")


def decode(body: bytes, kind: type[T], *, required: str) -> T:
    """Read a JSON object. `required` is the field whose absence or shape makes the request malformed as a whole.

    Raises INVALID_JSON (not UTF-8, not JSON), MALFORMED_REQUEST (no object, or `required` of no usable shape) or
    INVALID_PARAMETER with `param` (every other fault of one field).
    """
    _check_utf8(body)
    try:
        found = msgspec.json.decode(body, type=kind)
        return msgspec.convert(_rounded(body), type=kind) if _may_overflow(body) else found
    except msgspec.ValidationError as error:
        raise _field_refusal(str(error), required) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise Refusal(
            Code.INVALID_JSON, f"The body is not valid JSON ({_cause(body, error)}). Send one JSON object."
        ) from error


def tell_unread(body: bytes, kind: type[msgspec.Struct], warn: Warn, *, words: Mapping[str, str] = _NO_WORDS) -> None:
    """Name the members of a decoded body that `kind` does not read, in their order. `null` asks for nothing.

    `words` say more of some fields than that they are ignored, also of such that `kind` has.
    """
    for name, value in msgspec.json.decode(body, type=dict[str, msgspec.Raw]).items():
        if (name in words or name not in kind.__struct_fields__) and bytes(value) not in _NOTHING:
            warn(name[:80], words.get(name, "ignored"))


def invalid(param: str, message: str) -> Refusal:
    return Refusal(Code.INVALID_PARAMETER, message, param=param)


def _may_overflow(body: bytes) -> bool:
    # counting digits is ten times as fast as the search, and most short bodies have few of them altogether
    return len(body) - len(body.translate(None, _DIGITS)) >= _MANY and _MANY_DIGITS.search(body) is not None


def _rounded(body: bytes) -> dict[str, JsonValue]:
    """The same object with floats for integers beyond 64 bits, as JavaScript reads them. Raises RecursionError.

    A field's own number stays as it is: whoever reads the field knows what is too large, and says so by its name.
    """
    fields = msgspec.json.decode(body, type=dict[str, Any])
    return {name: value if isinstance(value, int) else _within_64_bits(value) for name, value in fields.items()}


def _within_64_bits(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {key: _within_64_bits(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_within_64_bits(inner) for inner in value]
    if not isinstance(value, int) or -(2**63) <= value < 2**64:
        return value
    try:
        return float(value)
    except OverflowError:
        raise Refusal(Code.INVALID_JSON, "The body holds an integer beyond 1e308. Send smaller numbers.") from None


def _check_utf8(body: bytes) -> None:
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise Refusal(
            Code.INVALID_JSON, f"The body must be JSON in UTF-8; byte {error.start} is not valid UTF-8."
        ) from error


def _cause(body: bytes, error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if not body.strip():
        return "it is empty"
    if "truncated" in str(error) and re.search(rb"\\u[dD][89a-fA-F]", body):
        return "it ends early, or a \\u escape is half of a surrogate pair"
    return str(error).removeprefix("JSON is malformed: ")


def _field_refusal(text: str, required: str) -> Refusal:
    found = _PLACE.match(text)
    if found is None:
        return Refusal(Code.MALFORMED_REQUEST, f"The body must be one JSON object. {_sentence(text)}")
    problem, _, param = found.groups()
    if not param and f"`{required}`" in problem:
        return _missing(required)
    if param == required and not problem.endswith("`str`"):
        return Refusal(Code.MALFORMED_REQUEST, f"`{param}`: {_sentence(problem)}", param=param)
    missing = re.search(r"required field `(\w+)`", problem)
    if missing:
        param = f"{param}.{missing[1]}" if param else missing[1]
    return invalid(param, f"`{param}`: {_sentence(problem)}")


def _missing(required: str) -> Refusal:
    return Refusal(Code.MALFORMED_REQUEST, f"The field `{required}` is missing.", param=required)


def _sentence(text: str) -> str:
    """msgspec's words in a client author's: JSON types, no Python."""
    for python, json in (("`int`", "an integer"), ("`str`", "a string"), ("`bool`", "true or false"),
                         ("`float`", "a number"), ("`array`", "a list"), ("`object`", "an object")):  # fmt: skip
        text = text.replace(python, json)
    text = text.replace("`int | null`", "an integer").replace("`float | null`", "a number")
    text = text.replace("`str | null`", "a string").replace("`bool | null`", "true or false")
    text = text.replace("`object | null`", "an object").replace("`array | null`", "a list")
    return text.replace("`str | array | null`", "a string or a list").rstrip(".") + "."
