"""Reading replies: thinking, text and calls, the same whatever the borders of the pieces."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketserver.chat import (
    Event,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    Tool,
    ToolCallDelta,
    ToolCallStarted,
)
from pocketserver.engines.llama.reply import ReplyReader, new_call_id
from pocketserver.engines.llama.tool_syntax import (
    JsonForm,
    NamedForm,
    ReasoningMarks,
    ReplyFormat,
    Slot,
    TaggedForm,
    ToolSyntax,
    ValueStyle,
)

NAMES = JsonForm(name_key="name", arguments_key="arguments")
HERMES = ToolSyntax(form=NAMES, call_open=("<tool_call>\n",), call_close=("\n</tool_call>",), separator="\n")
LIST = ToolSyntax(form=NAMES, block_open="[TOOL_CALLS][", separator=", ", block_close="]")
BARE = ToolSyntax(form=JsonForm(name_key="name", arguments_key="parameters"), parallel=False)
SECTION = ToolSyntax(
    form=NamedForm(after_name=(":", Slot.INDEX, "<|arg|>")),
    block_open="<|section|>",
    call_open=("<|begin|>functions.",),
    call_close=("<|end|>",),
    block_close="<|section_end|>",
)
TAGGED = ToolSyntax(
    form=TaggedForm(
        after_name=(">\n",),
        key_open=("<parameter=",),
        key_close=(("any", ">\n"),),
        value_close="\n</parameter>\n",
    ),
    call_open=("<tool_call>\n<function=",),
    call_close=("</function>\n</tool_call>",),
    separator="\n",
)
PYTHON = ToolSyntax(
    form=TaggedForm(
        after_name=("(",),
        key_open=(),
        key_close=(("any", "="),),
        value_close="",
        separator=", ",
        style=ValueStyle.PYTHON,
    ),
    block_open="<|calls|>[",
    call_close=(")",),
    separator=", ",
    block_close="]<|calls_end|>",
)
TOOLS = (
    Tool(name="get_w", parameters={"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}),
    Tool(name="now"),
)
OSLO = ("get_w", {"city": "Oslo"})

Answer = tuple[str, str, list[tuple[str, str]], FinishReason]


def pieces(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def collect(events: list[Event], reason: FinishReason) -> Answer:
    content = "".join(event.text for event in events if isinstance(event, TextDelta))
    reasoning = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    calls = [(event.index, event.id, event.name) for event in events if isinstance(event, ToolCallStarted)]
    assert [index for index, _, _ in calls] == list(range(len(calls)))
    arguments = {index: "" for index, _, _ in calls}
    for event in events:
        if isinstance(event, ToolCallDelta):
            arguments[event.index] += event.arguments
    return content, reasoning, [(name, arguments[index]) for index, _, name in calls], reason


def read(
    syntax: ToolSyntax | None,
    parts: list[str],
    *,
    marks: ReasoningMarks | None = None,
    opened: bool = False,
    trusted: bool = False,
    stops: tuple[str, ...] = (),
    reason: FinishReason = FinishReason.STOP,
) -> Answer:
    described = ReplyFormat(syntax=syntax)
    if marks is not None:
        described = ReplyFormat(syntax=syntax, reasoning=marks, reasoning_known=True)
    reader = ReplyReader(
        described, tools=TOOLS if syntax else (), opened=opened, trusted=trusted, stops=stops, make_id=lambda: "call_x"
    )
    events: list[Event] = []
    for part in parts:
        events += reader.feed(None, part)
    rest, finished = reader.finish(reason)
    return collect(events + rest, finished)


CALLS = {
    "hermes": (HERMES, 'ok <tool_call>{"name":"get_w","arguments":{"city":"Oslo"}}</tool_call>', "ok"),
    "hermes with newlines": (
        HERMES,
        '<tool_call>\n{"name": "get_w", "arguments": {"city": "Oslo"}}\n</tool_call>\n',
        "",
    ),
    "arguments before the name": (
        HERMES,
        '<tool_call>{"arguments": {"city": "Oslo"}, "name": "get_w"}</tool_call>',
        "",
    ),
    "list": (LIST, '[TOOL_CALLS][{"name": "get_w", "arguments": {"city": "Oslo"}, "id": "abc"}]', ""),
    "bare": (BARE, ' {"name": "get_w", "parameters": {"city": "Oslo"}}', ""),
    "section": (SECTION, '<|section|><|begin|>functions.get_w:0<|arg|>{"city": "Oslo"}<|end|><|section_end|>', ""),
    "tagged": (
        TAGGED,
        "<tool_call>\n<function=get_w>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>",
        "",
    ),
    "python": (PYTHON, "<|calls|>[get_w(city='Oslo')]<|calls_end|>", ""),
}


@pytest.mark.parametrize("size", [1, 3, 8, 999])
@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("case", CALLS)
def test_a_call_is_read_whatever_the_borders_of_its_pieces(case: str, trusted: bool, size: int) -> None:
    syntax, text, before = CALLS[case]
    content, _, calls, reason = read(syntax, pieces(text, size), trusted=trusted)
    assert content.strip() == before
    assert [(name, json.loads(arguments)) for name, arguments in calls] == [OSLO]
    assert reason is FinishReason.TOOL_CALLS


@pytest.mark.parametrize("size", [1, 2, 5, 999])
def test_two_calls_of_a_block_are_told_apart(size: int) -> None:
    text = "<|section|>" + "".join(
        f'<|begin|>functions.{name}:{index}<|arg|>{{"days": {index}}}<|end|>'
        for index, name in enumerate(["now", "get_w"])
    )
    _, _, calls, _ = read(SECTION, pieces(text + "<|section_end|>", size), trusted=True)
    assert calls == [("now", '{"days": 0}'), ("get_w", '{"days": 1}')]


@pytest.mark.parametrize(
    "text",
    [
        "1 < 2 and <tool",
        "a <tool_call>not json</tool_call> b",
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "now", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "now"}</tool_call>',
        '<tool_call>{"name": "now", "arguments": {"a": tru}}</tool_call>',
        '<tool_call>{"name": "now", "argum',
    ],
)
@pytest.mark.parametrize("size", [1, 4, 999])
def test_what_is_no_call_comes_back_whole_and_once(text: str, size: int) -> None:
    assert read(HERMES, pieces(text, size)) == (text, "", [], FinishReason.STOP)


@pytest.mark.parametrize("size", [1, 999])
def test_json_that_is_no_call_stays_text_for_a_model_without_marks(size: int) -> None:
    assert read(BARE, pieces('{"answer": 4}', size))[0] == '{"answer": 4}'


def test_whole_calls_before_a_broken_one_are_kept() -> None:
    text = '<tool_call>{"name": "now", "arguments": {}}</tool_call><tool_call>oops'
    content, _, calls, reason = read(HERMES, [text])
    assert (content, calls, reason) == ("<tool_call>oops", [("now", "{}")], FinishReason.TOOL_CALLS)


def test_a_call_that_is_cut_off_ends_as_length_with_the_fragment_sent() -> None:
    text = '<tool_call>\n{"name": "get_w", "arguments": {"city": "Os'
    content, _, calls, reason = read(HERMES, pieces(text, 3), trusted=True, reason=FinishReason.LENGTH)
    assert (content, calls, reason) == ("", [("get_w", '{"city": "Os')], FinishReason.LENGTH)


def test_arguments_stream_as_they_are_written() -> None:
    reader = ReplyReader(ReplyFormat(syntax=HERMES), tools=TOOLS, trusted=True)
    assert reader.feed(None, '<tool_call>\n{"name": "get_w"') == []
    started, first = reader.feed(None, ', "arguments": {"ci')
    assert isinstance(started, ToolCallStarted)
    (second,) = reader.feed(None, 'ty": "Os')
    assert [event.arguments for event in (first, second) if isinstance(event, ToolCallDelta)] == ['{"ci', 'ty": "Os']


def test_a_tagged_string_streams_escaped_and_keeps_its_type() -> None:
    text = '<tool_call>\n<function=get_w>\n<parameter=city>\n42 "x"\\\n<b>\n</parameter>\n<parameter=days>\n3\n</parameter>\n'
    _, _, calls, _ = read(TAGGED, pieces(text + "</function>\n</tool_call>", 2), trusted=True)
    assert [json.loads(arguments) for _, arguments in calls] == [{"city": '42 "x"\\\n<b>', "days": 3}]


@pytest.mark.parametrize(
    ("text", "opened", "expected"),
    [
        ("plan it</think>four", True, ("four", "plan it")),
        ("<think>a</think>b", False, ("b", "a")),
        ("<think>\na\n</think>\n\nb", False, ("b", "a")),
        ("<think>\n\n</think>\n\nb", False, ("b", "")),
        ("write <thin", False, ("write <thin", "")),
        ("plan", True, ("", "plan")),
        ("<think>x</think>b", True, ("b", "x")),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 999])
def test_thinking_never_reaches_the_content(text: str, opened: bool, expected: tuple[str, str], size: int) -> None:
    assert read(None, pieces(text, size), opened=opened)[:2] == expected


def test_a_call_inside_thinking_is_text() -> None:
    text = '<think><tool_call>{"name": "now", "arguments": {}}</tool_call></think>done'
    content, reasoning, calls, _ = read(HERMES, pieces(text, 4))
    assert (content, calls) == ("done", [])
    assert reasoning.startswith("<tool_call>")


def test_tokens_of_thinking_are_counted_until_it_closes() -> None:
    reader = ReplyReader(ReplyFormat(), opened=True)
    for piece in ("plan", " it", "</think>", "four"):
        reader.feed(None, piece)
    assert reader.reasoning_tokens == 3


@pytest.mark.parametrize("size", [1, 2, 999])
def test_a_stop_string_ends_the_answer_and_is_not_part_of_it(size: int) -> None:
    reader = ReplyReader(ReplyFormat(), stops=("END", "\n\n"))
    events: list[Event] = []
    for piece in pieces("one EN two END three", size):
        events += reader.feed(None, piece)
    rest, reason = reader.finish(FinishReason.STOP)
    assert collect(events + rest, reason)[0] == "one EN two "
    assert reader.stop_sequence == "END"


def test_a_marker_that_is_a_token_is_not_recognised_by_its_text() -> None:
    reader = ReplyReader(
        ReplyFormat(syntax=HERMES), tools=TOOLS, special_tokens={"<tool_call>": 7, "</tool_call>": 8, "<other>": 9}
    )
    written = '{"name": "now", "arguments": {}}'
    events = [*reader.feed(None, "<tool_call>" + written), *reader.feed(7, ""), *reader.feed(None, written)]
    events += reader.feed(8, "")
    rest, reason = reader.finish(FinishReason.STOP)
    content, _, calls, _ = collect(events + rest, reason)
    assert (content, calls) == ("<tool_call>" + written, [("now", "{}")])


def test_marks_around_the_answer_are_not_shown() -> None:
    described = ReplyFormat(wrappers=("<|START|>", "<|END|>"))
    reader = ReplyReader(described)
    events = reader.feed(None, "<|START|>hello<|E") + reader.feed(None, "ND|>")
    assert collect(events + reader.finish(FinishReason.STOP)[0], FinishReason.STOP)[0] == "hello"


def test_every_token_is_counted_in_exactly_one_event() -> None:
    reader = ReplyReader(ReplyFormat())
    events = [event for piece in ("a", "", "b") for event in reader.feed(None, piece)]
    assert sum(event.tokens for event in events if isinstance(event, TextDelta)) == 3


def test_call_ids_are_new_and_of_the_expected_shape() -> None:
    first, second = new_call_id(), new_call_id()
    assert first != second
    assert (first[:5], len(first)) == ("call_", 29)


FRAGMENTS = st.lists(
    st.sampled_from(
        [
            *("<tool_call>", "</tool_call>", '{"name": "now", "arguments": {}}', "<think>", "</think>", "\n", " ", "a"),
            *("<", "{", "}", '"', "\\", "<tool", '{"name": "get_w", "arguments": {"city": "<b>"}}', "é", "END", "EN"),
            *("<function=get_w>", "<parameter=city>", "</parameter>", "</function>", "[TOOL_CALLS]", "[", "]", ", "),
            *("<|section|>", "<|begin|>functions.now:0<|arg|>", "<|end|>", "<|section_end|>", "<|calls|>[now(", ")"),
        ]
    ),
    max_size=12,
)


@given(
    fragments=FRAGMENTS,
    cuts=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    syntax=st.sampled_from([HERMES, LIST, BARE, SECTION, TAGGED, PYTHON]),
    opened=st.booleans(),
    trusted=st.booleans(),
)
def test_any_way_of_cutting_a_reply_gives_the_same_answer(
    fragments: list[str], cuts: list[int], syntax: ToolSyntax, opened: bool, trusted: bool
) -> None:
    text = "".join(fragments)
    parts, at, turn = [], 0, 0
    while at < len(text):
        parts.append(text[at : at + cuts[turn % len(cuts)]])
        at += cuts[turn % len(cuts)]
        turn += 1
    marks = ReasoningMarks(open="<think>", close="</think>")
    whole = read(syntax, [text], marks=marks, opened=opened, trusted=trusted, stops=("END",))
    assert read(syntax, parts, marks=marks, opened=opened, trusted=trusted, stops=("END",)) == whole
