"""What would become of a request: its prompt token by token, and everything that would be refused."""

from collections.abc import Callable, Sequence

import msgspec

from pocketserver.chat import Explanation, GenerationRequest, Problem, PromptToken, ToolChoice, ToolMode
from pocketserver.engines.llama.model import Vocabulary
from pocketserver.engines.llama.prompting import Prompt, Prompter, prompt_field, too_long
from pocketserver.engines.llama.reply_constraint import ReplyConstraints, may_call
from pocketserver.engines.llama.tool_grammar import Thinking
from pocketserver.errors import Refusal


class Explainer:
    """Belongs to one thread, with a prompter and constraints of its own.

    `cached` tells how many tokens of a prompt would need no decoding at this moment.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        prompter: Prompter,
        constraints: ReplyConstraints,
        cached: Callable[[GenerationRequest, Sequence[int]], int] = lambda _request, _prompt: 0,
    ) -> None:
        self._vocabulary = vocabulary
        self._prompter = prompter
        self._constraints = constraints
        self._cached = cached

    def explain(self, request: GenerationRequest) -> Explanation:
        """Never refuses: what `generate` would refuse is told."""
        size = self._prompter.context_size
        try:
            prompt = self._prompter.prompt(request)
        except Refusal as refusal:
            problems = [refusal, *self._refused_formats(self._without_unsupported(request), Thinking.NONE)]
            counted = refusal.details.get("prompt_tokens", 0)
            return Explanation(prompt_tokens=counted, context_size=size, problems=tuple(map(_problem, problems)))
        refused = [*self._refused_lengths(request, prompt), *self._refused_formats(request, prompt.thinking)]
        return Explanation(
            prompt=b"".join(self._vocabulary.spelt(token) for token in prompt.tokens).decode(errors="replace"),
            tokens=tuple(PromptToken(id=token, text=self._vocabulary.text(token)) for token in prompt.tokens),
            prompt_tokens=len(prompt.tokens),
            cached_tokens=self._cached(request, prompt.tokens),
            context_size=size,
            usable_tools=self._usable_tools(request, prompt.thinking),
            problems=tuple(map(_problem, refused)),
        )

    def _without_unsupported(self, request: GenerationRequest) -> GenerationRequest:
        """A template without a syntax for calls has no form that a tool's schema could be held to."""
        if self._prompter.reply_format.syntax is not None:
            return request
        return msgspec.structs.replace(request, tools=(), tool_choice=ToolChoice())

    def _refused_lengths(self, request: GenerationRequest, prompt: Prompt) -> list[Refusal]:
        count, size = len(prompt.tokens), self._prompter.context_size
        return [too_long(count, size, prompt_field(request))] if count >= size else []

    def _refused_formats(self, request: GenerationRequest, thinking: Thinking) -> list[Refusal]:
        """Each tool and the answer's own format by themselves, so that every one that is at fault is named."""
        parts = [*_one_tool_each(request), msgspec.structs.replace(request, tools=(), tool_choice=ToolChoice())]
        found = [
            _moved(refusal, place, len(parts) - 1)
            for place, part in enumerate(parts)
            if (refusal := self._refused(part, thinking)) is not None
        ]
        whole = None if found else self._refused(request, thinking)
        return found if whole is None else [whole]

    def _usable_tools(self, request: GenerationRequest, thinking: Thinking) -> tuple[str, ...]:
        parts = _one_tool_each(request)
        return tuple(part.tools[0].name for part in parts if self._refused(part, thinking) is None)

    def _refused(self, request: GenerationRequest, thinking: Thinking) -> Refusal | None:
        try:
            self._constraints.compile(request, thinking)
        except Refusal as refusal:
            return refusal
        return None


def _one_tool_each(request: GenerationRequest) -> list[GenerationRequest]:
    if not may_call(request):
        return []
    choice = ToolChoice(mode=ToolMode.AUTO)
    return [
        msgspec.structs.replace(request, tools=(tool,), tool_choice=choice, constraint=None) for tool in request.tools
    ]


def _moved(refusal: Refusal, place: int, tools: int) -> Refusal:
    """A refusal of the only tool, with the place that the tool has among all."""
    param = refusal.param
    if param is None or place >= tools or not param.startswith("tools[0]"):
        return refusal
    return Refusal(refusal.code, refusal.message, param=param.replace("tools[0]", f"tools[{place}]", 1))


def _problem(refusal: Refusal) -> Problem:
    return Problem(code=refusal.code.value, message=refusal.message, param=refusal.param)
