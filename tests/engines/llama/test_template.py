"""Rendering: what reaches the prompt, and what a hostile template cannot do."""

import threading
from datetime import UTC, datetime

import pytest

from pocketserver.chat import Message, Role, Tool, ToolCall
from pocketserver.engines.llama.template import ChatTemplate
from pocketserver.errors import Code, Refusal

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HELLO = (Message(role=Role.USER, content="hello"),)


def refused(source: str, *messages: Message, tools: tuple[Tool, ...] = ()) -> Refusal:
    with pytest.raises(Refusal) as caught:
        ChatTemplate(source, render_seconds=1).render(messages or HELLO, tools=tools)
    return caught.value


def test_a_conversation_ends_in_one_generation_prompt() -> None:
    assert ChatTemplate(CHATML).render(HELLO) == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"


def test_an_empty_last_answer_is_ignored() -> None:
    placeholder = Message(role=Role.ASSISTANT, content="")
    assert ChatTemplate(CHATML).render((*HELLO, placeholder)) == ChatTemplate(CHATML).render(HELLO)


def test_a_last_answer_is_continued_after_the_only_generation_prompt() -> None:
    begun = Message(role=Role.ASSISTANT, content="1, 2,")
    assert ChatTemplate(CHATML).render((*HELLO, begun)) == ChatTemplate(CHATML).render(HELLO) + "1, 2,"


def test_a_call_without_text_never_prints_none() -> None:
    call = Message(role=Role.ASSISTANT, tool_calls=(ToolCall(id="", name="f", arguments=""),))
    prompt = ChatTemplate(CHATML).render((*HELLO, call, Message(role=Role.TOOL, content="ok")))
    assert "None" not in prompt


def test_leading_system_messages_become_one() -> None:
    system = (Message(role=Role.SYSTEM, content="a"), Message(role=Role.SYSTEM, content="b"))
    assert ChatTemplate(CHATML).render((*system, *HELLO)).startswith("<|im_start|>system\na\n\nb<|im_end|>")


def test_arguments_that_are_no_object_are_refused_by_field() -> None:
    call = Message(role=Role.ASSISTANT, tool_calls=(ToolCall(id="1", name="f", arguments="[1"),))
    refusal = refused(CHATML, *HELLO, call, Message(role=Role.TOOL, content="ok"))
    assert (refusal.code, refusal.param) == (Code.INVALID_PARAMETER, "messages[1].tool_calls[0].function.arguments")


def test_tools_are_refused_where_the_template_has_no_place_for_them() -> None:
    assert refused(CHATML, tools=(Tool(name="f"),)).code is Code.TOOLS_UNSUPPORTED


def test_a_templates_own_refusal_is_told() -> None:
    refusal = refused("{{ raise_exception('Roles must alternate') }}")
    assert refusal.code is Code.TEMPLATE_UNSUPPORTED
    assert "Roles must alternate" in refusal.message


def test_a_templates_own_refusal_is_cut_to_one_short_line() -> None:
    refusal = refused("{{ raise_exception('No.\nNever\x1b[2J ' ~ 'again ' * 5000) }}")
    assert "No. Never" in refusal.message
    assert refusal.message.isprintable()
    assert len(refusal.message) < 500


def test_a_message_s_text_reaches_no_error_uncut() -> None:
    secret = Message(role=Role.USER, content="line\n" * 5000)
    refusal = refused("{{ raise_exception(messages[0].content) }}", secret)
    assert refusal.message.isprintable()
    assert len(refusal.message) < 500


SLOW = (
    "{% for m in messages %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{% endfor %}"
)


def test_a_slow_template_and_a_huge_conversation_are_told_apart() -> None:
    assert "processor time" in refused(SLOW).message
    many = refused(SLOW, *[Message(role=Role.USER, content="x")] * 1000)
    assert (many.code, many.param) == (Code.TEMPLATE_UNSUPPORTED, "messages")
    assert "1,000 messages" in many.message
    assert "--chat-template" not in many.message


def test_time_that_others_have_the_processor_is_not_the_template_s() -> None:
    source = "{% for a in range(200) %}{% for b in range(200) %}{% endfor %}{% endfor %}ok"
    done = threading.Event()

    def compute() -> None:
        while not done.is_set():
            sum(range(1000))

    others = [threading.Thread(target=compute) for _ in range(4)]  # each holds the interpreter for its share
    for other in others:
        other.start()
    try:
        assert ChatTemplate(source, render_seconds=0.5).render(HELLO) == "ok"
    finally:
        done.set()
        for other in others:
            other.join()


def test_json_is_written_unescaped_in_the_order_given() -> None:
    template = ChatTemplate("{{ tools | tojson }}{{ undefined_name is defined }}")
    tool = {"z": {"description": "<b> & 'é'"}, "a": 1}
    prompt = template.render_turns([{"role": "user", "content": "hello"}], tools=[tool])
    assert prompt == '[{"z": {"description": "<b> & \'é\'"}, "a": 1}]False'


def test_the_date_comes_from_the_clock_given() -> None:
    template = ChatTemplate("{{ strftime_now('%Y-%m-%d') }}", clock=lambda: datetime(2031, 5, 6, tzinfo=UTC))
    assert template.render(HELLO) == "2031-05-06"


def test_generation_blocks_show_their_body_and_loops_break() -> None:
    loop = "{% for i in range(9) %}{% if i > 1 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    source = "{% generation %}a{% endgeneration %}" + loop
    assert ChatTemplate(source).render(HELLO) == "a01"


def test_a_loop_keeps_its_length_and_neighbours() -> None:
    source = "{% for m in messages %}{{ loop.length }}{{ loop.last }}{{ loop.nextitem is defined }}{% endfor %}"
    assert ChatTemplate(source).render(HELLO) == "1TrueFalse"


def test_template_arguments_do_not_replace_the_conversation() -> None:
    template = ChatTemplate("{{ messages[0].content }}{{ extra }}")
    assert template.render(HELLO, arguments={"messages": [], "extra": "x"}) == "hellox"


def test_a_template_cannot_change_the_callers_messages() -> None:
    template = ChatTemplate("{{ messages.pop(0).content }}")
    assert [template.render(HELLO), template.render(HELLO)] == ["hello", "hello"]


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10**9 }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% set n = namespace(s='aaaaaaaa') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
        "{% set n = namespace(s='aaaaaaaa') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
        "{{ messages | tojson(indent=10**8) }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ '%s' | format(1) | center(10**9) }}",
        "{{ 'a'.ljust(10**9) }}",
        "{{ '{:>9999999999}'.format(1) }}",
        "{{ '{:{}}'.format(1, 999999999) }}",
        "{{ ('a' * 100000).replace('a', 'b' * 100000) }}",
        "{{ ('a' * 100000) | replace('a', 'b' * 100000) }}",
        "{{ strftime_now('%999999999Y') }}",
        "{{ 7 ** 9999999 }}",
        "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__.os }}",
        "{% include '/etc/passwd' %}",
        "{{ lipsum() }}",
        "{{ (" * 3000 + "1" + ")" * 3000 + "}}",
        "x" * 300_000,
        "{% for %}",
        "{{ range(10**9) }}",
        "{{ undefined_thing.field.deeper }}",
    ],
)
def test_a_hostile_template_ends_in_a_clear_refusal(source: str) -> None:
    refusal = refused(source)
    assert refusal.code is Code.TEMPLATE_UNSUPPORTED
    assert len(refusal.message) < 800
