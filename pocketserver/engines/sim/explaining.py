"""What a simulated device would make of a request, and everything that it would refuse of it."""

from collections.abc import Iterator

from pocketserver.chat import Explanation, GenerationRequest, Problem, ToolMode
from pocketserver.engines.sim import example
from pocketserver.engines.sim.device import SimModel
from pocketserver.engines.sim.tokens import Tokenizer
from pocketserver.errors import Code, Refusal


def explanation(request: GenerationRequest, model: SimModel, tokenizer: Tokenizer, context_size: int) -> Explanation:
    """Blocks: a hostile schema takes seconds to follow. Nothing is ever cached on a simulated device."""
    formats = [*_refused_formats(request)]
    try:
        tokens = tokenizer.read(request)
    except Refusal as refusal:
        counted = refusal.details.get("prompt_tokens", 0)
        problems = tuple(map(_problem, [refusal, *formats]))
        return Explanation(prompt_tokens=counted, context_size=context_size, problems=problems)
    refused = [*unfit(request, len(tokens), model, context_size), *formats]
    at_fault = {refusal.param for refusal in formats}
    offered = model.tools and request.tool_choice.mode is not ToolMode.NONE
    return Explanation(
        prompt="".join(token.text for token in tokens),
        tokens=tuple(tokens),
        prompt_tokens=len(tokens),
        context_size=context_size,
        usable_tools=tuple(
            tool.name for place, tool in enumerate(request.tools) if offered and _place(place) not in at_fault
        ),
        problems=tuple(map(_problem, refused)),
    )


def unfit(request: GenerationRequest, prompt_tokens: int, model: SimModel, context_size: int) -> Iterator[Refusal]:
    """Why this model cannot answer a request of so many tokens."""
    if request.tools and not model.tools:
        yield Refusal(
            Code.TOOLS_UNSUPPORTED,
            "The loaded model's chat template cannot express tool calls. Leave `tools` out, or load a model that can.",
            param="tools",
        )
    if request.suffix and not model.insert:
        yield Refusal(
            Code.INVALID_PARAMETER,
            f"{model.id} does not support insert. Leave `suffix` out, or load a model that can fill in a middle.",
            param="suffix",
        )
    if prompt_tokens >= context_size:
        field = "messages" if request.prompt is None else "prompt"
        yield Refusal(
            Code.CONTEXT_LENGTH_EXCEEDED,
            f"This model's maximum context length is {context_size} tokens. However, your {field} "
            f"resulted in {prompt_tokens} tokens. Please reduce the length of the {field}.",
            param=field,
            details={"prompt_tokens": prompt_tokens, "context_size": context_size},
        )


def _refused_formats(request: GenerationRequest) -> Iterator[Refusal]:
    for place, tool in enumerate(request.tools):
        try:
            example.tool_arguments(tool.parameters, param=_place(place))
        except Refusal as refusal:
            yield refusal
    try:
        example.reply_to(request)
    except Refusal as refusal:
        yield refusal


def _place(number: int) -> str:
    return f"tools[{number}].function.parameters"


def _problem(refusal: Refusal) -> Problem:
    return Problem(code=refusal.code.value, message=refusal.message, param=refusal.param)
