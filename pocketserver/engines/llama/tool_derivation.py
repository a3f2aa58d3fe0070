"""Finds out how a model writes tool calls, from what its template makes of a call in a conversation."""

import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pocketserver.chat import FinishReason, JsonValue, Tool, ToolCallDelta, ToolCallStarted
from pocketserver.engines.llama.atoms import Atoms, Gap
from pocketserver.engines.llama.framing import NotDerived, framed, generalised, single, slotted
from pocketserver.engines.llama.reply import ReplyReader
from pocketserver.engines.llama.sandbox import TemplateFault
from pocketserver.engines.llama.tagged_derivation import tagged
from pocketserver.engines.llama.tool_families import family_of, with_other_ways
from pocketserver.engines.llama.tool_syntax import Form, JsonForm, NamedForm, ReplyFormat, ToolSyntax
from pocketserver.engines.llama.traits import Render, Traits
from pocketserver.engines.llama.written import Call, Writing

_LOG = logging.getLogger(__name__)
_FIRST = Call("zqalpha", {"zqkey": "zqvalue", "zqother": "zqsecond"})
_SECOND = Call("zqbeta", {"zqkey": "zqthird", "zqother": "zqfourth"})


def derive_syntax(
    render: Render, traits: Traits, *, special_tokens: Collection[str], end_tokens: Collection[str]
) -> ToolSyntax | None:
    """The syntax of the template's calls, proven by reading back what it renders; None when there is none.

    `special_tokens` are the texts of the vocabulary's control and user-defined tokens, `end_tokens` of those that end
    a generation.
    """
    if not traits.shows_calls:
        return None
    writing = Writing(render, traits, Atoms(special_tokens), end_tokens)
    try:
        return _proven(writing, with_other_ways(_family(writing) or _derived(writing)))
    except (NotDerived, TemplateFault) as reason:
        _LOG.warning("The tool syntax of the chat template was not found: %s", reason)
        return None


def _family(writing: Writing) -> ToolSyntax | None:
    return family_of(writing.calls([_FIRST]))


def _derived(writing: Writing) -> ToolSyntax:
    one = writing.calls([_FIRST])
    found = _json(one)
    if found is None:
        return tagged(writing, _FIRST, _SECOND)
    form, first = found
    if not writing.traits.parallel_calls:
        return single(form, one[: first.begin], one[first.end :])
    two = writing.calls([_FIRST, _SECOND])
    units = _units(form, two)
    if len(units) != 2:
        return single(form, one[: first.begin], one[first.end :])
    if isinstance(form, NamedForm):
        form = NamedForm(after_name=generalised(*(_after_name(two, unit) for unit in units)))
    return _framed(writing.atoms, form, two, *units)


@dataclass(frozen=True, slots=True)
class _Unit:
    """Where one call stands in a text: its JSON, and before that its name when the name is outside."""

    begin: int
    json_begin: int
    end: int
    name: str = ""


def _json(text: str) -> tuple[Form, _Unit] | None:
    """The form and place of the first JSON value that contains the arguments."""
    for at, value, end in _values(text):
        if value == _FIRST.arguments:
            name_at = text.rfind(_FIRST.name, 0, at)
            if name_at < 0:
                return None
            unit = _Unit(name_at, at, end, _FIRST.name)
            return NamedForm(after_name=slotted(_after_name(text, unit))), unit
        if (form := _json_form(value)) is not None:
            return form, _Unit(at, at, end)
    return None


def _values(text: str) -> Iterator[tuple[int, JsonValue, int]]:
    """Every JSON object in the text, outer ones first."""
    decoder = json.JSONDecoder()
    for at, char in enumerate(text):
        if char == "{":
            try:
                value, end = decoder.raw_decode(text, at)
            except ValueError:
                continue
            yield at, value, end


def _json_form(value: JsonValue) -> JsonForm | None:
    if value == {_FIRST.name: _FIRST.arguments}:
        return JsonForm(name_key=None)
    keys = list(value)
    names = [key for key in keys if value[key] == _FIRST.name]
    arguments = [key for key in keys if value[key] == _FIRST.arguments]
    if not names or not arguments:
        return None
    ids = [key for key in keys if key not in (names[0], arguments[0]) and isinstance(value[key], str)]
    ids = [key for key in ids if value[key] == Gap.ID or value[key].isdigit()]
    return JsonForm(
        name_key=names[0],
        arguments_key=arguments[0],
        id_key=ids[0] if ids else None,
        id_first=bool(ids) and keys[0] == ids[0],
        id_is_index=bool(ids) and value[ids[0]].isdigit(),
    )


def _units(form: Form, text: str) -> list[_Unit]:
    """The two calls in a text, in order; fewer when they are not both there."""
    units = []
    begin = 0
    for call in (_FIRST, _SECOND):
        for at, value, end in _values(text):
            if at < begin:
                continue
            if isinstance(form, NamedForm) and value == call.arguments:
                units.append(_Unit(text.rfind(call.name, 0, at), at, end, call.name))
            elif isinstance(form, JsonForm) and _carries(value, call):
                units.append(_Unit(at, at, end))
            else:
                continue
            begin = end
            break
    return units


def _carries(value: JsonValue, call: Call) -> bool:
    return call.arguments in value.values() and (call.name in value or call.name in value.values())


def _after_name(text: str, unit: _Unit) -> str:
    return text[unit.begin + len(unit.name) : unit.json_begin]


def _framed(atoms: Atoms, form: Form, text: str, first: _Unit, second: _Unit) -> ToolSyntax:
    """What stands around each call and around all, from a text with two of them."""
    before, between, after = text[: first.begin], text[first.end : second.begin], text[second.end :]
    return framed(atoms, form, before, between, after)


_TEXT: Mapping[str, JsonValue] = {"type": "string"}
_PROOF_TOOLS = tuple(
    Tool(name=name, parameters={"type": "object", "properties": {"zqtext": _TEXT, "zqother": _TEXT, "zqany": {}}})
    for name in ("zqalpha", "zqbeta")
)
_PROOFS: Sequence[Sequence[Call]] = (
    [Call("zqalpha", {"zqtext": "he said \"hi\" and 'no'"})],
    [Call("zqalpha", {"zqtext": "back\\slash \\n kept"})],
    [Call("zqalpha", {"zqtext": "one\ntwo", "zqother": "{braces} [and] <b>bold</b>"})],
    [Call("zqalpha", {"zqtext": "中文字 é", "zqany": -12.5})],
    [
        Call("zqalpha", {"zqtext": "42", "zqany": True}),
    ],
    [Call("zqalpha", {"zqany": {"a": [1, "x", False], "b": {"c": "d"}}})],
    [Call("zqalpha", {})],
    [Call("zqalpha", {"zqtext": "a"}), Call("zqbeta", {"zqtext": "b", "zqany": 7})],
    [Call("zqalpha", {"zqtext": "a"}), Call("zqbeta", {"zqtext": "b"}), Call("zqalpha", {"zqtext": "c"})],
)


def _proven(writing: Writing, syntax: ToolSyntax) -> ToolSyntax:
    """The syntax, when everything the template renders by it reads back the same."""
    for calls in _PROOFS:
        if len(calls) > 1 and not (syntax.parallel and writing.traits.parallel_calls):
            continue
        text = writing.calls(calls, raw_ids=True)
        if read_back(syntax, text) != [(call.name, call.arguments) for call in calls]:
            raise NotDerived(f"{text!r} does not read back as {calls!r} by {syntax!r}")
    return syntax


def read_back(syntax: ToolSyntax, text: str) -> list[tuple[str, JsonValue]]:
    """The calls in a text written by a template."""
    reader = ReplyReader(ReplyFormat(syntax=syntax), tools=_PROOF_TOOLS)
    events = [*reader.feed(None, text), *reader.finish(FinishReason.STOP)[0]]
    names = [event.name for event in events if isinstance(event, ToolCallStarted)]
    arguments = [json.loads(event.arguments) for event in events if isinstance(event, ToolCallDelta)]
    return list(zip(names, arguments, strict=False))
