"""`POST /v1/completions`, the body: from the fields of OpenAI's older API to one GenerationRequest for each prompt.

Source: the OpenAI API reference, "Completions (legacy)". Unknown fields are ignored and named, `null` means absent.
"""

from typing import Any, TypeAlias

import msgspec

from pocketserver.chat import GenerationRequest
from pocketserver.errors import Code, Refusal
from pocketserver.wire import json_body
from pocketserver.wire.json_body import Warn, invalid
from pocketserver.wire.openai_sampling import (
    MOST_TOKENS,
    Defaults,
    SamplingFields,
    in_range,
    sampling,
    shown,
    stop_texts,
)

Prompt: TypeAlias = str | tuple[int, ...]
"""A text, or its tokens."""

MAX_CHOICES = 128
"""Answers to one request, of all its prompts together."""
MAX_LOGPROBS = 5
MAX_BEST_OF = 20
NO_LIMIT = -1
"""Local clients send this `max_tokens` to mean as much as the context holds."""


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Body(SamplingFields, frozen=True, kw_only=True):
    """The fields that are read. Everything else in the body is somebody else's extension."""

    prompt: str | list[Any] | None = None
    model: str | None = None
    messages: Any = None
    suffix: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    n: int | None = None
    best_of: int | None = None
    logprobs: int | None = None
    echo: bool | None = None
    stop: str | list[str] | None = None


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed request: one of `requests` for each prompt, `choices` answers wanted to each.

    `model` is the name as the client wrote it.
    """

    model: str | None
    requests: tuple[GenerationRequest, ...]
    choices: int
    stream: bool
    include_usage: bool


def parse(data: bytes, *, request_id: str, defaults: Defaults, warn: Warn) -> Asked:
    """Read and check a whole body. Raises Refusal with the code and the field at fault."""
    body = json_body.decode(data, Body, required="prompt")
    prompts = _prompts(body)
    choices = _choices(body, len(prompts))
    common = _common(body, request_id, defaults)
    _warn(data, body, warn)
    options = body.stream_options
    return Asked(
        model=body.model,
        requests=tuple(_asking(common, prompt, place) for place, prompt in enumerate(prompts)),
        choices=choices,
        stream=bool(body.stream),
        include_usage=bool(body.stream and options and options.include_usage),
    )


def _common(body: Body, request_id: str, defaults: Defaults) -> GenerationRequest:
    """What all prompts have in common."""
    if body.echo and body.suffix:
        raise invalid("echo", "`echo` does not go with `suffix`: the answer is the middle alone.")
    return GenerationRequest(
        id=request_id,
        model="",
        prompt="",
        suffix=body.suffix or "",
        echo=bool(body.echo),
        sampling=sampling(body, defaults),
        max_tokens=_max_tokens(body.max_tokens, defaults),
        stop=stop_texts(body.stop, defaults),
        top_logprobs=None if body.logprobs is None else int(in_range("logprobs", body.logprobs, 0, MAX_LOGPROBS, 0)),
    )


def _asking(common: GenerationRequest, prompt: Prompt, place: int) -> GenerationRequest:
    request_id = f"{common.id}.{place}" if place else common.id
    if isinstance(prompt, str):
        return msgspec.structs.replace(common, id=request_id, prompt=prompt)
    if common.suffix:
        raise invalid("suffix", "`suffix` needs a `prompt` that is text.")
    return msgspec.structs.replace(common, id=request_id, prompt_tokens=prompt)


def _prompts(body: Body) -> list[Prompt]:
    if body.messages is not None:
        raise invalid(
            "messages", "This route completes a `prompt` and takes no `messages`. Send them to /v1/chat/completions."
        )
    if body.prompt is None:
        raise Refusal(Code.MALFORMED_REQUEST, "The field `prompt` is missing.", param="prompt")
    if isinstance(body.prompt, str):
        return [body.prompt]
    if not body.prompt:
        raise invalid("prompt", "`prompt` is an empty list. Send at least one text.")
    if all(_is_token(entry) for entry in body.prompt):
        return [tuple(body.prompt)]
    return _listed(body.prompt)


def _listed(given: list[Any]) -> list[Prompt]:
    """Several prompts, all of one kind."""
    if isinstance(given[0], list):
        return [_tokens(entry, place) for place, entry in enumerate(given)]
    for place, entry in enumerate(given):
        if not isinstance(entry, str):
            raise _mixed(place)
    return given


def _tokens(entry: object, place: int) -> Prompt:
    if not isinstance(entry, list) or not entry or not all(map(_is_token, entry)):
        raise _mixed(place)
    return tuple(entry)


def _is_token(entry: object) -> bool:
    return type(entry) is int and 0 <= entry <= MOST_TOKENS


def _mixed(place: int) -> Refusal:
    return invalid(
        f"prompt[{place}]",
        f"`prompt[{place}]` is not of the kind that is needed: `prompt` is a text, a list of texts, a list of token"
        " ids, or a list of such lists.",
    )


def _choices(body: Body, prompts: int) -> int:
    choices = int(in_range("n", body.n, 1, MAX_CHOICES, 1))
    if choices * prompts > MAX_CHOICES:
        param = "n" if prompts == 1 else "prompt"
        raise invalid(param, f"At most {MAX_CHOICES} answers to a request: {prompts} prompts with {choices} each.")
    best_of = int(in_range("best_of", body.best_of, 1, MAX_BEST_OF, choices))
    if best_of != choices:
        raise invalid(
            "best_of", f"`best_of` must be the same as `n` ({choices}): this server does not choose among answers."
        )
    return choices


def _max_tokens(given: int | None, defaults: Defaults) -> int:
    if given is None:
        return defaults.max_tokens
    if given < NO_LIMIT:
        raise invalid("max_tokens", f"`max_tokens` must be 0 or more, or -1 for no limit, not {shown(given)}.")
    return MOST_TOKENS if given == NO_LIMIT else min(given, MOST_TOKENS)


def _warn(data: bytes, body: Body, warn: Warn) -> None:
    """Name what is not done."""
    json_body.tell_unread(data, Body, warn)
    if body.stream_options is not None and body.stream_options.include_obfuscation:
        warn("stream_options.include_obfuscation", "ignored")
