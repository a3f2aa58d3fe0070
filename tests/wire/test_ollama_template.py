"""Go templates of one request, as far as people write prompts in them."""

import pytest

from pocketserver.chat import Message, Role
from pocketserver.errors import Code, Refusal
from pocketserver.wire.ollama_template import render

SYSTEM, USER = Message(role=Role.SYSTEM, content="S"), Message(role=Role.USER, content="hi")
ANSWER, AGAIN = Message(role=Role.ASSISTANT, content="ho"), Message(role=Role.USER, content="and?")
CHATML = """{{ if .System }}<|im_start|>system
{{ .System }}<|im_end|>
{{ end }}{{ if .Prompt }}<|im_start|>user
{{ .Prompt }}<|im_end|>
{{ end }}<|im_start|>assistant
{{ .Response }}<|im_end|>
"""
TURNS = """{{- range .Messages }}<{{ .Role }}>{{ .Content }}
{{ end -}}
<assistant>"""


def test_the_prompt_ends_where_the_answer_goes() -> None:
    assert render(CHATML, [USER]) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_earlier_exchanges_come_first_with_their_answers() -> None:
    assert render("[{{ .System }}|{{ .Prompt }}|{{ .Response }}]", [SYSTEM, USER, ANSWER, AGAIN]) == "[S|hi|ho][|and?|"


def test_turns_are_ranged_over() -> None:
    assert render(TURNS, [SYSTEM, USER]) == "<system>S\n<user>hi\n<assistant>"


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("a {{- .Prompt -}} b", "ahib"),
        ("{{.Prompt}}{{/* said */}}!", "hi!"),
        ('{{ if eq .Prompt "hi" }}yes{{ else }}no{{ end }}', "yes"),
        ('{{ if ne .Prompt "hi" }}a{{ else if .Prompt }}b{{ else }}c{{ end }}', "b"),
        ("{{ if and .System .Prompt }}a{{ end }}{{ if or .System .Prompt }}b{{ end }}", "b"),
        ("{{ if not (and .System .Prompt) }}a{{ end }}", "a"),
        ('{{ "x y" }}{{ `"` }}{{ "\\n" }}', 'x y"\n'),
        ("{{ if .First }}1{{ end }}{{ .Suffix }}", "1"),
        ("{{ range .Messages }}{{ if eq .Role `user` }}{{ .Content }}{{ $.System }}{{ end }}{{ end }}", "hi"),
        ("", ""),
    ],
)
def test_what_prompts_are_written_with_is_understood(template: str, text: str) -> None:
    assert render(template, [USER]) == text


@pytest.mark.parametrize(
    "template",
    [
        "{{ end }}", "{{ if .Prompt }}", "{{ range .Tools }}{{ end }}", "{{ .Prompt | upper }}", "{{ slice .Messages 1 }}",
        "{{ $x := .Prompt }}", "{{ if eq .Prompt }}{{ end }}", "{{ if }}a{{ end }}", "{{ template \"x\" }}", "{{ }}",
        "{{ if (not .Prompt }}{{ end }}", "{% if x %}{{ messages[0] }}{% endif %}", "{{ if .A }}" * 99 + "{{ end }}" * 99,
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused_and_never_guessed(template: str) -> None:
    with pytest.raises(Refusal) as found:
        render(template, [USER])

    assert (found.value.code, found.value.param) == (Code.TEMPLATE_UNSUPPORTED, "template")
