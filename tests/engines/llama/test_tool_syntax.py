"""Deriving a model's tool syntax from its template."""

import json
from functools import cache

import pytest

from pocketserver.chat import Event, FinishReason, Message, Role, Tool, ToolCall, ToolCallDelta, ToolCallStarted
from pocketserver.engines.llama.reply import ReplyReader
from pocketserver.engines.llama.reply_format import derive_reply_format
from pocketserver.engines.llama.template import ChatTemplate
from pocketserver.engines.llama.tool_syntax import ReplyFormat, ToolSyntax
from tests.engines.llama.family_templates import END_TOKENS, FAMILIES, SPECIAL_TOKENS

TOOLS = tuple(
    Tool(name=name, parameters={"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}})
    for name in ("get_weather", "get_news")
)


def derived(source: str) -> ReplyFormat:
    return derive_reply_format(ChatTemplate(source), special_tokens=SPECIAL_TOKENS, end_tokens=END_TOKENS)


@cache
def syntax_of(family: str) -> ToolSyntax:
    syntax = derived(FAMILIES[family].source).syntax
    assert syntax is not None
    return syntax


def calls_in(syntax: ToolSyntax, text: str) -> list[tuple[str, object]]:
    reader = ReplyReader(ReplyFormat(syntax=syntax), tools=TOOLS)
    events: list[Event] = [*reader.feed(None, text), *reader.finish(FinishReason.STOP)[0]]
    names = [event.name for event in events if isinstance(event, ToolCallStarted)]
    values = [json.loads(event.arguments) for event in events if isinstance(event, ToolCallDelta)]
    return list(zip(names, values, strict=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_is_read_by_the_rule_that_its_template_shows(family: str) -> None:
    assert calls_in(syntax_of(family), FAMILIES[family].call) == [("get_weather", {"city": "Oslo", "days": 3})]


@pytest.mark.parametrize("family", FAMILIES)
def test_what_the_template_renders_is_what_is_read(family: str) -> None:
    call = ToolCall(id="abcdefgh0", name="get_weather", arguments='{"city": "a \\"b\\" <c>", "days": 7}')
    messages = (Message(role=Role.USER, content="hi"), Message(role=Role.ASSISTANT, tool_calls=(call,)))
    prompt = ChatTemplate(FAMILIES[family].source).render(messages, tools=TOOLS)
    reply = prompt.split("<|im_start|>assistant\n")[1].removesuffix("<|im_end|>\n")
    assert calls_in(syntax_of(family), reply) == [("get_weather", {"city": 'a "b" <c>', "days": 7})]


def test_a_template_with_one_call_a_turn_is_known_as_such() -> None:
    assert not syntax_of("bare json").parallel
    assert syntax_of("json in a tag").parallel


def test_a_model_without_marks_is_also_read_with_the_mark_of_its_family() -> None:
    text = '<|python_tag|>{"name": "get_news", "parameters": {"days": 1}}'
    assert calls_in(syntax_of("bare json"), text) == [("get_news", {"days": 1})]


def test_channels_are_read_in_every_order_their_models_write() -> None:
    one = " to=functions.{{ f.name }}<|channel|>commentary json<|message|>{{ f.arguments | tojson }}"
    source = FAMILIES["json in a tag"].source.replace(FAMILIES["json in a tag"].one, one)
    syntax = derived(source).syntax
    assert syntax is not None
    for head in (
        "<|channel|>commentary to=functions.get_news <|constrain|>json<|message|>",
        " to=functions.get_news<|channel|>commentary json<|message|>",
    ):
        assert calls_in(syntax, head + '{"days": 1}') == [("get_news", {"days": 1})]


@pytest.mark.parametrize(
    "calls",
    [
        "",
        "{% for c in m.tool_calls %}call {{ c.function.name }}{% endfor %}",
        "{% for c in m.tool_calls %}{{ c.function.arguments.zqkey }} {{ c.function.name }} zqkey{% endfor %}",
        "{{ raise_exception('no calls here') }}",
    ],
)
def test_calls_without_a_rule_are_no_syntax(calls: str) -> None:
    family = FAMILIES["json in a tag"]
    source = family.source.replace(
        "{% for c in m.tool_calls %}{% set f = c.function %}" + family.one + "{% endfor %}", calls
    )
    assert derived(source).syntax is None


def test_a_hostile_template_has_no_syntax_and_no_marks() -> None:
    found = derived("{% for i in range(9) %}{{ 'x' * 10**9 }}{% endfor %}")
    assert (found.syntax, found.reasoning_known, found.wrappers, found.turn_end) == (None, False, (), "")


def test_an_end_of_turn_that_is_no_token_becomes_a_stop_text() -> None:
    source = "{% for m in messages %}{{ m.role }}: {{ m.content }}</turn>\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
    found = derive_reply_format(ChatTemplate(source), special_tokens=(), end_tokens=("<eos>",))
    assert found.turn_end == "</turn>"
