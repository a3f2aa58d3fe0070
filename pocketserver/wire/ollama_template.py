"""`template` of `/api/generate`: the part of Go's templates in which people write prompts, rendered to a raw prompt.

Fields `.System`, `.Prompt`, `.Response`, `.Suffix` (always empty), `.First` and, in `range .Messages`, `.Role` and
`.Content`; `if`/`else if`/`else`/`end`; `eq`, `ne`, `not`, `and`, `or`; `{{-` and `-}}`; comments. Whatever else a
template says is refused by its word: nothing is guessed. Source: Go's `text/template`, Ollama's template reference.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from pocketserver.chat import Message, Role
from pocketserver.errors import Code, Refusal

Value: TypeAlias = "str | bool | Sequence[Fields]"
Fields: TypeAlias = Mapping[str, Value]
MAX_CHARACTERS = 100_000
MAX_RENDERED_CHARACTERS = 16 << 20
"""At most so much can come out, should every turn be as long as the template."""
_DEEPEST = 32

_WORD = re.compile(r'\s*(\(|\)|"(?:[^"\\]|\\.)*"|`[^`]*`|[^\s()"`]+)')
_FIELD = re.compile(r"\$?\.[A-Za-z]+")
_ESCAPES: Mapping[str, str] = {"n": "\n", "t": "\t", "r": "\r"}
_RESPONSE = "\0response\0"
"""Stands where the answer goes while the last turn is rendered: what follows it is left out."""


def render(template: str, messages: Sequence[Message]) -> str:
    """The prompt of a conversation. Raises TEMPLATE_UNSUPPORTED, with the word, for what is not understood."""
    if len(template) > MAX_CHARACTERS or len(template) * len(messages) > MAX_RENDERED_CHARACTERS:
        raise _unsupported("one so long")
    if "{%" in template:
        raise _unsupported("`{%`")
    block, _ = _Parser(template).block(0)
    if ".Messages" in template:
        system = "\n\n".join(message.content for message in messages if message.role is Role.SYSTEM)
        turns = [{"Role": message.role.value, "Content": message.content} for message in messages]
        whole = _run(block, {"System": system, "Messages": turns, "Response": _RESPONSE}, {})
        return whole.partition(_RESPONSE)[0]
    turns = list(_exchanges(messages))
    earlier = "".join(_run(block, {**turn, "First": index == 0}, {}) for index, turn in enumerate(turns[:-1]))
    last = _run(block, {**turns[-1], "First": len(turns) == 1, "Response": _RESPONSE}, {})
    return earlier + last.partition(_RESPONSE)[0]


def _exchanges(messages: Sequence[Message]) -> Iterator[dict[str, str]]:
    """System, prompt and response of each exchange, as templates without `.Messages` see them."""
    turn = {"System": "", "Prompt": "", "Response": ""}
    for message in messages:
        name = {Role.SYSTEM: "System", Role.ASSISTANT: "Response"}.get(message.role, "Prompt")
        if turn["Response"] or (name == "Prompt" and turn["Prompt"]):
            yield turn
            turn = {"System": "", "Prompt": "", "Response": ""}
        turn[name] = message.content
    yield turn


_Condition: TypeAlias = Callable[[Fields, Fields], Value]


@dataclass(slots=True)
class _Choice:
    """`if`, with its `else if` and `else` as further branches. The condition of `else` is None."""

    branches: list[tuple[_Condition | None, list["_Node"]]] = field(default_factory=list)


@dataclass(slots=True)
class _Loop:
    over: _Condition
    body: list["_Node"]


_Node: TypeAlias = "str | _Condition | _Choice | _Loop"


class _Parser:
    """Reads a template once, from left to right."""

    def __init__(self, template: str) -> None:
        self._pieces = list(_pieces(template))
        self._at = 0

    def block(self, depth: int) -> tuple[list[_Node], str]:
        """Nodes up to the `else …` or `end` that closes them, and that word; up to the end at depth 0."""
        if depth > _DEEPEST:
            raise _unsupported("it is nested too deeply")
        nodes: list[_Node] = []
        while self._at < len(self._pieces):
            text, is_action = self._pieces[self._at]
            self._at += 1
            head, _, rest = text.partition(" ")
            if not is_action:
                nodes.append(text)
            elif head in ("end", "else"):
                if depth == 0:
                    raise _unsupported(f"`{head}` closes nothing")
                return nodes, text
            elif head == "if":
                nodes.append(self._choice(rest, depth))
            elif head == "range":
                nodes.append(self._loop(rest, depth))
            elif not text.startswith("/*"):
                nodes.append(_condition(text))
        if depth:
            raise _unsupported("an `end` is missing")
        return nodes, ""

    def _choice(self, condition: str, depth: int) -> _Choice:
        choice = _Choice()
        tested: _Condition | None = _condition(condition)
        while True:
            body, closed_by = self.block(depth + 1)
            choice.branches.append((tested, body))
            if closed_by == "end":
                return choice
            further = closed_by.removeprefix("else").strip()
            tested = _condition(further.removeprefix("if ")) if further else None

    def _loop(self, over: str, depth: int) -> _Loop:
        body, closed_by = self.block(depth + 1)
        if over != ".Messages" or closed_by != "end":
            raise _unsupported(f"`range {over[:40]}`")
        return _Loop(_condition(over), body)


def _pieces(template: str) -> Iterator[tuple[str, bool]]:
    """Texts and actions in turn; texts are trimmed where the actions beside them say so."""
    text, trims = "", False
    for number, part in enumerate(template.split("{{")):
        if number:
            inside, closing, after = part.partition("}}")
            if not closing:
                raise _unsupported("`{{` without `}}`")
            starts, ends = inside[:1] == "-" and inside[1:2].isspace(), inside[-1:] == "-" and inside[-2:-1].isspace()
            yield (text.rstrip() if starts else text), False
            yield inside[1 if starts else 0 : -1 if ends else None].strip(), True
            text, trims = after, ends
        else:
            text = part
        text = text.lstrip() if trims else text
    yield text, False


def _condition(text: str) -> _Condition:
    expression, rest = _expression(_words(text), text)
    if rest:
        raise _unsupported(f"`{text[:40]}`")
    return expression


def _words(text: str) -> list[str]:
    words, at = [], 0
    while found := _WORD.match(text, at):
        words.append(found[1])
        at = found.end()
    if text[at:].strip():
        raise _unsupported(f"`{text[:40]}`")
    return words


_FUNCTIONS: Mapping[str, Callable[[list[Value]], Value]] = {
    "eq": lambda values: any(values[0] == other for other in values[1:]),
    "ne": lambda values: values[0] != values[1],
    "not": lambda values: not values[0],
    "and": lambda values: next((value for value in values if not value), values[-1]),
    "or": lambda values: next((value for value in values if value), values[-1]),
}


def _expression(words: Sequence[str], text: str) -> tuple[_Condition, Sequence[str]]:
    """A function with its arguments, or one value."""
    if not words:
        raise _unsupported(f"`{text[:40]}`")
    if words[0] not in _FUNCTIONS:
        return _value(words, text)
    function, rest, arguments = _FUNCTIONS[words[0]], words[1:], []
    while rest and rest[0] != ")":
        argument, rest = _value(rest, text)
        arguments.append(argument)
    if len(arguments) < (1 if words[0] == "not" else 2):
        raise _unsupported(f"`{text[:40]}`")
    return lambda here, top: function([argument(here, top) for argument in arguments]), rest


def _value(words: Sequence[str], text: str) -> tuple[_Condition, Sequence[str]]:
    word, rest = words[0], words[1:]
    if word == "(":
        inside, rest = _expression(rest, text)
        if not rest or rest[0] != ")":
            raise _unsupported(f"`{text[:40]}`")
        return inside, rest[1:]
    if word[0] in '"`':
        said = (
            word[1:-1]
            if word[0] == "`"
            else re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), word[1:-1])
        )
        return lambda _here, _top: said, rest
    if not _FIELD.fullmatch(word):
        raise _unsupported(f"`{word[:40]}`")
    name, from_top = word.lstrip("$."), word.startswith("$")
    return lambda here, top: (top if from_top else here).get(name, ""), rest


def _run(nodes: Sequence[_Node], here: Fields, top: Fields) -> str:
    top = top or here
    return "".join(_text(node, here, top) for node in nodes)


def _text(node: _Node, here: Fields, top: Fields) -> str:
    match node:
        case str():
            return node
        case _Choice():
            chosen = next((body for test, body in node.branches if test is None or test(here, top)), [])
            return _run(chosen, here, top)
        case _Loop():
            turns = node.over(here, top)
            return "".join(_run(node.body, turn, top) for turn in turns if not isinstance(turn, str))  # type: ignore[union-attr]
        case _:
            value = node(here, top)
            return value if isinstance(value, str) else str(value).lower()


def _unsupported(what: str) -> Refusal:
    return Refusal(
        Code.TEMPLATE_UNSUPPORTED,
        f"template: {what} is not understood here. Use {{{{ .System }}}}, {{{{ .Prompt }}}}, {{{{ .Response }}}}, if, "
        "range .Messages and comparisons, or raw: true with a prompt that is written out.",
        param="template",
    )
