"""From a request to the tokens of its prompt, and what the prompt says about the reply's beginning."""

from dataclasses import dataclass

from pocketserver.chat import GenerationRequest, Role
from pocketserver.engines.llama.model import Vocabulary
from pocketserver.engines.llama.raw_prompt import raw_tokens, some_tokens
from pocketserver.engines.llama.reasoning import is_opened, thinking_arguments
from pocketserver.engines.llama.reply_constraint import may_call
from pocketserver.engines.llama.template import ChatTemplate
from pocketserver.engines.llama.tool_grammar import Thinking
from pocketserver.engines.llama.tool_syntax import ReplyFormat
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

    def prompt(self, request: GenerationRequest) -> Prompt:
        """Raises Refusal for what the template cannot express, and for an empty prompt.

        A text that no number of tokens within the context could hold is refused unread: to split megabytes of one
        letter takes llama.cpp half a minute, in which nobody can stop it.
        """
        text = self._render(request) if request.prompt is None else request.prompt + request.suffix
        self._check_size(text, prompt_field(request))
        if request.prompt is not None:
            return Prompt(tokens=raw_tokens(request, self.vocabulary), thinking=Thinking.NONE)
        tokens = some_tokens(self.vocabulary.tokenize(text), self.vocabulary)
        return Prompt(tokens=tokens, thinking=self._thinking(request, text))

    def _check_size(self, text: str, field: str) -> None:
        if len(text) <= self.context_size:
            return
        fewest = -(-len(text.encode(errors="replace")) // self.vocabulary.longest_token_bytes())
        if fewest > self.context_size:
            raise too_long(fewest, self.context_size, field, at_least=True)

    def _render(self, request: GenerationRequest) -> str:
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
        return self.template.render(request.messages, tools=request.tools if calls else (), arguments=arguments)

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
