"""The APIs whose bodies `POST /v1/explain` takes, each with its own parser."""

from collections.abc import Mapping

import msgspec
from aiohttp import web

from pocketserver.chat import GenerationRequest
from pocketserver.wire import (
    anthropic_request,
    ollama_request,
    openai_chat_request,
    openai_completions_request,
    openai_responses_request,
)
from pocketserver.wire.anthropic_messages import Messages
from pocketserver.wire.explain import Explained
from pocketserver.wire.json_body import invalid
from pocketserver.wire.ollama_generation import OllamaGeneration
from pocketserver.wire.openai_chat import ChatCompletions
from pocketserver.wire.openai_completions import Completions
from pocketserver.wire.openai_responses import Responses


def explainable(
    *,
    chat: ChatCompletions,
    completions: Completions,
    responses: Responses,
    messages: Messages,
    ollama: OllamaGeneration | None,
) -> Mapping[str, Explained]:
    """By the word that `?api=` takes."""

    async def of_chat(request: web.Request, body: bytes) -> GenerationRequest:
        return (await chat.prepared(request, body)).request

    async def of_completions(request: web.Request, body: bytes) -> GenerationRequest:
        asked = await completions.prepared(request, body)
        if len(asked.requests) > 1:
            raise invalid("prompt", "One prompt can be explained at a time.")
        return asked.requests[0]

    async def of_responses(request: web.Request, body: bytes) -> GenerationRequest:
        return (await responses.prepared(request, body)).wanted

    async def of_messages(request: web.Request, body: bytes) -> GenerationRequest:
        return (await messages.prepared(request, body))[1]

    apis = {
        "chat": Explained(needs=frozenset({"messages"}), fields=_fields(openai_chat_request.Body), prepare=of_chat),
        "responses": Explained(
            needs=frozenset({"input"}), fields=_fields(openai_responses_request.Body), prepare=of_responses
        ),
        "messages": Explained(
            needs=frozenset({"messages", "max_tokens"}), fields=_fields(anthropic_request.Body), prepare=of_messages
        ),
        "completions": Explained(
            needs=frozenset({"prompt"}), fields=_fields(openai_completions_request.Body), prepare=of_completions
        ),
    }
    if ollama is not None:
        apis["ollama_chat"] = Explained(
            needs=frozenset({"messages"}), fields=_fields(ollama_request.ChatBody), prepare=ollama.chat_request
        )
        apis["ollama_generate"] = Explained(
            needs=frozenset({"prompt"}), fields=_fields(ollama_request.GenerateBody), prepare=ollama.generate_request
        )
    return apis


def _fields(body: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(body.__struct_fields__)
