"""Constraints are compiled once for the same tools and schemas, and each answer has one of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pocketserver.chat import GenerationRequest, JsonSchema, Tool, ToolChoice, ToolMode
from pocketserver.engines.llama.constraint import Compiler, TokenConstraint
from pocketserver.engines.llama.model import Vocabulary, VocabularyAlone
from pocketserver.engines.llama.reply_constraint import ReplyConstraints
from pocketserver.engines.llama.tool_grammar import Thinking
from pocketserver.engines.llama.tool_syntax import JsonForm, ReplyFormat, ToolSyntax
from pocketserver.errors import Refusal
from tests.engines.llama.asking import asking

pytestmark = [
    pytest.mark.real_model,
    pytest.mark.filterwarnings("ignore:llama_token_get_attr is deprecated"),  # llguidance calls it
]

HERMES = ToolSyntax(form=JsonForm(name_key="name"), call_open=("<tool_call>\n",), call_close=("\n</tool_call>",))
REQUIRED = ToolChoice(mode=ToolMode.REQUIRED)


class CountingCompiler(Compiler):
    """A compiler that tells how often it was needed."""

    compiled = 0

    def compile_grammar(self, lark: str, answer: str | None = None) -> TokenConstraint:
        self.compiled += 1
        return super().compile_grammar(lark, answer)

    def compile(self, *arguments: object, **named: object) -> TokenConstraint:
        self.compiled += 1
        return super().compile(*arguments, **named)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def vocabulary(default_model_path: Path) -> Iterator[Vocabulary]:
    alone = VocabularyAlone(str(default_model_path))
    yield alone.vocabulary
    alone.close()


@pytest.fixture
def compiler(vocabulary: Vocabulary) -> CountingCompiler:
    return CountingCompiler(vocabulary)


@pytest.fixture
def constraints(compiler: CountingCompiler) -> ReplyConstraints:
    return ReplyConstraints(compiler, ReplyFormat(syntax=HERMES), lambda _: None)


def calling(name: str, **fields: object) -> GenerationRequest:
    return asking("Go.", tools=(Tool(name=name),), tool_choice=REQUIRED, **fields)


def forced(constraints: ReplyConstraints, request: GenerationRequest) -> list[int]:
    """What must come first: nearly the whole call, for a tool without parameters."""
    constraint = constraints.compile(request, Thinking.NONE)
    assert constraint is not None
    return constraint.forced()


def test_the_next_turn_with_the_same_tools_compiles_nothing(
    constraints: ReplyConstraints, compiler: CountingCompiler
) -> None:
    first = forced(constraints, calling("now"))
    assert len(first) > 5
    again = forced(constraints, calling("now", max_tokens=99))
    assert again == first  # the first answer's steps left no trace
    assert compiler.compiled == 1


def test_whatever_changes_the_grammar_is_compiled_anew(
    constraints: ReplyConstraints, compiler: CountingCompiler
) -> None:
    requests = [
        calling("now"),
        calling("then"),
        asking("Go.", tools=(Tool(name="now"),)),
        asking("Go.", constraint=JsonSchema(schema={"const": 1})),
        asking("Go.", constraint=JsonSchema(schema={"const": True})),
    ]
    for request in (*requests, *requests):
        assert constraints.compile(request, Thinking.NONE) is not None
    assert compiler.compiled == len(requests)


def test_only_the_last_ones_are_kept(constraints: ReplyConstraints, compiler: CountingCompiler) -> None:
    for number in range(40):
        forced(constraints, calling(f"tool_{number}"))
    assert compiler.compiled == 40
    forced(constraints, calling("tool_39"))
    assert compiler.compiled == 40
    forced(constraints, calling("tool_0"))
    assert compiler.compiled == 41


def test_a_schema_that_is_refused_is_refused_again(constraints: ReplyConstraints) -> None:
    request = asking("Go.", constraint=JsonSchema(schema={"not": {}}))
    for _ in range(2):
        with pytest.raises(Refusal, match="not"):
            constraints.compile(request, Thinking.NONE)


def test_a_free_answer_has_no_constraint(constraints: ReplyConstraints) -> None:
    assert constraints.compile(asking("Hello."), Thinking.NONE) is None
