"""What rendering cannot show: families whose models write calls otherwise than their template does."""

from dataclasses import replace

from pocketserver.engines.llama.tool_syntax import JsonForm, NamedForm, ToolSyntax

_CHANNELS_JSON = NamedForm(after_name=("<|channel|>commentary json<|message|>",))
_CHANNELS = ToolSyntax(
    form=NamedForm(after_name=(" <|constrain|>json<|message|>",)),
    call_open=("<|channel|>commentary to=functions.",),
    parallel=False,
    also=(
        ToolSyntax(form=_CHANNELS_JSON, call_open=(" to=functions.",), parallel=False),
        ToolSyntax(
            form=NamedForm(after_name=("<|channel|>commentary <|constrain|>json<|message|>",)),
            call_open=("<|start|>assistant to=functions.",),
            parallel=False,
        ),
    ),
)

_FAMILIES: tuple[tuple[tuple[str, ...], ToolSyntax], ...] = ((("<|channel|>", "to=functions."), _CHANNELS),)
"""Texts that all occur in a rendered call, and the syntax that its family really uses."""

_BARE_MARK = "<|python_tag|>"
"""Models without a mark for calls were trained with this one, and write it now and then."""


def family_of(rendered_call: str) -> ToolSyntax | None:
    for texts, syntax in _FAMILIES:
        if all(text in rendered_call for text in texts):
            return syntax
    return None


def with_other_ways(syntax: ToolSyntax) -> ToolSyntax:
    """The syntax, with other ways that its family writes the same call."""
    if syntax.is_bare and isinstance(syntax.form, JsonForm):
        return replace(syntax, also=(*syntax.also, replace(syntax, call_open=(_BARE_MARK,))))
    return syntax
