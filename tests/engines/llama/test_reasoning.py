"""Marks of thinking: found in templates, opened by prompts, switched by effort."""

import pytest

from pocketserver.chat import Message, Role
from pocketserver.engines.llama.reasoning import is_opened, thinking_arguments
from pocketserver.engines.llama.template import ChatTemplate

_TURNS = "{% for m in messages %}[{{ m.role }}]THOUGHT{{ m.content }}\n{% endfor %}"
_PROMPT = "{% if add_generation_prompt %}[assistant]OPENING{% endif %}"
FIELD = "{% if m.FIELD %}<|think|>\n{{ m.FIELD }}\n<|/think|>{% endif %}"
SWITCHED = "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% else %}<think>\n{% endif %}"
HELLO = (Message(role=Role.USER, content="hello"),)


def template(thought: str = "", opening: str = "") -> ChatTemplate:
    return ChatTemplate(_TURNS.replace("THOUGHT", thought) + _PROMPT.replace("OPENING", opening))


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "thinking"])
def test_the_marks_stand_around_the_thought_given_in_the_history(field: str) -> None:
    marks = template(FIELD.replace("FIELD", field)).reasoning_marks
    assert marks is not None
    assert (marks.open, marks.close) == ("<|think|>", "<|/think|>")


def test_the_marks_are_the_pair_that_is_taken_out_of_older_answers() -> None:
    source = "{% for m in messages %}[{{ m.role }}]{{ m.content.split('[/THINK]')[-1] }}\n{% endfor %}"
    marks = ChatTemplate(source).reasoning_marks
    assert marks is not None
    assert (marks.open, marks.close) == ("[THINK]", "[/THINK]")


def test_a_template_that_shows_no_thinking_has_no_marks() -> None:
    assert template().reasoning_marks is None


@pytest.mark.parametrize(("effort", "opened"), [(None, True), ("high", True), ("none", False)])
def test_effort_decides_whether_the_prompt_opens_the_thinking(effort: str | None, opened: bool) -> None:
    switched = template(opening=SWITCHED)
    marks = switched.reasoning_marks
    assert marks is not None
    prompt = switched.render(HELLO, arguments=thinking_arguments(switched.source, effort))
    assert is_opened(prompt, marks) is opened


def test_only_variables_that_a_template_mentions_are_set() -> None:
    assert thinking_arguments("{{ messages }}", "high") == {}
    assert thinking_arguments("{{ thinking_effort }}", "medium") == {"thinking_effort": "high"}
    assert thinking_arguments("{{ reasoning_effort }}", "minimal") == {"reasoning_effort": "low"}


def test_a_begun_answer_comes_after_the_thinking_that_the_prompt_opened() -> None:
    begun = Message(role=Role.ASSISTANT, content="1, 2,")
    assert template(opening=SWITCHED).render((*HELLO, begun)).endswith("<think>\n\n</think>\n\n1, 2,")


def test_thoughts_of_earlier_turns_go_where_the_template_reads_them() -> None:
    calls = (
        "{% for c in m.tool_calls or [] %}call {{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}"
    )
    source = template(FIELD.replace("FIELD", "thinking") + calls).source
    thoughtful = Message(role=Role.ASSISTANT, content="done", reasoning="plan it")
    assert "<|think|>\nplan it\n<|/think|>done" in ChatTemplate(source).render((*HELLO, thoughtful, *HELLO))
