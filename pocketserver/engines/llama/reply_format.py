"""Everything a reader of replies needs, found out once for a template and a vocabulary."""

from collections.abc import Collection

from pocketserver.engines.llama.atoms import Atoms
from pocketserver.engines.llama.reasoning import derive_marks
from pocketserver.engines.llama.sandbox import TemplateFault
from pocketserver.engines.llama.template import ChatTemplate
from pocketserver.engines.llama.tool_derivation import derive_syntax
from pocketserver.engines.llama.tool_syntax import THINK, ReasoningMarks, ReplyFormat
from pocketserver.engines.llama.written import Writing

_CHANNELS = ("<|start|>assistant", "<|channel|>commentary<|message|>", "<|channel|>final<|message|>")
"""Answer marks of the family that writes into channels; its template shows only the last."""


def derive_reply_format(
    template: ChatTemplate, *, special_tokens: Collection[str], end_tokens: Collection[str]
) -> ReplyFormat:
    """What the replies of a model with this template look like. Never raises: what is not found is left out.

    `special_tokens` are the texts of the vocabulary's control and user-defined tokens, `end_tokens` of those that end a
    generation. Some hundred small renders; done once for a model file, before its weights are loaded.
    """
    render, traits = template.render_probe, template.traits
    marks = derive_marks(render, traits, template.source, special_tokens)
    wrappers, turn_end = _around_answers(
        Writing(render, traits, Atoms(special_tokens), end_tokens), marks or THINK, end_tokens
    )
    return ReplyFormat(
        syntax=derive_syntax(render, traits, special_tokens=special_tokens, end_tokens=end_tokens),
        reasoning=marks or THINK,
        reasoning_known=marks is not None,
        wrappers=wrappers,
        turn_end=turn_end,
    )


def _around_answers(
    writing: Writing, marks: ReasoningMarks, end_tokens: Collection[str]
) -> tuple[tuple[str, ...], str]:
    """The marks around a plain answer, and the text that ends a turn where no token does."""
    try:
        before, after = writing.around_plain()
        header = writing.generation_prompt()
    except TemplateFault:
        return (), ""
    lead = before.replace(marks.open, "").replace(marks.close, "").strip()
    ends = [after.find(token) for token in end_tokens if token and token in after]
    tail = after[: min(ends)].strip() if ends else ""
    wrappers = [mark for mark in (lead, tail) if len(mark) > 1]
    if after.lstrip().startswith(marks.close):  # thinking is a message of its own: the answer begins with a header
        wrappers.append(header.replace(marks.open, "").strip())
        wrappers = [mark for mark in wrappers if mark]
    if marks.open.startswith("<|channel|>"):
        wrappers.extend(mark for mark in _CHANNELS if mark not in wrappers)
    return tuple(wrappers), "" if ends else _stop_text(writing.turn_end)


def _stop_text(turn_end: str) -> str:
    """White space alone ends a turn only where it is a blank line."""
    return turn_end.strip() or (turn_end if turn_end.count("\n") > 1 else "")
