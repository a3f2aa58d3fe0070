"""Walks over chat templates of real models, where a folder of them lies beside the project.

Without the models' vocabularies, special tokens are guessed from a template's own text (`<|…|>`, `<…|>`, `[WORD]`, known
tags), and the tokens that end a generation are those that the vocabularies of these models are known to mark so.
"""

import codecs
import json
import os
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from pocketserver.chat import (
    Event,
    FinishReason,
    Message,
    Role,
    TextDelta,
    Tool,
    ToolCall,
    ToolCallDelta,
    ToolCallStarted,
    ToolChoice,
    ToolMode,
)
from pocketserver.engines.llama.atoms import Atoms
from pocketserver.engines.llama.reply import ReplyReader
from pocketserver.engines.llama.reply_format import derive_reply_format
from pocketserver.engines.llama.template import ChatTemplate
from pocketserver.engines.llama.tool_grammar import Thinking, tool_grammar
from pocketserver.engines.llama.tool_syntax import ReplyFormat
from pocketserver.engines.llama.written import Call, Writing
from pocketserver.errors import Code, Refusal
from tests.engines.llama.byte_vocabulary import END, ByteVocabulary

FOLDER = Path(__file__).parents[3].parent / "shared" / "templates"
PATHS = sorted(FOLDER.glob("*.jinja"))
WITHOUT_TOOLS = {"google-gemma-2-2b-it", "llama-cpp-rwkv-world"}
SPECIAL = re.compile(
    r"<\|[^<>|\s]+\|>|<｜[^<>\s]+?｜>|<[A-Z_0-9]+>|\[/?[A-Z_]+\]|</?(?:tool_call|think|arg_key|arg_value)>|<\|\w+>|<\w+\|>"
    r'|<\|"\|>'
)
ENDS = (
    *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|call|>", "<|calls|>", "<|return|>", "</s>", "<eos>"),
    *("<|endoftext|>", "<|user|>", "<|observation|>", "<|END_OF_TURN_TOKEN|>", "<end_of_turn>", "<turn|>", "<sep>"),
    *("<|tool_response>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "[e~[", "<|message_sep|>", "<|role_end|>"),
    *("<SPECIAL_12>", "</assistant>", "<|assistant_end|>", "<|end_of_msg|>"),
)
TEXT = {"type": "string"}
TOOLS = tuple(
    Tool(
        name=name,
        description="about it",
        parameters={
            "type": "object",
            "properties": {"city": TEXT, "days": {"type": "integer"}, "wide": {"type": "boolean"}},
            "required": ["city"],
        },
    )
    for name in ("get_weather", "get_news")
)
CALLS = (
    [Call("get_weather", {"city": "Oslo"})],
    [Call("get_weather", {"city": 'a "b" <c> {d}', "days": 3})],
    [Call("get_weather", {"city": "Oslo"}), Call("get_news", {"city": "Rome", "days": 2})],
)

pytestmark = pytest.mark.skipif(
    not PATHS and "CI" not in os.environ, reason="the folder of real templates is not there (../shared/templates)"
)


def test_the_folder_of_templates_is_there() -> None:
    assert len(PATHS) == 39


@cache
def template_at(path: Path) -> ChatTemplate:
    return ChatTemplate(path.read_text(), bos_token="<s>", eos_token="</s>")


@cache
def special_tokens(path: Path) -> frozenset[str]:
    return frozenset(SPECIAL.findall(path.read_text())) | frozenset(ENDS)


@cache
def format_at(path: Path) -> ReplyFormat:
    return derive_reply_format(template_at(path), special_tokens=special_tokens(path), end_tokens=ENDS)


def named(paths: Sequence[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", paths, ids=lambda path: path.stem)


WITH_TOOLS = [path for path in PATHS if path.stem not in WITHOUT_TOOLS]


def test_37_of_39_have_tools() -> None:
    assert sum(format_at(path).syntax is not None for path in PATHS) == 37
    assert {path.stem for path in PATHS if not template_at(path).supports_tools} == WITHOUT_TOOLS


@named([path for path in PATHS if path.stem in WITHOUT_TOOLS])
def test_tools_are_refused_where_the_template_has_none(path: Path) -> None:
    with pytest.raises(Refusal) as caught:
        template_at(path).render([Message(role=Role.USER, content="hi")], tools=TOOLS)
    assert caught.value.code is Code.TOOLS_UNSUPPORTED


def written(path: Path, calls: Sequence[Call]) -> str:
    """The calls as this model writes them, without the end of the turn."""
    template = template_at(path)
    writing = Writing(template.render_probe, template.traits, Atoms(special_tokens(path)), ENDS)
    text = writing.calls(calls, raw_ids=True)
    if "to=functions." in text:  # the one family whose models write otherwise than the template
        name = calls[0].name
        text = text.replace(f" to=functions.{name}<|channel|>commentary json", "")
        return f"<|channel|>commentary to=functions.{name} <|constrain|>json{text}"
    return text.strip()


def possible_calls(path: Path) -> list[list[Call]]:
    return [calls for calls in CALLS if len(calls) == 1 or template_at(path).traits.parallel_calls]


def heard(events: Sequence[Event]) -> tuple[str, list[Call]]:
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    names = [event.name for event in events if isinstance(event, ToolCallStarted)]
    arguments = ["" for _ in names]
    for event in events:
        if isinstance(event, ToolCallDelta):
            arguments[event.index] += event.arguments
    return text, [Call(name, json.loads(value)) for name, value in zip(names, arguments, strict=True)]


@named(WITH_TOOLS)
def test_a_call_goes_from_the_prompt_to_the_model_and_back(path: Path) -> None:
    for calls in possible_calls(path):
        text = written(path, calls)
        for size in (1, 7, 999):
            for trusted in (False, True):
                reader = ReplyReader(format_at(path), tools=TOOLS, trusted=trusted)
                pieces = [text[at : at + size] for at in range(0, len(text), size)]
                events = [event for piece in pieces for event in reader.feed(None, piece)]
                rest, reason = reader.finish(FinishReason.STOP)
                assert (heard([*events, *rest]), reason) == (("", calls), FinishReason.TOOL_CALLS)


@named(WITH_TOOLS)
def test_a_call_written_in_special_tokens_is_read_by_them(path: Path) -> None:
    vocabulary = ByteVocabulary(special_tokens(path))
    reader = ReplyReader(format_at(path), tools=TOOLS, special_tokens=vocabulary.special)
    calls = possible_calls(path)[-1]
    events: list[Event] = []
    characters = codecs.getincrementaldecoder("utf-8")()
    for token in vocabulary.encode(written(path, calls)):
        events += reader.feed(token, characters.decode(bytes([token])) if token < 256 else "")
    rest, _ = reader.finish(FinishReason.STOP)
    assert heard([*events, *rest]) == ("", calls)


@named(WITH_TOOLS)
@pytest.mark.parametrize("marks", ["tokens", "text"])
def test_the_grammar_takes_the_models_own_calls_and_no_others(path: Path, marks: str) -> None:
    vocabulary = ByteVocabulary(special_tokens(path) if marks == "tokens" else ())
    right = written(path, CALLS[0])
    for mode in (ToolMode.AUTO, ToolMode.REQUIRED):
        grammar = tool_grammar(
            format_at(path), TOOLS, ToolChoice(mode=mode), vocabulary.special.get, thinking=Thinking.POSSIBLE
        )
        assert vocabulary.problem(grammar, right) is None
        assert vocabulary.problem(grammar, right.replace("get_weather", "get_lost")) is not None
        assert vocabulary.problem(grammar, right.replace("city", "town")) is not None
        assert (vocabulary.problem(grammar, "Just text.") is None) is (mode is ToolMode.AUTO)
        assert END in vocabulary.special


def said(role: Role, text: str = "", **fields: object) -> Message:
    return Message(role=role, content=text, **fields)  # type: ignore[arg-type]


S, U, A, T = Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.TOOL


def calling(*names: str, text: str = "") -> Message:
    calls = tuple(ToolCall(id=f"call_{name}", name=name, arguments='{"city": "zqplace"}') for name in names)
    return Message(role=A, content=text, tool_calls=calls)


def answer(name: str, text: str = "zqresult") -> Message:
    return Message(role=T, content=text, tool_call_id=f"call_{name}")


SHAPES: dict[str, tuple[Message, ...]] = {
    "one question": (said(U, "zqa"),),
    "system first": (said(S, "zqa"), said(U, "zqb")),
    "two systems": (said(S, "zqa"), said(S, "zqb"), said(U, "zqc")),
    "later system": (said(U, "zqa"), said(A, "zqb"), said(S, "zqc"), said(U, "zqd")),
    "system last": (said(U, "zqa"), said(S, "zqb")),
    "only system": (said(S, "zqa"),),
    "assistant first": (said(A, "zqa"), said(U, "zqb")),
    "two users": (said(U, "zqa"), said(U, "zqb")),
    "two assistants": (said(U, "zqa"), said(A, "zqb"), said(A, "zqc"), said(U, "zqd")),
    "empty answer": (said(U, "zqa"), said(A), said(U, "zqb")),
    "begun answer": (said(U, "zqa"), said(A, "zqb")),
    "call and result": (said(U, "zqa"), calling("get_weather"), answer("get_weather")),
    "call, result, question": (said(U, "zqa"), calling("get_weather"), answer("get_weather"), said(U, "zqb")),
    "call, result, answer, question": (
        *(
            said(S, "zqs"),
            said(U, "zqa"),
            calling("get_weather"),
            answer("get_weather"),
            said(A, "zqb"),
            said(U, "zqc"),
        ),
    ),
    "parallel calls": (
        *(said(U, "zqa"), calling("get_weather", "get_news"), answer("get_weather"), answer("get_news", "zqtwo")),
    ),
    "results in another order": (
        *(said(U, "zqa"), calling("get_weather", "get_news"), answer("get_news", "zqtwo"), answer("get_weather")),
    ),
    "two rounds of calls": (
        *(said(U, "zqa"), calling("get_weather"), answer("get_weather"), calling("get_news")),
        *(answer("get_news", "zqtwo"), said(A, "zqb"), said(U, "zqc")),
    ),
    "thoughts": (said(U, "zqa"), said(A, "zqb", reasoning="thought"), said(U, "zqc")),
    "no ids": (
        *(said(U, "zqa"), Message(role=A, tool_calls=(ToolCall(id="", name="get_weather", arguments=""),))),
        *(said(T, "zqresult"), said(A, "zqb"), said(U, "zqc")),
    ),
    "an unanswered call": (said(U, "zqa"), calling("get_weather"), said(U, "zqb")),
}
"""Conversations as clients send them; every word that begins with zq has to reach the prompt."""

TEXT_BESIDE_CALLS = (said(U, "zqa"), calling("get_weather", text="zqtext"), answer("get_weather"))


def words_of(messages: Sequence[Message]) -> set[str]:
    found = {message.content for message in messages if message.content.startswith("zq")}
    for message in messages:
        for call in message.tool_calls:
            found |= {call.name, "zqplace"} if call.arguments else {call.name}
    return found


@named(PATHS)
def test_no_shape_of_a_conversation_loses_a_word(path: Path) -> None:
    lost: dict[str, set[str]] = {}
    for name, messages in SHAPES.items():
        tools = TOOLS if path.stem not in WITHOUT_TOOLS and "call" in name else ()
        try:
            prompt = template_at(path).render(messages, tools=tools)
        except Refusal as refusal:
            lost[name] = {refusal.message}
            continue
        missing = {word for word in words_of(messages) if word not in prompt}
        if missing or "None" in prompt:
            lost[name] = missing
    assert lost == {}


def test_text_beside_a_call_is_lost_by_two_templates_at_most() -> None:
    losing = [path for path in PATHS if "zqtext" not in template_at(path).render(TEXT_BESIDE_CALLS)]
    assert len(losing) <= 2
