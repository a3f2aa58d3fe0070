"""Ollama's Modelfile: read with the line of every fault, and written so that reading gives the same again.

The grammar is Ollama's: an instruction in any case, then a value to the end of the line, or in one or three double
quotes over several lines; there are no escapes, and a value ends at the first line that ends in its quotes. One
addition, because some texts could not be said otherwise: a line of a value in three quotes that itself ends in three
quotes gets a `~` behind them, which is not part of the value. Line ends are single newlines, whatever the file has.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, cast

from pocketserver.models.options import OPTIONS, OptionFault, text_of_value, value_of_text
from pocketserver.models.stored import ModelSettings, ParameterValue, StoredMessage

MAX_MODELFILE_CHARACTERS = 4 << 20
MAX_MESSAGES = 1_000
COMMANDS = (
    *("from", "license", "template", "system", "adapter", "parameter", "message", "renderer", "parser", "requires"),
    "draft",
)
_TRIPLE = '"""'
_HELD_OPEN = re.compile(r'("""[^\S\n]*~*)~(?=\n)')
_WOULD_CLOSE = re.compile(r'("""[^\S\n]*~*)(?=\n)')
_FIRST_WORD = re.compile(r"\s*(\S*)[^\S\n]*")

Role: TypeAlias = Literal["system", "user", "assistant"]


class ModelfileFault(ValueError):  # noqa: N818 - a finding about a text
    """What is wrong with a Modelfile, with its line counted from 1; 0 for what is wrong with the whole."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"Modelfile line {line}: {reason}" if line else f"Modelfile: {reason}")
        self.line = line
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Modelfile:
    """What a Modelfile says. None is not said at all; `warnings` are sentences about what has no effect."""

    base: str
    system: str | None = None
    template: str | None = None
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)
    messages: tuple[StoredMessage, ...] = ()
    license: tuple[str, ...] = ()
    warnings: tuple[str, ...] = field(default=(), compare=False)


def parse_modelfile(text: str) -> Modelfile:
    """Read a Modelfile. Raises ModelfileFault."""
    if len(text) > MAX_MODELFILE_CHARACTERS:
        raise ModelfileFault(0, f"it has more than {MAX_MODELFILE_CHARACTERS:,} characters")
    draft = _Draft()
    for line, command, value in _instructions(normal_line_ends(text.removeprefix("\ufeff"))):
        if command not in _READERS:
            raise ModelfileFault(line, f"command must be one of {', '.join(COMMANDS)}, not {command[:40]!a}")
        _READERS[command](draft, line, value)
    if draft.base is None:
        raise ModelfileFault(0, "no FROM line")
    return draft.finished(draft.base)


def write_modelfile(base: str, settings: ModelSettings, *, template: str = "", comments: Sequence[str] = ()) -> str:
    """The text that makes a model with these settings over a base. `template` is said when the settings have none."""
    lines = [f"# {comment}" for comment in comments]
    lines.append(f"FROM {_quoted(base)}")
    if settings.template or template:
        lines.append(f"TEMPLATE {_quoted(settings.template or template)}")
    if settings.system:
        lines.append(f"SYSTEM {_quoted(settings.system)}")
    for name, value in settings.parameters.items():
        lines.extend(f"PARAMETER {name} {_quoted(text)}" for text in text_of_value(value))
    lines.extend(f"LICENSE {_quoted(text)}" for text in settings.license)
    lines.extend(f"MESSAGE {message.role} {_quoted(message.content)}" for message in settings.messages)
    return "\n".join(lines) + "\n"


def normal_line_ends(text: str) -> str:
    """A text as a Modelfile can carry it: every line end is one `\\n`."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


@dataclass(slots=True)
class _Draft:
    """A Modelfile in the making."""

    base: str | None = None
    system: str | None = None
    template: str | None = None
    parameters: dict[str, ParameterValue] = field(default_factory=dict)
    messages: list[StoredMessage] = field(default_factory=list)
    license: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def finished(self, base: str) -> Modelfile:
        return Modelfile(
            base=base,
            system=self.system,
            template=self.template,
            parameters=self.parameters,
            messages=tuple(self.messages),
            license=tuple(self.license),
            warnings=tuple(self.warnings),
        )


def _instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Line number, command in lower case and value of every instruction."""
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        start, line = at, lines[at]
        at += 1
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        command, rest = _first_word(line)
        head = ""
        if command.lower() in {"parameter", "message"}:
            head, rest = _first_word(rest)
        value, at = _value(rest, lines, at, start + 1)
        yield start + 1, command.lower(), f"{head} {value}" if head else value


def _first_word(line: str) -> tuple[str, str]:
    found = _FIRST_WORD.match(line)
    assert found is not None  # it matches the empty text too
    return found[1], line[found.end() :]


def _value(rest: str, lines: Sequence[str], at: int, line: int) -> tuple[str, int]:
    """An instruction's value that begins with `rest`, and the line after its last one."""
    rest = rest.strip() if not rest.lstrip().startswith('"') else rest.lstrip()
    quotes = _TRIPLE if rest.startswith(_TRIPLE) else '"' if rest.startswith('"') else ""
    if not quotes:
        return rest, at
    taken = [rest[len(quotes) :]]
    while not _ends(taken, quotes):
        if at == len(lines):
            raise ModelfileFault(line, f"the {quotes} that opens here is never closed")
        taken.append(lines[at])
        at += 1
    whole = "\n".join(taken).rstrip()[: -len(quotes)]
    return (_HELD_OPEN.sub(r"\1", whole) if quotes == _TRIPLE else whole), at


def _ends(taken: Sequence[str], quotes: str) -> bool:
    return taken[-1].rstrip().endswith(quotes)


def _quoted(value: str) -> str:
    """A value as the parser gives it back."""
    plain = value and "\n" not in value and not value.startswith('"') and value == value.strip()
    if plain and value.isprintable():
        return value
    return f"{_TRIPLE}{_WOULD_CLOSE.sub(lambda found: found[1] + '~', value)}{_TRIPLE}"


def _from(draft: _Draft, line: int, value: str) -> None:
    if not value:
        raise ModelfileFault(line, "FROM needs the name of a model or the path of a GGUF file")
    if draft.base is not None:
        raise ModelfileFault(line, "there is a FROM already; one model is made from one base")
    draft.base = value


def _system(draft: _Draft, _line: int, value: str) -> None:
    draft.system = value


def _template(draft: _Draft, _line: int, value: str) -> None:
    draft.template = value


def _license(draft: _Draft, _line: int, value: str) -> None:
    draft.license.append(value)


def _parameter(draft: _Draft, line: int, value: str) -> None:
    name, _, text = value.partition(" ")
    name = name.lower()
    if name not in OPTIONS:
        raise ModelfileFault(line, f"unknown parameter {name[:40]!a}")
    try:
        read = value_of_text(name, text)
    except OptionFault as fault:
        raise ModelfileFault(line, str(fault)) from fault
    before = draft.parameters.get(name)
    draft.parameters[name] = [*before, *read] if isinstance(before, list) and isinstance(read, list) else read
    if not OPTIONS[name].used:
        draft.warnings.append(f"The parameter {name} (line {line}) has no effect here.")


def _message(draft: _Draft, line: int, value: str) -> None:
    role, _, content = value.partition(" ")
    if role.lower() not in {"system", "user", "assistant"}:
        raise ModelfileFault(line, f"message role must be one of system, user, or assistant, not {role[:40]!a}")
    if len(draft.messages) == MAX_MESSAGES:
        raise ModelfileFault(line, f"there are more than {MAX_MESSAGES:,} messages")
    draft.messages.append(StoredMessage(role=cast("Role", role.lower()), content=content))


def _adapter(_draft: _Draft, line: int, _value: str) -> None:
    raise ModelfileFault(line, "adapters are not supported; use a model that the adapter is merged into")


def _without_effect(command: str) -> "_Reader":
    def read(draft: _Draft, line: int, _value: str) -> None:
        draft.warnings.append(f"{command} (line {line}) has no effect here.")

    return read


_Reader: TypeAlias = Callable[[_Draft, int, str], None]

_READERS: Mapping[str, _Reader] = {
    "from": _from,
    "system": _system,
    "template": _template,
    "license": _license,
    "parameter": _parameter,
    "message": _message,
    "adapter": _adapter,
    "renderer": _without_effect("RENDERER"),
    "parser": _without_effect("PARSER"),
    "requires": _without_effect("REQUIRES"),
    "draft": _without_effect("DRAFT"),
}
