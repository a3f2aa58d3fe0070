"""The live view as lines of text: a picture of plain values, of any size. Nothing here reads a server or a terminal."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rich.text import Text

from pocketserver.telemetry.log_lines import RequestLine, escaped

_LABEL_WIDTH = 11
_LEAST_BESIDE = 42
"""Columns that the facts need beside the QR code; with fewer they stand below it."""
_LEAST_BELOW = 4
"""Lines that are kept for requests when the code stands above the facts."""
_MOST_NOTE_LINES = 6
_PATH_WIDTH = 32
_SHORTEST_PATH = 8
_WIDE_FROM = 60
_BARS = "▁▂▃▄▅▆▇█"
_FOOTER = "Ctrl-C ends the server, Ctrl-\\ cancels the running answer"
_STATE_STYLES = {"idle": "green", "busy": "yellow", "loading": "yellow", "stuck": "red", "no_model": "red"}
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A labelled value; the hint stands behind it where there is room."""

    label: str
    value: str
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Everything that the view shows. `state` is one of lane_state's words, `doing` says it for people.

    `address` is what a QR code says, if there is to be one; `rates` are tokens a second over the last minutes;
    `requests` and `notes` come oldest first; `warnings` stand as long as the server does.
    """

    title: str
    facts: tuple[Fact, ...]
    state: str
    doing: str
    address: str = ""
    queue: str = ""
    rates: tuple[float, ...] = ()
    requests: tuple[RequestLine, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """How wide the parts of a request's line are, in characters."""

    clock: bool
    method: int
    seconds: int
    outcome: int
    key: int


_WIDE = _Columns(clock=True, method=7, seconds=6, outcome=15, key=24)
_NARROW = _Columns(clock=False, method=4, seconds=4, outcome=5, key=6)


def picture(scene: Scene, code: Sequence[Text], width: int, height: int) -> list[Text]:
    """Exactly `height` lines, none wider than `width`; requests take what is left.

    `code` are the lines of a QR code, none where it cannot be drawn.
    """
    lines = [_cut(Text(scene.title, "bold"), width), *_top(scene, code, width, height)]
    notes = _notes(scene, width)
    left = height - len(lines) - 1
    notes = notes[-max(0, min(_MOST_NOTE_LINES, left // 2)) :] if left > 1 else []
    lines += _requests(scene.requests, width, left - len(notes)) + notes
    lines = [*lines[: height - 1], *[Text()] * (height - 1 - len(lines)), _cut(Text(_FOOTER, "dim"), width)]
    return lines[-height:]


def _top(scene: Scene, code: Sequence[Text], width: int, height: int) -> list[Text]:
    """The code and the facts: side by side, else one above the other, else without the code."""
    code_width = max((line.cell_len for line in code), default=0)
    if code and width >= code_width + 2 + _LEAST_BESIDE and height >= len(code) + 2:
        beside = _facts(scene, width - code_width - 2)
        return [Text.assemble(_padded(left, code_width + 2), right) for left, right in _zipped(code, beside, Text())]
    facts = _facts(scene, width)
    if code and width >= code_width and height >= len(code) + len(facts) + 2 + _LEAST_BELOW:
        return [*code, *facts]
    hint = Fact(label="QR code", value="`pocketserver qr`")
    return _facts(scene, width, [hint] if code else [])


def _facts(scene: Scene, width: int, more: Iterable[Fact] = ()) -> list[Text]:
    lines = [line for fact in (*scene.facts, *more) for line in _fact(fact, width)]
    lines += _labelled("State", Text(scene.doing, _STATE_STYLES.get(scene.state, "")), width)
    if scene.queue:
        lines += _labelled("Queue", Text(scene.queue), width)
    if any(scene.rates):
        lines.append(
            _cut(Text.assemble((_label("Tokens/s"), "dim"), *_chart(scene.rates, width - _LABEL_WIDTH)), width)
        )
    return lines


def _fact(fact: Fact, width: int) -> list[Text]:
    """On one line with its hint, without it where it does not fit, on several when even the value is too long."""
    if fact.hint and _LABEL_WIDTH + len(fact.value) + len(fact.hint) <= width:
        return _labelled(fact.label, Text.assemble(escaped(fact.value), (fact.hint, "dim")), width)
    return _labelled(fact.label, Text(escaped(fact.value)), width)


def _labelled(label: str, value: Text, width: int) -> list[Text]:
    first, *rest = folded(value, max(8, width - _LABEL_WIDTH)) or [Text()]
    return [
        _cut(Text.assemble((_label(label), "dim"), first), width),
        *(_cut(Text.assemble(" " * _LABEL_WIDTH, line), width) for line in rest),
    ]


def _label(label: str) -> str:
    return f"{label:{_LABEL_WIDTH}}"


def _chart(rates: Sequence[float], width: int) -> list[tuple[str, str]]:
    """Bars, the highest of them full; the figure behind them is that highest rate."""
    top = max(rates)
    words = f" up to {top:.0f}"
    shown = rates[-max(1, width - len(words)) :]
    bars = "".join(" " if rate <= 0 else _BARS[min(7, int(rate / top * 8))] for rate in shown)
    return [(bars, "cyan"), (words, "dim")]


def _notes(scene: Scene, width: int) -> list[Text]:
    warned = [line for text in scene.warnings for line in folded(Text(escaped(text), "bold red"), width)]
    told = [line for text in scene.notes for line in folded(Text(escaped(text), _note_style(text)), width)]
    return told + warned


def _note_style(text: str) -> str:
    """Warnings and errors of the log, which name their level after the time, stand out."""
    return "yellow" if text[9:].startswith(("warning ", "error ", "critical ")) else "dim"


def _requests(requests: Sequence[RequestLine], width: int, room: int) -> list[Text]:
    """As many of the last requests as there is room for, below a heading."""
    if room < 2 or not requests:
        return []
    heading = [Text(), _cut(Text("Last requests", "bold"), width)] if room > 3 else []
    shown = requests[-(room - len(heading)) :]
    return [*heading, *(_request(line, width) for line in shown)]


def _request(line: RequestLine, width: int) -> Text:
    """Time of day, method, path, status, seconds, tokens/s or the error, the key's name."""
    columns = _WIDE if width >= _WIDE_FROM else _NARROW
    style = "green" if line.status < 400 else "yellow" if line.status < 500 else "red"
    clock = time.strftime("%H:%M:%S ", time.localtime(line.at)) if columns.clock else ""
    begin = [(clock, "dim"), (f"{escaped(line.method)[: columns.method]:{columns.method}} ", "")]
    end = [(f" {line.status}", style), (f" {_seconds(line.seconds, columns)}", "")]
    end.append((f" {_outcome(line, columns)}", style if line.error else ""))
    if line.key_name:
        end.append((f" {_start_of(escaped(line.key_name), columns.key)}", "dim"))
    taken = sum(len(text) for text, _ in (*begin, *end))
    path = _end_of(escaped(line.path), max(_SHORTEST_PATH, min(_PATH_WIDTH, width - taken)))
    return _cut(Text.assemble(*begin, path, *end), width)


def _seconds(seconds: float, columns: "_Columns") -> str:
    return f"{seconds:{columns.seconds}.{1 if seconds < 100 else 0}f}s"


def _outcome(line: RequestLine, columns: "_Columns") -> str:
    """The error's code, else the rate, else nothing; always as wide."""
    rate = line.tokens_per_second
    text = line.error or ("" if rate is None else f"{rate:.1f} tok/s" if columns.clock else f"{rate:.0f}/s")
    return f"{text[: columns.outcome]:{columns.outcome}}"


def _end_of(path: str, width: int) -> str:
    """Padded; a path that is too long keeps its end, which tells more than `/v1`."""
    text = Text(path)
    if text.cell_len <= width:
        return path + " " * (width - text.cell_len)
    return "…" + path[-(width - 1) :]


def _start_of(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def folded(text: Text, width: int) -> list[Text]:
    """A text on as many lines as it needs, broken at blanks where there are any."""
    lines: list[Text] = []
    rest = text
    while rest.cell_len > width:
        head = rest.plain[: _fitting(rest.plain, width)]
        blank = head.rfind(" ")
        at = blank if blank > width // 3 and len(head) < len(rest.plain) else len(head)
        lines.append(rest[:at])
        rest = rest[at:]
        while rest.plain.startswith(" "):
            rest = rest[1:]
    return [*lines, rest] if rest.plain or not lines else lines


def _fitting(plain: str, width: int) -> int:
    """How many characters fit into so many columns; at least one."""
    count = 0
    columns = 0
    for character in plain:
        columns += Text(character).cell_len
        if columns > width:
            break
        count += 1
    return max(1, count)


def _cut(text: Text, width: int) -> Text:
    text.truncate(width, overflow="ellipsis")
    return text


def _padded(text: Text, width: int) -> Text:
    return Text.assemble(text, " " * (width - text.cell_len))


def _zipped(left: Sequence[Item], right: Sequence[Item], filler: Item) -> list[tuple[Item, Item]]:
    rows = max(len(left), len(right))
    return list(zip([*left, *[filler] * (rows - len(left))], [*right, *[filler] * (rows - len(right))], strict=True))
