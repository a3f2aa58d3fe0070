"""The bodies of `/api/chat` and `/api/generate`: from Ollama's fields to a GenerationRequest.

Source: Ollama's API documentation. Unknown fields are ignored, `null` means absent, answers stream unless told not to.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from pocketserver.chat import Constraint, GenerationRequest, Message, Role, Tool
from pocketserver.errors import Code, Refusal
from pocketserver.models.library import ModelSettings
from pocketserver.wire import json_body, ollama_context, ollama_fields, ollama_messages, ollama_options, ollama_template
from pocketserver.wire.json_body import invalid
from pocketserver.wire.ollama_options import Warn

MAX_TOP_LOGPROBS = 20
_Body = TypeVar("_Body")


class GenerationBody(msgspec.Struct, frozen=True):
    """What both routes read."""

    model: str | None = None
    stream: bool | None = None
    format: Any = None
    options: dict[str, Any] | None = None
    keep_alive: Any = None
    think: Any = None
    truncate: bool | None = None
    shift: bool | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class ChatBody(GenerationBody, frozen=True):
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None


class GenerateBody(GenerationBody, frozen=True):
    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    template: str | None = None
    context: list[Any] | None = None
    raw: bool | None = None
    images: list[Any] | None = None


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed body. `model` is the name as the client wrote it, None where it wrote none.

    `thinks` is the effort that was asked for, None when nothing was said. `messages` are the client's own; an empty
    conversation and no `prompt` only load the model. `system` replaces the model's own. `prompt` is raw text, and
    `suffix` what follows behind the answer.
    """

    model: str | None
    stream: bool
    options: dict[str, Any]
    keep_alive: float | None
    thinks: str | None
    constraint: Constraint | None
    truncate: bool
    shift: bool | None
    top_logprobs: int | None
    messages: tuple[Message, ...] = ()
    continued: bool = False
    tools: tuple[Tool, ...] = ()
    system: str | None = None
    prompt: str | None = None
    suffix: str = ""
    template: str | None = None

    @property
    def only_loads(self) -> bool:
        return not self.messages and self.prompt is None


def decode(data: bytes, kind: type[_Body]) -> _Body:
    """Any body of this family, whatever its content type says. Raises Refusal."""
    if not data.strip():
        raise Refusal(Code.MALFORMED_REQUEST, "missing request body")
    return json_body.decode(data, kind, required="model")


def parse_chat(data: bytes) -> Asked:
    """Read and check a whole body of `/api/chat`. Raises Refusal with the field at fault."""
    body = decode(data, ChatBody)
    return _asked(
        body, messages=ollama_messages.messages(body.messages or []), tools=ollama_messages.tools(body.tools or [])
    )


def parse_generate(data: bytes) -> Asked:
    """Read and check a whole body of `/api/generate`. Raises Refusal with the field at fault."""
    body = decode(data, GenerateBody)
    ollama_messages.no_images(body.images)
    if body.raw and (body.template or body.system or body.context):
        raise invalid("raw", "raw mode does not support template, system, or context")
    context = ollama_context.decode(body.context)
    if not body.prompt:
        return _asked(body)
    if body.raw or body.suffix:  # the gap between two texts has no template either
        return _asked(body, prompt=body.prompt, suffix=body.suffix or "")
    return _asked(
        body,
        messages=(*context, Message(role=Role.USER, content=body.prompt)),
        continued=bool(context),
        system=body.system,
        template=body.template or None,
    )


def _asked(body: GenerationBody, **fields: Any) -> Asked:
    ollama_options.checked(body.options)
    return Asked(
        model=body.model or None,
        stream=body.stream is not False,
        options=body.options or {},
        keep_alive=ollama_fields.keep_alive(body.keep_alive),
        thinks=ollama_fields.think(body.think),
        constraint=ollama_fields.constraint(body.format),
        truncate=body.truncate is not False,
        shift=body.shift,
        top_logprobs=_top_logprobs(body),
        **fields,
    )


def _top_logprobs(body: GenerationBody) -> int | None:
    if not 0 <= (body.top_logprobs or 0) <= MAX_TOP_LOGPROBS:
        raise invalid("top_logprobs", f"top_logprobs must be between 0 and {MAX_TOP_LOGPROBS}")
    return (body.top_logprobs or 0) if body.logprobs else None


def generation_request(
    asked: Asked, *, request_id: str, model: str, settings: ModelSettings, effort: str | None, warn: Warn
) -> tuple[GenerationRequest, int | None]:
    """The request over what is stored with the model, and `num_ctx` if somebody set it. `warn` may raise Refusal."""
    options = ollama_options.parse(asked.options, settings.parameters, warn)
    if asked.shift:
        warn("shift", "ignored: an answer ends where the context is full")
    messages, prompt = conversation(asked, settings), asked.prompt
    if asked.template is not None:
        messages, prompt = (), ollama_template.render(asked.template, messages)
    request = GenerationRequest(
        id=request_id,
        model=model,
        messages=messages,
        prompt=prompt,
        suffix=asked.suffix,
        sampling=options.sampling,
        max_tokens=options.max_tokens,
        stop=options.stop,
        tools=asked.tools,
        constraint=asked.constraint,
        top_logprobs=asked.top_logprobs,
        reasoning_effort=None if prompt is not None else effort,
        whole=not asked.stream,
        keep_alive=asked.keep_alive,
    )
    return request, options.num_ctx


def conversation(asked: Asked, settings: ModelSettings) -> tuple[Message, ...]:
    """A system message (the request's, else the model's), the model's own turns, the request's. Raw ones: none."""
    if asked.prompt is not None:
        return ()
    own, given = settings, list(asked.messages)
    system = _system_of(given) or ([] if asked.continued else _system(own.system))
    if asked.system is not None:
        system = _system(asked.system)
    turns: Sequence[Message] = ()
    if not asked.continued:
        turns = [Message(role=Role(turn.role), content=turn.content) for turn in own.messages]
    return (*system, *turns, *given)


def _system_of(given: list[Message]) -> list[Message]:
    """The system message that the conversation begins with, taken out of it."""
    return [given.pop(0)] if given and given[0].role is Role.SYSTEM else []


def _system(text: str) -> list[Message]:
    return [Message(role=Role.SYSTEM, content=text)] if text else []
