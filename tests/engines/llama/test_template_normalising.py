"""Conversations that a template would drop or refuse are brought into a form that it takes."""

import pytest

from pocketserver.chat import Message, Role, Tool, ToolCall
from pocketserver.engines.llama.template import ChatTemplate
from pocketserver.engines.llama.traits import CallIds

_CALLS = "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }} {{ c.function.arguments ARGUMENTS }}</call>{% endfor %}"
_TURNS = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}CHECK<{{ m.role }}>{{ m.content }}"
    + _CALLS
    + "{{ '\n' }}{% endfor %}"
)
ALTERNATING = (
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}"
)
NO_SYSTEM = "{% if m.role == 'system' %}{{ raise_exception('No system role') }}{% endif %}"
ONE_CALL = "{% if (m.tool_calls or []) | length > 1 %}{{ raise_exception('One call') }}{% endif %}"
NINE = (
    "{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}{{ raise_exception('Nine') }}{% endif %}{% endfor %}"
)
USER, ASSISTANT, SYSTEM, TOOL = Role.USER, Role.ASSISTANT, Role.SYSTEM, Role.TOOL
WEATHER = Tool(name="get_weather", parameters={"type": "object", "properties": {"city": {"type": "string"}}})


def template(check: str = "", arguments: str = "| tojson") -> ChatTemplate:
    return ChatTemplate(_TURNS.replace("CHECK", check).replace("ARGUMENTS", arguments))


def said(role: Role, text: str) -> Message:
    return Message(role=role, content=text)


def calling(*ids: str) -> Message:
    calls = tuple(ToolCall(id=name, name="get_weather", arguments='{"city": "Oslo"}') for name in ids)
    return Message(role=ASSISTANT, tool_calls=calls)


def result(identity: str, text: str) -> Message:
    return Message(role=TOOL, content=text, tool_call_id=identity)


def test_neighbours_of_one_role_are_merged_for_templates_that_alternate() -> None:
    prompt = template(ALTERNATING).render((said(USER, "one"), said(USER, "two")))
    assert prompt == "<user>one\n\ntwo\n"


def test_a_system_text_stands_before_the_first_user_text_where_there_is_no_such_role() -> None:
    assert template(NO_SYSTEM).render((said(SYSTEM, "brief"), said(USER, "hi"))) == "<user>brief\n\nhi\n"


def test_parallel_calls_become_rounds_for_templates_with_one_call_a_turn() -> None:
    prompt = template(ONE_CALL).render((said(USER, "hi"), calling("a", "b"), result("b", "two"), result("a", "one")))
    call = '<assistant><call>get_weather {"city": "Oslo"}</call>'
    assert prompt == f"<user>hi\n{call}\n<tool>one\n{call}\n<tool>two\n"


def test_arguments_are_an_object_where_the_template_writes_json_and_text_where_it_does_not() -> None:
    messages = (said(USER, "hi"), calling("a"), result("a", "ok"))
    for arguments in ("| tojson", ".strip()"):
        assert '<call>get_weather {"city": "Oslo"}</call>' in template(arguments=arguments).render(messages)


def test_ids_are_shortened_only_for_templates_that_insist() -> None:
    long = "call_0123456789abcdefghijklmn"
    messages = (said(USER, "hi"), calling(long), result(long, "ok"))
    assert template(NINE).traits.call_ids is CallIds.NINE
    assert template().traits.call_ids is CallIds.GIVEN
    assert "<tool>ok" in template(NINE).render(messages)


def test_calls_are_told_as_text_where_the_template_cannot_show_them() -> None:
    plain = ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ '\n' }}{% endfor %}")
    prompt = plain.render((said(USER, "hi"), calling("a"), result("a", "4 C")))
    assert (
        prompt == '<user>hi\n<assistant>Called get_weather with {"city": "Oslo"}\n<user>Result of get_weather:\n4 C\n'
    )


def test_results_without_an_id_answer_the_calls_in_their_order() -> None:
    source = (
        "{% for m in messages %}{{ m.name }} {{ m.tool_call_id }} {{ m.content }}" + _CALLS + "{{ '\n' }}{% endfor %}"
    )
    template_ = ChatTemplate(source.replace("ARGUMENTS", "| tojson"))
    first = Message(role=TOOL, content="one")
    prompt = template_.render((said(USER, "hi"), calling("a", "b"), first, first))
    assert [line.split()[:2] for line in prompt.splitlines()[2:]] == [["get_weather", "a"], ["get_weather", "b"]]


def test_tools_are_told_in_a_system_message_where_the_template_only_shows_calls() -> None:
    shows_only = ChatTemplate(template().source.replace("{% if tools %}{{ tools | tojson }}{% endif %}", ""))
    prompt = shows_only.render((said(USER, "hi"),), tools=(WEATHER,))
    assert prompt.startswith("<system>You can call these functions:")
    assert '"name": "get_weather"' in prompt


@pytest.mark.parametrize(
    "parameters", [{}, {"type": "object"}, {"properties": None}, {"properties": [], "required": None}]
)
def test_a_tool_without_parameters_shows_an_empty_schema(parameters: dict[str, object]) -> None:
    prompt = template().render((said(USER, "hi"),), tools=(Tool(name="now", parameters=parameters),))
    assert '"parameters": {"type": "object", "properties": {}' in prompt
    assert "null" not in prompt
