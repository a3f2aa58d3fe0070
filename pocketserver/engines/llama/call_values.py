"""Values of tool arguments in notations other than JSON, and their way back to JSON."""

import ast
import json
import re

from pocketserver.chat import JsonValue
from pocketserver.engines.llama.incoming import NotACall

_WORDS = {"True": "true", "False": "false", "None": "null"}
_PYTHON_KEY = re.compile(r"\s*,?\s*(\w+)\s*=\s*")
_STRING_END = re.compile(r"'(?=\s*(?:,\s*\w+\s*=|\)\s*(?:,\s*[\w.-]+\(|\]?\s*$)))")
_BARE_KEY = re.compile(r"\s*,?\s*([^\s:{}\[\],][^:{}\[\],]*):")
_BARE_SCALAR = re.compile(r"[^,{}\[\]]+")


def json_text(raw: str) -> str:
    """The JSON of a value written as text: itself when it is JSON, Python's words translated, else a string."""
    text = raw.strip()
    text = _WORDS.get(text, text)
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return json.dumps(raw, ensure_ascii=False)
    return text


def python_arguments(text: str, at: int) -> tuple[dict[str, JsonValue], int]:
    """`K='text', K2=42)`: the arguments, and where the closing bracket stands. Raises NotACall.

    `text` ends with the last call of the list: strings are not escaped, so a quote only counts where it can end one.
    """
    arguments: dict[str, JsonValue] = {}
    while found := _PYTHON_KEY.match(text, at):
        value, at = _python_value(text, found.end())
        arguments[found[1]] = value
    at += len(text[at:]) - len(text[at:].lstrip())
    return arguments, at


def _python_value(text: str, at: int) -> tuple[JsonValue, int]:
    if text.startswith("'", at):
        end = _STRING_END.search(text, at + 1)
        if end is None:
            raise NotACall
        return text[at + 1 : end.start()], end.end()
    end_at = _nested_end(text, at)
    raw = text[at:end_at].strip()
    try:
        return json.loads(_WORDS.get(raw, raw)), end_at
    except (ValueError, RecursionError):
        return _python_literal(raw), end_at


def _python_literal(raw: str) -> JsonValue:
    try:
        return ast.literal_eval(raw)
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise NotACall from error


def _nested_end(text: str, at: int) -> int:
    """The end of a value: a comma or closing bracket outside of its own brackets and quotes."""
    depth, quote = 0, ""
    while at < len(text):
        char = text[at]
        if quote:
            at += char == "\\"
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif depth == 0 and char in ",)":
            return at
        else:
            depth += (char in "[{(") - (char in "]})")
        at += 1
    raise NotACall


def bare_arguments(text: str, at: int, quote: str) -> tuple[dict[str, JsonValue], int]:
    """`K:<q>text<q>,K2:42}`: the arguments, and where the closing brace stands. Raises NotACall."""
    return _Bare(text, quote).members(at)


class _Bare:
    def __init__(self, text: str, quote: str) -> None:
        self._text = text
        self._quote = quote

    def members(self, at: int) -> tuple[dict[str, JsonValue], int]:
        made: dict[str, JsonValue] = {}
        while not self._text.startswith("}", at):
            key, at = self._key(at)
            made[key], at = self._value(at)
            at += self._text.startswith(",", at)
        return made, at

    def _key(self, at: int) -> tuple[str, int]:
        if self._text.startswith(self._quote, at):
            key, at = self._string(at)
            return key, at + 1
        found = _BARE_KEY.match(self._text, at)
        if found is None:
            raise NotACall
        return found[1], found.end()

    def _value(self, at: int) -> tuple[JsonValue, int]:
        if self._text.startswith(self._quote, at):
            return self._string(at)
        if self._text.startswith("{", at):
            value, at = self.members(at + 1)
            return value, at + 1
        if self._text.startswith("[", at):
            return self._items(at + 1)
        found = _BARE_SCALAR.match(self._text, at)
        if found is None:
            raise NotACall
        return json.loads(json_text(found[0])), found.end()

    def _items(self, at: int) -> tuple[list[JsonValue], int]:
        made = []
        while not self._text.startswith("]", at):
            item, at = self._value(at)
            made.append(item)
            at += self._text.startswith(",", at)
        return made, at + 1

    def _string(self, at: int) -> tuple[str, int]:
        begin = at + len(self._quote)
        end = self._text.find(self._quote, begin)
        if end < 0:
            raise NotACall
        return self._text[begin:end], end + len(self._quote)
