"""A generation request as the body of OpenAI's chat or completions API.

Source: the OpenAI API reference, "Create chat completion" and "Create completion". Fields that only local engines know
(`top_k`, `min_p`, …) are sent when they were asked for, and left out otherwise.
"""

from typing import Any, assert_never

from pocketserver.chat import (
    AnyJsonObject,
    Constraint,
    GenerationRequest,
    Grammar,
    JsonSchema,
    Message,
    Role,
    Sampling,
    Tool,
    ToolChoice,
    ToolMode,
)
from pocketserver.errors import Code, Refusal

_USUAL = Sampling()
_EXTENSIONS = (
    "top_k", "min_p", "typical_p", "repeat_penalty", "frequency_penalty", "presence_penalty", "dry_multiplier",
)  # fmt: skip


def path_and_body(request: GenerationRequest) -> tuple[str, dict[str, Any]]:
    """Where a request goes and what it says. Raises INVALID_PARAMETER for what an upstream cannot be asked for."""
    shared = {
        "model": request.model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": request.max_tokens,
        **_sampling(request.sampling),
    }
    if request.stop:
        shared["stop"] = list(request.stop)
    if request.messages:
        return "/chat/completions", {**shared, **_chat(request)}
    return "/completions", {**shared, **_completion(request)}


def _chat(request: GenerationRequest) -> dict[str, Any]:
    body: dict[str, Any] = {"messages": [_message(message) for message in request.messages]}
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
        body["tool_choice"] = _tool_choice(request.tool_choice)
        body["parallel_tool_calls"] = request.tool_choice.parallel
    if request.constraint is not None:
        body["response_format"] = _response_format(request.constraint)
    if request.top_logprobs is not None:
        body |= {"logprobs": True, "top_logprobs": request.top_logprobs}
    if request.reasoning_effort is not None:
        body["reasoning_effort"] = request.reasoning_effort
    if request.template_arguments:
        body["chat_template_kwargs"] = dict(request.template_arguments)
    return body


def _completion(request: GenerationRequest) -> dict[str, Any]:
    if request.top_logprobs is not None or request.echo:
        raise cannot("logprobs" if request.top_logprobs is not None else "echo", "scores or echoes of raw prompts")
    body: dict[str, Any] = {"prompt": list(request.prompt_tokens) if request.prompt is None else request.prompt}
    if request.suffix:
        body["suffix"] = request.suffix
    return body


def _sampling(sampling: Sampling) -> dict[str, Any]:
    fields: dict[str, Any] = {"temperature": sampling.temperature, "top_p": sampling.top_p}
    for name in _EXTENSIONS:
        if getattr(sampling, name) != getattr(_USUAL, name):
            fields[name] = getattr(sampling, name)
    if sampling.logit_bias:
        fields["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias}
    if sampling.seed is not None:
        fields["seed"] = sampling.seed
    return fields


def _message(message: Message) -> dict[str, Any]:
    fields: dict[str, Any] = {"role": message.role.value, "content": message.content}
    if message.name is not None:
        fields["name"] = message.name
    if message.role is Role.TOOL:
        fields["tool_call_id"] = message.tool_call_id or ""
    if message.reasoning:
        fields["reasoning_content"] = message.reasoning
    if message.tool_calls:
        fields["content"] = message.content or None
        fields["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    return fields


def _tool(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "parameters": dict(tool.parameters) or {"type": "object"}}
    if tool.description:
        function["description"] = tool.description
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _tool_choice(choice: ToolChoice) -> Any:
    if choice.name is not None:
        return {"type": "function", "function": {"name": choice.name}}
    match choice.mode:
        case ToolMode.NONE | ToolMode.AUTO | ToolMode.REQUIRED:
            return choice.mode.value
        case _:
            assert_never(choice.mode)


def _response_format(constraint: Constraint) -> dict[str, Any]:
    match constraint:
        case AnyJsonObject():
            return {"type": "json_object"}
        case JsonSchema(schema=schema, strict=strict):
            return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": strict}}
        case Grammar():
            raise cannot("grammar", "grammars")
        case _:
            assert_never(constraint)


def cannot(param: str, what: str) -> Refusal:
    """The refusal of what this engine has no way to ask for."""
    return Refusal(
        Code.INVALID_PARAMETER, f"The upstream engine behind this server offers no {what}. Leave it out.", param=param
    )
