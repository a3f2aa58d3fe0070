"""Writes the grammar that holds a reply to a model's tool syntax and to the schemas of the tools.

The grammar is Lark as llguidance reads it. Free text never matches a special token there, so each mark is written as a
token where it is one and as text where it is not.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import assert_never

from pocketserver.chat import JsonValue, Tool, ToolChoice, ToolMode
from pocketserver.engines.llama.atoms import Atoms
from pocketserver.engines.llama.normalise import object_schema
from pocketserver.engines.llama.tool_syntax import (
    JsonForm,
    NamedForm,
    Pattern,
    ReplyFormat,
    Slot,
    TaggedForm,
    ToolSyntax,
    join,
)
from pocketserver.engines.llama.value_grammar import Rules, TaggedValues, closed

_SLOTS = {Slot.ID: "/[a-zA-Z0-9]{9}/", Slot.INDEX: "/[0-9]{1,3}/"}

_NO_CALLS = ToolSyntax(form=JsonForm(name_key=None))


class Thinking(StrEnum):
    """Where the reply's thinking stands when the reply begins."""

    NONE = "none"
    """Over, or never: the prompt closed it, or the model does not think."""
    POSSIBLE = "possible"
    OPENED = "opened"
    """The prompt ends inside the marks."""


def tool_grammar(
    reply_format: ReplyFormat,
    tools: Sequence[Tool],
    choice: ToolChoice,
    is_special: Callable[[str], int | None],
    *,
    thinking: Thinking = Thinking.NONE,
    prepare: Callable[[dict[str, JsonValue]], Mapping[str, JsonValue]] = dict,
    answer: str | None = None,
) -> str:
    """The grammar of a reply that may or must call these tools.

    `choice` is auto, required or a name; for `none` leave the tools out of the prompt and take no grammar. `is_special`
    gives the id of a text that is one special token. `prepare` makes a schema fit for llguidance and may raise.
    `answer` is a grammar symbol (`@name`) for what stands in place of calls, where that is not free text.
    """
    if reply_format.syntax is None or choice.mode is ToolMode.NONE:
        raise ValueError("a reply without calls needs no grammar")
    offered = [tool for tool in tools if choice.name in (None, tool.name)]
    writer = _Writer(reply_format, reply_format.syntax, is_special, prepare)
    return writer.calling(offered, choice, thinking, answer)


def answer_grammar(
    reply_format: ReplyFormat, is_special: Callable[[str], int | None], *, thinking: Thinking, answer: str
) -> str:
    """The grammar of a reply that is `answer`, a grammar symbol, behind thinking and the marks before an answer."""
    return _Writer(reply_format, _NO_CALLS, is_special, dict).answering(thinking, answer)


class _Writer:
    def __init__(
        self,
        reply_format: ReplyFormat,
        syntax: ToolSyntax,
        is_special: Callable[[str], int | None],
        prepare: Callable[[dict[str, JsonValue]], Mapping[str, JsonValue]],
    ) -> None:
        self._format = reply_format
        self._syntax = syntax
        self._is_special = is_special
        self._prepare = prepare
        self._atoms = Atoms(())
        self._rules = Rules(self.literal, self._starts_special)

    def calling(self, tools: Sequence[Tool], choice: ToolChoice, thinking: Thinking, answer: str | None) -> str:
        must_call = choice.mode is ToolMode.REQUIRED or choice.name is not None
        several = choice.parallel and self._syntax.parallel and choice.name is None
        self._rules.add("one", " | ".join(self._call(number, tool) for number, tool in enumerate(tools)))
        first, rest = self._marked(several=several)
        calls = f"{self.literal(first)} {rest}"
        before = self._thought(thinking, in_free_text=not must_call and answer is None)
        if must_call:
            self._rules.add("start", f"{before} {calls}")
        elif answer is not None:
            self._rules.add("start", f"{before} ({calls} | {self._before_answer()} {answer})")
        else:
            self._rules.add("start", f"{before} {self._free(first, rest, thinking)}")
        return str(self._rules)

    def answering(self, thinking: Thinking, answer: str) -> str:
        self._rules.add("start", f"{self._thought(thinking, in_free_text=False)} {self._before_answer()} {answer}")
        return str(self._rules)

    def _before_answer(self) -> str:
        """The marks that this model writes before an answer; those in plain text are left out."""
        marks = [literal for literal in map(self.literal, self._format.wrappers) if "<[" in literal]
        return f"({' | '.join(marks)})*" if marks else ""

    def literal(self, text: str) -> str:
        """The text in Lark: special tokens by their number, the rest quoted."""
        made, plain = [], ""
        for atom in self._atoms.cut(text):
            token = self._is_special(atom) if len(atom) > 1 else None
            if token is None:
                plain += atom
                continue
            made += [_quoted(plain), f"<[{token}]>"]
            plain = ""
        return " ".join(part for part in (*made, _quoted(plain)) if part)

    def _pattern(self, pattern: Pattern) -> str:
        return " ".join(_SLOTS[part] if isinstance(part, Slot) else self.literal(part) for part in pattern)

    def _starts_special(self, text: str) -> bool:
        return self.literal(text).startswith("<[")

    def _marked(self, *, several: bool) -> tuple[str, str]:
        """The opening mark, and the rule of everything behind it: all calls and the closing mark."""
        syntax = self._syntax
        opening = join(syntax.block_open, syntax.call_open)
        first = opening[0] if opening and not isinstance(opening[0], Slot) else ""
        mark = first.lstrip()
        behind = self._pattern(opening[1:] if first else opening)
        again = f"({self.literal(syntax.separator)} {self._pattern(syntax.call_open)} one)*" if several else ""
        return mark, f"{behind} one {again} {self.literal(syntax.block_close)}"

    def _free(self, mark: str, rest: str, thinking: Thinking) -> str:
        """Free text, then calls or none."""
        self._rules.add("TEXT", r"/(.|\n)+/")
        items = [self.literal(wrapper) for wrapper in self._format.wrappers]
        marks = self._format.reasoning
        if thinking is not Thinking.NONE and self._starts_special(marks.open):
            items.append(f"{self.literal(marks.open)} TEXT? {self.literal(marks.close)}")
        special = [item for item in items if "<[" in item]
        self._rules.add("item", " | ".join(["TEXT", *special]))
        if not mark:
            self._rules.add("talk", r"/\s*[^{\s](.|\n)*/")
            return f"(talk item* | {rest})?"
        if self._starts_special(mark):
            return f"item* ({self.literal(mark)} {rest})?"
        # A mark in plain text: the lazy rule ends at its first place, and text behind it may not hold another.
        self._rules.add("lead[lazy]", rf"/(.|\n)*/ {_quoted(_plain_start(mark))}")
        self._rules.add("TAIL", rf"/(?s:.*)/ & ~/(?s:.*){_regex(_plain_start(mark))}(?s:.*)/")
        follows = self.literal(mark.removeprefix(_plain_start(mark)))
        loose = f"({' | '.join(special)} | TAIL)*" if special else "TAIL"
        return f"({loose} | lead {follows} {rest})"

    def _thought(self, thinking: Thinking, *, in_free_text: bool) -> str:
        """What may come before; `in_free_text`: free text follows, which holds plain marks by itself."""
        marks = self._format.reasoning
        match thinking:
            case Thinking.NONE:
                return ""
            case Thinking.OPENED:
                self._rules.add(*self._until("thought", marks.close))
                return r"thought /\s*/"
            case Thinking.POSSIBLE:
                by_itself = in_free_text and not self._starts_special(marks.open)
                if by_itself or not self._format.reasoning_known:
                    return ""
                self._rules.add(*self._until("thought", marks.close))
                return rf"({self.literal(marks.open)} thought /\s*/)?"
            case never:
                assert_never(never)

    def _until(self, name: str, close: str) -> tuple[str, str]:
        """A rule of text up to and with its closing mark."""
        if self._starts_special(close):
            return name, rf"/(.|\n)*/ {self.literal(close)}"
        return f"{name}[suffix={_quoted(close)}]", r"/(.|\n)*/"

    def _call(self, number: int, tool: Tool) -> str:
        schema = closed(object_schema(tool.parameters))
        form = self._syntax.form
        match form:
            case JsonForm():
                body = self._object(number, tool.name, schema, form)
            case NamedForm():
                arguments = self._arguments(number, schema)
                body = f"{_quoted(tool.name)} {self._pattern(form.after_name)} {arguments}"
            case TaggedForm():
                values = TaggedValues(self._rules, form, self._prepare, f"v{number}_")
                body = f"{_quoted(tool.name)} {self._pattern(form.after_name)} {values.arguments(schema)}"
            case never:
                assert_never(never)
        name = f"call_{number}"
        self._rules.add(name, f"{body} {self._pattern(self._syntax.call_close)}")
        return name

    def _arguments(self, number: int, schema: dict[str, JsonValue]) -> str:
        return self._rules.json(f"arguments_{number}", self._prepare(schema))

    def _object(self, number: int, name: str, schema: dict[str, JsonValue], form: JsonForm) -> str:
        arguments = self._arguments(number, schema)
        if form.name_key is None:
            return f"{_quoted('{' + json.dumps(name) + ': ')} {arguments} {_quoted('}')}"
        named = _quoted(f'"{form.name_key}": {json.dumps(name)}, "{form.arguments_key}": ')
        parts = [named, arguments]
        if form.id_key is not None:
            written = _SLOTS[Slot.INDEX] if form.id_is_index else _SLOTS[Slot.ID]
            key = f'"{form.id_key}": "'
            if form.id_first:
                parts = [_quoted(key), written, _quoted('", '), *parts]
            else:
                parts = [*parts, _quoted(", " + key), written, _quoted('"')]
        return " ".join([_quoted("{"), *parts, _quoted("}")])


def _plain_start(mark: str) -> str:
    """The first word of a mark: where it begins in free text."""
    return mark.split(maxsplit=1)[0]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def _regex(text: str) -> str:
    return "".join(f"\\{char}" if char in r"\^$.|?*+()[]{}/-" else char for char in text)
