"""`POST /api/chat` and `POST /api/generate`: parse, enter the door, render as lines or as one document."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Self

from aiohttp import web

from pocketserver.chat import Event, GenerationRequest, Message, Role
from pocketserver.errors import Code, Refusal
from pocketserver.wire import ndjson
from pocketserver.wire.context import ANSWER, Answer, body_of
from pocketserver.wire.error_table import ErrorTable
from pocketserver.wire.json_body import invalid, tell_unread
from pocketserver.wire.ollama_answer import (
    Document,
    Heading,
    Lines,
    Shape,
    chat_shape,
    generate_shape,
    rfc3339,
)
from pocketserver.wire.ollama_context import encode
from pocketserver.wire.ollama_documents import document, encoded
from pocketserver.wire.ollama_fitting import Fitting
from pocketserver.wire.ollama_models import Chosen, OllamaModels
from pocketserver.wire.ollama_request import (
    Asked,
    ChatBody,
    GenerateBody,
    GenerationBody,
    conversation,
    generation_request,
    parse_chat,
    parse_generate,
)
from pocketserver.wire.shortening import Shorten


@dataclass(frozen=True, slots=True)
class _Api:
    """What differs between the two routes. `verb` is what a model that cannot answer "does not support"."""

    verb: str
    parse: Callable[[bytes], Asked]
    body: type[GenerationBody]
    shape: Shape


_CHAT = _Api("chat", parse_chat, ChatBody, chat_shape)
_GENERATE = _Api("generate", parse_generate, GenerateBody, generate_shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class OllamaGeneration:
    models: OllamaModels
    errors: ErrorTable
    shorten: Shorten

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/api/chat", self.chat), web.post("/api/generate", self.generate)]

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, _CHAT)

    async def generate(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, _GENERATE)

    async def chat_request(self, request: web.Request, body: bytes) -> GenerationRequest:
        """What a body of `/api/chat` asks of the model. Raises Refusal with the field at fault."""
        return (self._prepared(request, _CHAT, *await self._read(request, _CHAT, body))).request

    async def generate_request(self, request: web.Request, body: bytes) -> GenerationRequest:
        """The same of a body of `/api/generate`."""
        return (self._prepared(request, _GENERATE, *await self._read(request, _GENERATE, body))).request

    async def _answer(self, request: web.Request, api: _Api) -> web.StreamResponse:
        body = await body_of(request, self.models.access.client_seconds)
        asked, chosen = await self._read(request, api, body)
        if asked.only_loads:
            return await self._only_load(request, api, asked, chosen)
        wanted = self._prepared(request, api, asked, chosen)
        try:
            return await self._generated(request, wanted)
        except Refusal as refusal:
            raise _in_own_words(refusal, chosen) from refusal

    async def _read(self, request: web.Request, api: _Api, body: bytes) -> tuple[Asked, Chosen]:
        asked = api.parse(body)
        if request[ANSWER].tells:
            tell_unread(body, api.body, request[ANSWER].warn)
        chosen = await self.models.choose(request, asked.model)
        chosen.check("completion", api.verb)
        chosen.effort(asked.thinks)
        return asked, chosen

    def _prepared(self, request: web.Request, api: _Api, asked: Asked, chosen: Chosen) -> "_Wanted":
        if asked.only_loads:
            raise invalid("messages", "An empty conversation asks for no answer: it only loads the model.")
        wanted, num_ctx = generation_request(
            asked,
            request_id=request[ANSWER].request_id,
            model=chosen.id,
            settings=chosen.settings,
            effort=chosen.effort(asked.thinks),
            warn=request[ANSWER].warn,
        )
        return _Wanted(api, asked, chosen, wanted, num_ctx)

    async def _only_load(self, request: web.Request, api: _Api, asked: Asked, chosen: Chosen) -> web.Response:
        """One document, also for those who stream."""
        loaded = await self.models.load(request, chosen.id, asked.keep_alive)
        return document(
            {
                "model": chosen.name,
                "created_at": rfc3339(request[ANSWER].created),
                **api.shape(),
                "done": True,
                "done_reason": "load" if loaded else "unload",
            }
        )

    async def _generated(self, request: web.Request, wanted: "_Wanted") -> web.StreamResponse:
        answer, models, model = request[ANSWER], self.models, wanted.chosen.id
        fitting = Fitting(
            door=models.access.door, shorten=self.shorten, truncate=wanted.asked.truncate, warn=answer.warn
        )
        async with models.access.turn(request, wanted.request) as turn:
            was_loaded = models.is_loaded(model)
            fitted = await fitting.within(wanted.num_ctx, models.context_size(model), wanted.request)
            async with fitting.open(turn, fitted) as batches:
                heading = _heading(wanted, answer, was_loaded=was_loaded)
                if wanted.asked.stream:
                    pieces = _Pieces(batches, Lines(heading), answer)
                    return await ndjson.respond(request, pieces, on_error=self.errors.envelope)
                return await _collected(batches, heading, answer)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Everything about one answer before it begins."""

    api: _Api
    asked: Asked
    chosen: Chosen
    request: GenerationRequest
    num_ctx: int | None


def _in_own_words(refusal: Refusal, chosen: Chosen) -> Refusal:
    if refusal.code is not Code.TOOLS_UNSUPPORTED:
        return refusal
    return Refusal(refusal.code, f'"{chosen.name}" does not support tools: {refusal.message}', param="tools")


def _heading(wanted: _Wanted, answer: Answer, *, was_loaded: bool) -> Heading:
    def continued(said: str) -> list[int]:
        # the whole conversation, although old turns may have been left out of this prompt
        turns = conversation(wanted.asked, wanted.chosen.settings)
        return encode([*turns, Message(role=Role.ASSISTANT, content=said)])

    return Heading(
        shape=wanted.api.shape,
        model=wanted.chosen.name,
        created=answer.created,
        arrived=answer.arrived,
        was_loaded=was_loaded,
        scored=wanted.request.top_logprobs is not None,
        context=continued if wanted.api is _GENERATE and wanted.asked.prompt is None else None,
        extra=answer.shown_warnings,
    )


class _Pieces:
    """The bytes of each batch that has any."""

    def __init__(self, batches: AsyncIterator[Sequence[Event]], lines: Lines, answer: Answer) -> None:
        self._batches = batches
        self._lines = lines
        self._answer = answer

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while True:
            batch = await anext(self._batches)
            self._answer.note(batch)
            data = b"".join(map(self._lines.render, batch))
            if data:
                return data


async def _collected(batches: AsyncIterator[Sequence[Event]], heading: Heading, answer: Answer) -> web.Response:
    collected = Document(heading)
    async for batch in batches:
        answer.note(batch)
        for event in batch:
            collected.add(event)
    return encoded(collected.encode())
