"""What a string that is written without quotes must look like: what its schema demands, and no closing mark in it.

JSON Schema finds a pattern anywhere in the text; a terminal of a grammar is matched whole.
"""

import re
from collections.abc import Mapping, Sequence

from pocketserver.chat import JsonValue

_DATE = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_BYTE = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LABEL = r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?"
_HOST = rf"{_LABEL}(\.{_LABEL}){{0,4}}"
FORMATS: Mapping[str, str] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
    "hostname": _HOST,
    "email": rf"[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@{_LABEL}(\.{_LABEL}){{1,3}}",
    "uri": rf"(https?|ftp)://{_HOST}(:[0-9]{{1,4}})?(/[A-Za-z0-9._~-]*)*(\?[A-Za-z0-9._~=&-]*)?",
}
"""Formats that can be held without quotes; each admits less than the format does, never more."""


def terminal(schema: Mapping[str, JsonValue], close: str) -> str | None:
    """The terminal's body in Lark, or None when any text will do. `close` is the mark that must not occur in it."""
    demands = [*_length(schema), *_pattern(schema), *_format(schema)]
    if not demands:
        return None
    return " & ".join([*(f"/{demand}/" for demand in demands), f"~/(?s:.*){_escaped(close)}(?s:.*)/"])


def _length(schema: Mapping[str, JsonValue]) -> Sequence[str]:
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if not least and most is None:
        return ()
    return (f"(?s:.{{{int(least)},{'' if most is None else int(most)}}})",)


def _pattern(schema: Mapping[str, JsonValue]) -> Sequence[str]:
    pattern = schema.get("pattern")
    if not isinstance(pattern, str):
        return ()
    return (f"(?:{'|'.join(map(_anywhere, _alternatives(pattern)))})",)


def _anywhere(pattern: str) -> str:
    """One alternative of a pattern, with what may stand around it."""
    is_end = pattern.endswith("$") and not pattern.endswith("\\$")
    before, after = "" if pattern.startswith("^") else "(?s:.*)", "" if is_end else "(?s:.*)"
    inside = pattern.removeprefix("^")
    return f"{before}(?:{_slashed(inside[:-1] if is_end else inside)}){after}"


def _alternatives(pattern: str) -> Sequence[str]:
    """The pattern cut at each `|` that stands in no group and no class."""
    parts, depth, in_class = [""], 0, False
    for piece in re.findall(r"\\.|.", pattern, re.DOTALL):
        in_class = (piece == "[" or in_class) and piece != "]"
        depth += 0 if in_class else (piece == "(") - (piece == ")")
        if piece == "|" and depth == 0 and not in_class:
            parts.append("")
        else:
            parts[-1] += piece
    return parts


def _format(schema: Mapping[str, JsonValue]) -> Sequence[str]:
    known = FORMATS.get(str(schema.get("format")))
    return () if known is None else (_slashed(known),)


def _slashed(pattern: str) -> str:
    """Fit to stand between slashes."""
    return re.sub(r"\\.|/|\n", lambda found: {"/": "\\/", "\n": "\\n"}.get(found.group(), found.group()), pattern)


def _escaped(text: str) -> str:
    return "".join(f"\\{char}" if char in r"\^$.|?*+()[]{}/-" else char for char in text).replace("\n", "\\n")
