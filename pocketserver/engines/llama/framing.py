"""From literals seen around calls to patterns, and to the marks around each call and around all of them."""

import re
from collections.abc import Sequence

from pocketserver.engines.llama.atoms import Atoms, Gap, common_prefix, common_suffix
from pocketserver.engines.llama.tool_syntax import Form, Pattern, Slot, ToolSyntax

_NUMBER = re.compile(r"\d+")


class NotDerived(Exception):  # noqa: N818 - an outcome, told in the log
    """The calls that the template writes follow no rule that is known here."""


def framed(atoms: Atoms, form: Form, before: str, between: str, after: str) -> ToolSyntax:
    """The syntax of calls with these texts before the first, between two, and after the last."""
    after = after.rstrip()
    call_open = common_suffix(atoms, before, between)
    between = between[: len(between) - len(call_open)]
    call_close = common_prefix(atoms, after, between)
    return ToolSyntax(
        form=form,
        block_open=before[: len(before) - len(call_open)],
        call_open=slotted(call_open),
        call_close=slotted(call_close),
        separator=between[len(call_close) :],
        block_close=after[len(call_close) :],
    )


def single(form: Form, before: str, after: str) -> ToolSyntax:
    """The syntax of calls that come one a turn."""
    return ToolSyntax(form=form, call_open=slotted(before), call_close=slotted(after.rstrip()), parallel=False)


def generalised(first: str, second: str) -> Pattern:
    """The literal of the first and second call: its id is a slot, and so is a number that counts the calls."""
    if first == second:
        return slotted(first)
    if _NUMBER.sub("#", first) != _NUMBER.sub("#", second):
        raise NotDerived(f"the literals {first!r} and {second!r} differ")
    pairs = zip(_NUMBER.finditer(first), _NUMBER.finditer(second), strict=True)
    return slotted(first, [found for found, other in pairs if found.group() != other.group()])


def slotted(text: str, counters: Sequence[re.Match[str]] = ()) -> Pattern:
    made: list[str | Slot] = []
    at = 0
    for counter in counters:
        made += [*_ids(text[at : counter.start()]), Slot.INDEX]
        at = counter.end()
    return tuple(part for part in (*made, *_ids(text[at:])) if part)


def _ids(text: str) -> list[str | Slot]:
    return [Slot.ID if part == Gap.ID else part for part in re.split(f"({Gap.ID})", text)]
