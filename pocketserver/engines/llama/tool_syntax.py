"""How a model writes tool calls, as values: literals around names and arguments, and the style of the arguments."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias


class Slot(StrEnum):
    """A place inside a literal that changes from call to call."""

    ID = "id"
    INDEX = "index"


Pattern: TypeAlias = tuple[str | Slot, ...]
"""Literal text with slots. White space in it is optional when a reply is read."""


class ValueStyle(StrEnum):
    """How tagged arguments write their values."""

    RAW = "raw"
    """Strings as they are, everything else as JSON."""
    JSON = "json"
    PYTHON = "python"
    """Python literals; a string stands between single quotes and is not escaped."""
    BARE_KEYS = "bare_keys"
    """JSON without quotes around keys, and with a marker of its own for quotes around strings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonForm:
    """A call is one JSON object. `name_key` None: the name is the object's only key, the arguments its value."""

    name_key: str | None
    arguments_key: str = ""
    id_key: str | None = None
    id_first: bool = False
    id_is_index: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedForm:
    """The name, a literal, then the arguments as a JSON object."""

    after_name: Pattern


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedForm:
    """The name, then each argument between literals of its own.

    `key_close` gives the literal between key and value by JSON type (`string`, `number`, `boolean`, `null`, `object`,
    `array`); with one entry it is the same for all. `string_quote` is the marker of BARE_KEYS around strings.
    """

    after_name: Pattern
    key_open: Pattern
    key_close: tuple[tuple[str, str], ...]
    value_close: str
    separator: str = ""
    style: ValueStyle = ValueStyle.RAW
    string_quote: str = ""

    def closes_key(self, json_type: str) -> str:
        """The literal between key and value for a value of this type."""
        table = dict(self.key_close)
        return table.get(json_type) or self.key_close[-1][1]


Form: TypeAlias = JsonForm | NamedForm | TaggedForm


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSyntax:
    """One model's way to call. Block marks stand around all calls of a turn, call marks around each.

    `parallel` False: the template shows one call a turn. `also` are other ways that models of this family write the
    same call; they are read, and never asked for.
    """

    form: Form
    block_open: str = ""
    call_open: Pattern = ()
    call_close: Pattern = ()
    separator: str = ""
    block_close: str = ""
    parallel: bool = True
    also: tuple["ToolSyntax", ...] = ()

    @property
    def opening(self) -> Pattern:
        """Everything a model writes before the name of its first call (or before the JSON)."""
        return join(self.block_open, self.call_open)

    @property
    def is_bare(self) -> bool:
        """True when nothing marks a call: it is recognised by its JSON alone."""
        return not any(part.strip() for part in self.opening if part)

    def mapped(self, change: Callable[[str], str]) -> "ToolSyntax":
        """The same syntax with every literal changed."""
        return replace(
            self,
            form=_mapped_form(self.form, change),
            block_open=change(self.block_open),
            block_close=change(self.block_close),
            call_open=_mapped(self.call_open, change),
            call_close=_mapped(self.call_close, change),
            separator=change(self.separator),
            also=tuple(other.mapped(change) for other in self.also),
        )

    def literals(self) -> Iterator[str]:
        """Every literal, for finding which special tokens occur in them."""
        yield from (self.block_open, self.block_close, self.separator)
        yield from _texts(self.call_open, self.call_close)
        if isinstance(self.form, NamedForm | TaggedForm):
            yield from _texts(self.form.after_name)
        if isinstance(self.form, TaggedForm):
            yield from _texts(self.form.key_open)
            yield from (text for _, text in self.form.key_close)
            yield from (self.form.value_close, self.form.separator, self.form.string_quote)
        for other in self.also:
            yield from other.literals()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningMarks:
    """What stands around a model's thinking. `reopens` True: thinking may come again after other text."""

    open: str
    close: str
    reopens: bool = False


THINK = ReasoningMarks(open="<think>", close="</think>")
"""The pair that many models write even where their template is silent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyFormat:
    """Everything that a reader of replies has to know about a model.

    `wrappers` are marks around the answer itself (`<|START_RESPONSE|>`): they are never shown. `turn_end` is the text
    that ends a turn where that is no single token.
    """

    syntax: ToolSyntax | None = None
    reasoning: ReasoningMarks = THINK
    reasoning_known: bool = False
    wrappers: tuple[str, ...] = ()
    turn_end: str = ""

    def mapped(self, change: Callable[[str], str]) -> "ReplyFormat":
        """The same format with every literal changed."""
        return replace(
            self,
            syntax=self.syntax and self.syntax.mapped(change),
            reasoning=replace(self.reasoning, open=change(self.reasoning.open), close=change(self.reasoning.close)),
            wrappers=tuple(map(change, self.wrappers)),
            turn_end=change(self.turn_end),
        )

    def literals(self) -> Iterator[str]:
        yield from (self.reasoning.open, self.reasoning.close, self.turn_end, *self.wrappers)
        if self.syntax is not None:
            yield from self.syntax.literals()


def join(*parts: str | Pattern) -> Pattern:
    """One pattern from several, neighbouring texts made one."""
    made: list[str | Slot] = []
    for part in parts:
        for piece in (part,) if isinstance(part, str) else part:
            if isinstance(piece, Slot) or not made or isinstance(made[-1], Slot):
                made.append(piece)
            else:
                made[-1] = made[-1] + piece
    return tuple(piece for piece in made if piece)


def _texts(*patterns: Pattern) -> Iterator[str]:
    for pattern in patterns:
        yield from (part for part in pattern if not isinstance(part, Slot))


def _mapped(pattern: Pattern, change: Callable[[str], str]) -> Pattern:
    return tuple(part if isinstance(part, Slot) else change(part) for part in pattern)


def _mapped_form(form: Form, change: Callable[[str], str]) -> Form:
    match form:
        case JsonForm():
            return form
        case NamedForm():
            return replace(form, after_name=_mapped(form.after_name, change))
        case TaggedForm():
            return replace(
                form,
                after_name=_mapped(form.after_name, change),
                key_open=_mapped(form.key_open, change),
                key_close=tuple((kind, change(text)) for kind, text in form.key_close),
                value_close=change(form.value_close),
                separator=change(form.separator),
                string_quote=change(form.string_quote),
            )
