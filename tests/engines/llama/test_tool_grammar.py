"""Grammars of calls, tried with llguidance on a vocabulary of bytes and special tokens."""

from collections.abc import Mapping

import pytest

from pocketserver.chat import JsonValue, Tool, ToolChoice, ToolMode
from pocketserver.engines.llama.reply_format import derive_reply_format
from pocketserver.engines.llama.template import ChatTemplate
from pocketserver.engines.llama.tool_grammar import Thinking, tool_grammar
from pocketserver.engines.llama.tool_syntax import JsonForm, ReasoningMarks, ReplyFormat, ToolSyntax
from tests.engines.llama.byte_vocabulary import ByteVocabulary
from tests.engines.llama.family_templates import END_TOKENS, FAMILIES, SPECIAL_TOKENS

TOKENS = ByteVocabulary([*SPECIAL_TOKENS, "<think>", "</think>", "<|START|>"])
TEXT = ByteVocabulary([])
PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
TOOLS = (Tool(name="get_weather", parameters=PLACE), Tool(name="now"))
AUTO, REQUIRED = ToolChoice(), ToolChoice(mode=ToolMode.REQUIRED)
HERMES = ReplyFormat(
    syntax=ToolSyntax(
        form=JsonForm(name_key="name", arguments_key="arguments"),
        call_open=("<tool_call>\n",),
        call_close=("\n</tool_call>",),
        separator="\n",
    ),
    reasoning=ReasoningMarks(open="<think>", close="</think>"),
    reasoning_known=True,
)


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


NOW, OSLO = call("now", "{}"), call("get_weather", '{"city": "Oslo", "days": 3}')


def takes(
    vocabulary: ByteVocabulary,
    text: str,
    choice: ToolChoice = AUTO,
    *,
    tools: tuple[Tool, ...] = TOOLS,
    thinking: Thinking = Thinking.NONE,
    described: ReplyFormat = HERMES,
) -> bool:
    grammar = tool_grammar(described, tools, choice, vocabulary.special.get, thinking=thinking)
    problem = vocabulary.problem(grammar, text)
    assert problem is None or "compile" not in problem, problem
    return problem is None


@pytest.mark.parametrize("vocabulary", [TOKENS, TEXT], ids=["tokens", "text"])
@pytest.mark.parametrize(
    ("text", "choice", "taken"),
    [
        (OSLO, AUTO, True),
        ("Let me see. " + OSLO, AUTO, True),
        (OSLO + "\n" + NOW, AUTO, True),
        ("Hello < world", AUTO, True),
        (call("get_lost", "{}"), AUTO, False),
        (call("get_weather", '{"city": 4}'), AUTO, False),
        (call("get_weather", '{"city": "Oslo", "invented": 1}'), AUTO, False),
        (call("get_weather", "{}"), AUTO, False),
        (call("now", '{"a": 1}'), AUTO, False),
        (OSLO, REQUIRED, True),
        ("Hello", REQUIRED, False),
        ("Hello " + OSLO, REQUIRED, False),
        (OSLO + "\n" + NOW, REQUIRED, True),
        (OSLO + "\n" + NOW, ToolChoice(mode=ToolMode.REQUIRED, parallel=False), False),
        (OSLO + "\n" + NOW, ToolChoice(parallel=False), False),
        (NOW, ToolChoice(mode=ToolMode.REQUIRED, name="now"), True),
        (OSLO, ToolChoice(mode=ToolMode.REQUIRED, name="now"), False),
        (NOW + "\n" + NOW, ToolChoice(mode=ToolMode.REQUIRED, name="now"), False),
    ],
)
def test_only_declared_calls_are_taken(vocabulary: ByteVocabulary, text: str, choice: ToolChoice, taken: bool) -> None:
    assert takes(vocabulary, text, choice) is taken


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"type": "object"},
        {"type": "object", "properties": {}},
        {"type": "object", "properties": {}, "required": None},
        {"type": "object", "properties": [], "required": []},
    ],
)
def test_a_tool_without_parameters_is_called_with_an_empty_object(parameters: Mapping[str, JsonValue]) -> None:
    tools = (Tool(name="now", parameters=parameters),)
    choice = ToolChoice(mode=ToolMode.REQUIRED, name="now")
    assert takes(TEXT, NOW, choice, tools=tools)
    assert not takes(TEXT, call("now", "null"), choice, tools=tools)
    assert not takes(TEXT, call("now", ""), choice, tools=tools)


def test_properties_beyond_the_schema_are_only_free_where_it_says_so() -> None:
    tools = (Tool(name="now", parameters={"type": "object", "properties": {}, "additionalProperties": True}),)
    assert takes(TEXT, call("now", '{"a": 1}'), tools=tools)


def test_shared_definitions_are_found_from_inside_the_call() -> None:
    city = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    parameters = {"type": "object", "properties": {"at": {"$ref": "#/$defs/city"}}, "$defs": {"city": city}}
    tools = (Tool(name="now", parameters=parameters),)
    assert takes(TEXT, call("now", '{"at": {"name": "Oslo"}}'), tools=tools)
    assert not takes(TEXT, call("now", '{"at": {"name": 4}}'), tools=tools)


@pytest.mark.parametrize("vocabulary", [TOKENS, TEXT], ids=["tokens", "text"])
@pytest.mark.parametrize(
    ("text", "thinking", "taken"),
    [
        ("plan</think>\n" + NOW, Thinking.OPENED, True),
        (NOW, Thinking.OPENED, False),
        ("<think>plan</think>" + NOW, Thinking.POSSIBLE, True),
        (NOW, Thinking.POSSIBLE, True),
        ("<think>plan</think>" + NOW, Thinking.NONE, False),
    ],
)
def test_thinking_may_come_before_a_required_call(
    vocabulary: ByteVocabulary, text: str, thinking: Thinking, taken: bool
) -> None:
    assert takes(vocabulary, text, REQUIRED, thinking=thinking) is taken


def test_marks_around_the_answer_do_not_stand_in_its_way() -> None:
    described = ReplyFormat(syntax=HERMES.syntax, wrappers=("<|START|>",))
    assert takes(TOKENS, "<|START|>Hello", described=described)


@pytest.mark.parametrize("vocabulary", [TOKENS, TEXT], ids=["tokens", "text"])
@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_takes_its_own_call_and_refuses_wrong_ones(family: str, vocabulary: ByteVocabulary) -> None:
    described = derive_reply_format(
        ChatTemplate(FAMILIES[family].source), special_tokens=SPECIAL_TOKENS, end_tokens=END_TOKENS
    )
    written = FAMILIES[family].call
    for choice in (AUTO, REQUIRED, ToolChoice(mode=ToolMode.REQUIRED, name="get_weather")):
        assert takes(vocabulary, written, choice, described=described)
        assert not takes(vocabulary, written.replace("get_weather", "get_lost"), choice, described=described)
        assert not takes(vocabulary, written.replace("3", "many"), choice, described=described)
        assert not takes(vocabulary, written.replace("days", "weeks"), choice, described=described)


ENUM = (
    Tool(
        name="get_weather",
        parameters={"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer"}}},
    ),
)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_holds_to_a_list_of_words(family: str) -> None:
    described = derive_reply_format(
        ChatTemplate(FAMILIES[family].source), special_tokens=SPECIAL_TOKENS, end_tokens=END_TOKENS
    )
    written = FAMILIES[family].call
    assert takes(TOKENS, written, REQUIRED, tools=ENUM, described=described)
    assert not takes(TOKENS, written.replace("Oslo", "Bonn"), REQUIRED, tools=ENUM, described=described)


def test_a_reply_without_calls_has_no_grammar() -> None:
    with pytest.raises(ValueError, match="needs no grammar"):
        tool_grammar(HERMES, TOOLS, ToolChoice(mode=ToolMode.NONE), TEXT.special.get)


@pytest.mark.parametrize(
    ("schema", "taken", "refused"),
    [
        ({"type": "string", "pattern": "^[A-Z]{3}$"}, ["ABC"], ["ABCD", "abc", ""]),
        ({"type": "string", "pattern": "b"}, ["b", "abc", "a/b"], ["ac", ""]),
        ({"type": "string", "pattern": "^a|b$"}, ["ax", "xb"], ["xx"]),
        ({"type": "string", "pattern": "^a/b"}, ["a/b", "a/bc"], ["xa/b"]),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "a\nc"], ["a", "abcd"]),
        ({"type": "string", "minLength": 2, "pattern": "^a+$"}, ["aa"], ["a", "ab"]),
        ({"type": "string", "format": "date"}, ["2024-12-24"], ["2024-13-24", "today"]),
        ({"type": "string", "format": "uuid"}, ["01234567-89ab-cdef-0123-456789abcdef"], ["0123"]),
        ({"type": "string", "format": "email"}, ["a.b@c.de"], ["a@b", "a b@c.de"]),
        ({"type": "string", "format": "uri"}, ["https://a.b/c?d=e"], ["a.b"]),
    ],
)
def test_text_without_quotes_is_held_to_its_schema(schema: JsonValue, taken: list[str], refused: list[str]) -> None:
    described = derive_reply_format(
        ChatTemplate(FAMILIES["tagged arguments"].source), special_tokens=(), end_tokens=END_TOKENS
    )
    parameters = {"type": "object", "properties": {"city": schema}, "required": ["city"]}
    tools = (Tool(name="get_weather", parameters=parameters),)

    def written(value: str) -> str:
        return (
            f"<tool_call>\n<function=get_weather>\n<parameter=city>\n{value}\n</parameter>\n</function>\n</tool_call>"
        )

    for value in taken:
        assert takes(TEXT, written(value), REQUIRED, tools=tools, described=described), value
    for value in refused:
        assert not takes(TEXT, written(value), REQUIRED, tools=tools, described=described), value
