"""Derives the syntax of calls whose arguments stand between literals of their own."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pocketserver.chat import JsonValue
from pocketserver.engines.llama.atoms import common_prefix, common_suffix
from pocketserver.engines.llama.framing import NotDerived, framed, generalised, single, slotted
from pocketserver.engines.llama.tool_syntax import TaggedForm, ToolSyntax, ValueStyle
from pocketserver.engines.llama.written import Call, Writing

_SAMPLES: Mapping[str, tuple[JsonValue, tuple[str, ...]]] = {
    "string": ("zqvalue", ("zqvalue",)),
    "number": (987123, ("987123",)),
    "boolean": (True, ("true", "True")),
    "null": (None, ("null", "None")),
    "object": ({"zqinner": 1}, ("{",)),
    "array": ([987123], ("[",)),
}
"""A value of each JSON type, and how its text may begin."""
_STYLES = {'"': ValueStyle.JSON, "'": ValueStyle.PYTHON}


def tagged(writing: Writing, first: Call, second: Call) -> ToolSyntax:
    """Raise NotDerived when name, keys and values do not stand in the text in this order."""
    one = _Parts.of(writing.calls([first]), first)
    closes, quote = _key_closes(writing, first.name)
    between, rest = one.between.removeprefix(quote), one.rest.removeprefix(quote)
    key_open = common_suffix(writing.atoms, one.after_name, between)
    between = between[: len(between) - len(key_open)]
    value_close = common_prefix(writing.atoms, between, rest)
    after_name = one.after_name.removesuffix(key_open)
    form = TaggedForm(
        after_name=slotted(after_name),
        key_open=slotted(key_open),
        key_close=closes,
        value_close=value_close,
        separator=between[len(value_close) :],
        style=_STYLES.get(quote, ValueStyle.BARE_KEYS) if quote else ValueStyle.RAW,
        string_quote=quote,
    )
    if not writing.traits.parallel_calls:
        return single(form, one.before, rest[len(value_close) :])
    return _framed(writing, form, (first, second), key_open=key_open, value_end=quote + value_close)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The text around a call's name, its two keys and its two values."""

    before: str
    after_name: str
    between: str
    rest: str

    @classmethod
    def of(cls, text: str, call: Call) -> "_Parts":
        """Cut at the first places where the words stand in this order; raise NotDerived when they do not."""
        cuts, at = [], 0
        for word in (call.name, *(str(word) for pair in call.arguments.items() for word in pair)):
            found = text.find(word, at)
            if found < 0:
                raise NotDerived(f"{word!r} is not in its place in {text!r}")
            cuts.append((found, at := found + len(word)))
        name, key, value, other_key, other_value = cuts
        return cls(
            before=text[: name[0]],
            after_name=text[name[1] : key[0]],
            between=text[value[1] : other_key[0]],
            rest=text[other_value[1] :],
        )


def _key_closes(writing: Writing, name: str) -> tuple[tuple[tuple[str, str], ...], str]:
    """The literals between key and value by JSON type, and the quote that strings bring along."""
    seen: dict[str, str] = {}
    for kind, (value, begins) in _SAMPLES.items():
        text = writing.calls([Call(name, {"zqkey": value})])
        after_key = text[text.find("zqkey") + len("zqkey") :]
        # An attribute may name the type before a scalar: the value itself is the last that reads so.
        find = after_key.find if kind in ("object", "array") else after_key.rfind
        places = [find(begin) for begin in begins if begin in after_key]
        if places:
            seen[kind] = after_key[: max(places)]
    if "string" not in seen or "number" not in seen:
        raise NotDerived("values do not follow their keys")
    string, number = seen["string"], seen["number"]
    if string != number and string.startswith(number):
        return (("any", number),), string[len(number) :]
    return ((("any", string),) if len(set(seen.values())) == 1 else tuple(seen.items())), ""


def _framed(
    writing: Writing, form: TaggedForm, calls: tuple[Call, Call], *, key_open: str, value_end: str
) -> ToolSyntax:
    first, second = calls
    text = writing.calls([first, second])
    one = _Parts.of(text, first)
    other = _Parts.of(one.rest, second)
    after_names = (parts.after_name.removesuffix(key_open) for parts in (one, other))
    counted = replace(form, after_name=generalised(*after_names))
    between, after = other.before.removeprefix(value_end), other.rest.removeprefix(value_end)
    return framed(writing.atoms, counted, one.before, between, after)
