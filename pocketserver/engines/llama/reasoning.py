"""What stands around a model's thinking, whether the prompt has opened it already, and how it is switched."""

import re
from collections.abc import Collection, Mapping, Sequence

from pocketserver.chat import JsonValue
from pocketserver.engines.llama import traits as probing
from pocketserver.engines.llama.atoms import Atoms
from pocketserver.engines.llama.sandbox import TemplateFault
from pocketserver.engines.llama.tool_syntax import ReasoningMarks
from pocketserver.engines.llama.traits import NO_PROMPT, REASONING_FIELDS, TOOLS, Render, Traits, Turn

KNOWN_PAIRS: Sequence[tuple[str, str]] = (
    ("<think>", "</think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought", "<channel|>"),
    ("<|channel|>analysis<|message|>", "<|end|>"),
    ("<|think|>", "<|end|>"),
    ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ("[THINK]", "[/THINK]"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
)
"""Pairs that models are known to write; tried where the template shows no field for thinking."""

_ON: Mapping[str, JsonValue] = {"enable_thinking": True, "thinking": True}
_SWITCHES = ("enable_thinking", "thinking", "reasoning")
_EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
_KIMI_EFFORTS = {"minimal": "low", "low": "low", "medium": "high", "high": "high", "xhigh": "max", "max": "max"}


def derive_marks(
    render: Render, traits: Traits, source: str, special_tokens: Collection[str] = ()
) -> ReasoningMarks | None:
    """The marks of this template, or None when neither rendering nor its text shows any."""
    found = _beside_a_field(render, traits, Atoms(special_tokens)) or _stripped(render) or _mentioned(render, source)
    if found is None:
        return None
    return ReasoningMarks(open=found[0], close=found[1], reopens=found[0].startswith(tuple(special_tokens) or ("\0",)))


def is_opened(prompt: str, marks: ReasoningMarks) -> bool:
    """True when the reply to this prompt begins inside the thinking."""
    return prompt.rstrip().endswith(marks.open.rstrip())


def thinking_arguments(source: str, effort: str | None) -> dict[str, JsonValue]:
    """Template variables for a `reasoning_effort`: those that the template mentions. None leaves it to the model."""
    if effort is None:
        return {}
    arguments: dict[str, JsonValue] = {
        name: effort != "none" for name in _SWITCHES if re.search(rf"\b{name}\b(?!['\"\]])", source)
    }
    if "reasoning_effort" in source:
        offered = effort == "none" and re.search(r"['\"]none['\"]", source)
        arguments["reasoning_effort"] = "none" if offered else _EFFORTS.get(effort, "low")
    if "thinking_effort" in source:
        arguments["thinking_effort"] = _KIMI_EFFORTS.get(effort, "low")
    return arguments


def _beside_a_field(render: Render, traits: Traits, atoms: Atoms) -> tuple[str, str] | None:
    """(a) What stands around a thought that is given in the history's own field."""
    for field in REASONING_FIELDS:
        for turns in _thoughtful(traits, field):
            for arguments in (NO_PROMPT, {**NO_PROMPT, **_ON}):
                prompt = _tried(render, turns, arguments)
                if "zqthought" in prompt:
                    before, _, after = prompt.partition("zqthought")
                    return _marks_around(before, after, atoms)
    return None


def _thoughtful(traits: Traits, field: str) -> Sequence[Sequence[Turn]]:
    beside_text = [probing.user(), probing.assistant("zqanswer", **{field: "zqthought"})]
    if not traits.shows_calls:
        return [beside_text]
    calling = probing.assistant("", tool_calls=[probing.call(traits)], **{field: "zqthought"})
    return [beside_text, [probing.user(), calling, probing.result(traits)]]


def _marks_around(before: str, after: str, atoms: Atoms) -> tuple[str, str] | None:
    for opening, closing in KNOWN_PAIRS:
        if before.rstrip().endswith(opening) and after.lstrip().startswith(closing):
            return opening, closing
    openings = [atom for atom in atoms.cut(before.rstrip())[-1:] if len(atom) > 1]
    closings = [atom for atom in atoms.cut(after.lstrip())[:1] if len(atom) > 1]
    return (openings[0], closings[0]) if openings and closings else None


def _stripped(render: Render) -> tuple[str, str] | None:
    """(b) The pair whose inside the template takes out of an older answer."""
    for opening, closing in KNOWN_PAIRS:
        written = f"{opening}zqthought{closing}zqanswer"
        prompt = _tried(render, [probing.user(), probing.assistant(written), probing.user("zqlast")], {})
        if "zqanswer" in prompt and "zqthought" not in prompt:
            return opening, closing
    return None


def _mentioned(render: Render, source: str) -> tuple[str, str] | None:
    """(c), (d) The pair in a generation prompt, or in the template's own text."""
    prompts = [_tried(render, [probing.user()], arguments) for arguments in ({}, _ON)]
    for opening, closing in KNOWN_PAIRS:
        if any(opening in prompt for prompt in prompts) and closing in source:
            return opening, closing
        if opening in source and closing in source:
            return opening, closing
    return None


def _tried(render: Render, turns: Sequence[Turn], arguments: Mapping[str, JsonValue]) -> str:
    try:
        return render(turns, TOOLS, arguments)
    except TemplateFault:
        return ""
