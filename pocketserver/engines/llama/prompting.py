"""From a request to the tokens of its prompt, and what the prompt says about the reply's beginning."""

from collections.abc import Sequence
from dataclasses import dataclass

from pocketserver.chat import GenerationRequest, Message, Role
from pocketserver.engines.llama.model import Vocabulary
from pocketserver.engines.llama.raw_prompt import raw_tokens, some_tokens
from pocketserver.engines.llama.reasoning import is_opened, thinking_arguments
from pocketserver.engines.llama.reply_constraint import may_call
from pocketserver.engines.llama.template import ChatTemplate
from pocketserver.engines.llama.tool_grammar import Thinking
from pocketserver.engines.llama.tool_syntax import ReplyFormat
from pocketserver.engines.llama.typed_marks import Hidden, TypedMarks
from pocketserver.errors import Code, Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A rendered request. `thinking` is where the reply's thinking stands when the reply begins."""

    tokens: list[int]
    thinking: Thinking


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompter:
    """Renders and counts. One for each thread, because a template keeps its clock while it renders."""

    vocabulary: Vocabulary
    template: ChatTemplate
    reply_format: ReplyFormat
    context_size: int
    typed_marks: TypedMarks

    def prompt(self, request: GenerationRequest) -> Prompt:
        """Raises Refusal for what the template cannot express, and for an empty prompt.

        A text that no number of tokens within the context could hold is refused unread: to split megabytes of one
        letter takes llama.cpp half a minute, in which nobody can stop it.
        """
        if request.prompt is not None:
            self._check_size(request.prompt + request.suffix, prompt_field(request))
            return Prompt(tokens=raw_tokens(request, self.vocabulary), thinking=Thinking.NONE)
        text, hidden = self._rendered(request)
        self._check_size(text, prompt_field(request))
        tokens = some_tokens(self._tokens(text, hidden), self.vocabulary)
        return Prompt(tokens=tokens, thinking=self._thinking(request, text))

    def _rendered(self, request: GenerationRequest) -> tuple[str, Hidden | None]:
        """The prompt, with placeholders for what was typed and looks like control tokens."""
        messages, hidden = self.typed_marks.hide(request.messages)
        text = self._render(request, messages)
        if hidden is None or hidden.is_whole(text):
            return text, hidden
        return self._render(request, request.messages), None  # a template that changes the case of letters, say

    def _tokens(self, text: str, hidden: Hidden | None) -> list[int]:
        if hidden is None:
            return self.vocabulary.tokenize(text)
        pieces = [self.vocabulary.split(piece, special=special) for piece, special in hidden.pieces(text)]
        return self.vocabulary.begun([token for tokens in pieces for token in tokens])

    def _check_size(self, text: str, field: str) -> None:
        if len(text) <= self.context_size:
            return
        fewest = -(-len(text.encode(errors="replace")) // self.vocabulary.longest_token_bytes())
        if fewest > self.context_size:
            raise too_long(fewest, self.context_size, field, at_least=True)

    def _render(self, request: GenerationRequest, messages: Sequence[Message]) -> str:
        calls = may_call(request)
        if calls and self.reply_format.syntax is None and self.template.problem is None:
            raise Refusal(
                Code.TOOLS_UNSUPPORTED,
                "This model's chat template has no syntax for tools. Send the request without tools, choose a model"
                " that can call them, or start the server with a --chat-template that has one.",
                param="tools",
            )
        switches = thinking_arguments(self.template.source, request.reasoning_effort)
        arguments = {**switches, **request.template_arguments}
        return self.template.render(messages, tools=request.tools if calls else (), arguments=arguments)

    def _thinking(self, request: GenerationRequest, text: str) -> Thinking:
        marks, end = self.reply_format.reasoning, text.rstrip()
        if is_opened(text, marks):
            return Thinking.OPENED
        is_over = end.endswith(marks.close.rstrip()) or _continues(request) or request.reasoning_effort == "none"
        return Thinking.POSSIBLE if self.reply_format.reasoning_known and not is_over else Thinking.NONE


def prompt_field(request: GenerationRequest) -> str:
    """The field that the prompt came in."""
    return "messages" if request.prompt is None else "prompt"


def too_long(tokens: int, context_size: int, field: str = "messages", *, at_least: bool = False) -> Refusal:
    """The refusal of a prompt that leaves no room for an answer."""
    said = f"at least {tokens}" if at_least else f"{tokens}"
    return Refusal(
        Code.CONTEXT_LENGTH_EXCEEDED,
        f"This model's maximum context length is {context_size} tokens. However, your {field} resulted in {said}"
        f" tokens. Please shorten the {field} or start the server with a larger --context.",
        param=field,
        details={"prompt_tokens": tokens, "context_size": context_size},
    )


def _continues(request: GenerationRequest) -> bool:
    """Whether the answer goes on with text that the client began."""
    return request.messages[-1].role is Role.ASSISTANT and bool(request.messages[-1].content)
