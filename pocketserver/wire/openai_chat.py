"""`POST /v1/chat/completions`: parse, enter the door, render."""

from dataclasses import dataclass

import msgspec
from aiohttp import web

from pocketserver.chat import GenerationRequest
from pocketserver.errors import Refusal
from pocketserver.wire import json_body, openai_chat_request, sse
from pocketserver.wire.choices import Choices
from pocketserver.wire.context import ANSWER, ModelAccess, body_of
from pocketserver.wire.error_table import ErrorTable
from pocketserver.wire.openai_chat_answer import Chunks, Document
from pocketserver.wire.openai_sampling import Defaults


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCompletions:
    access: ModelAccess
    defaults: Defaults
    errors: ErrorTable

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/chat/completions", self.create)]

    async def create(self, request: web.Request) -> web.StreamResponse:
        asked = await self.prepared(request, await body_of(request, self.access.client_seconds))
        wanted = asked.request
        if asked.stream:
            return await self._streamed(request, asked, wanted)
        return await self._whole(request, asked, wanted)

    async def prepared(self, request: web.Request, body: bytes) -> openai_chat_request.Asked:
        """What a body asks of the model, which is named in it. Raises Refusal with the field at fault."""
        access, answer = self.access, request[ANSWER]
        asked = openai_chat_request.parse(body, request_id=answer.request_id, defaults=self.defaults)
        if answer.tells:
            json_body.tell_unread(body, openai_chat_request.Body, answer.warn)
        access.door.check_ready()
        model = answer.model = await access.models.resolve(asked.model, answer)
        wanted = msgspec.structs.replace(asked.request, model=model, whole=not asked.stream)
        return msgspec.structs.replace(asked, request=wanted)

    async def _whole(
        self, request: web.Request, asked: openai_chat_request.Asked, wanted: GenerationRequest
    ) -> web.Response:
        answer = request[ANSWER]
        document = Document(
            request_id=wanted.id,
            created=answer.created,
            model=self.access.models.shown(wanted.model),
            scored=wanted.top_logprobs is not None,
        )
        async with self.access.turn(request, wanted) as turn, Choices(turn, wanted, asked.choices) as batches:
            async for batch in batches:
                answer.note(batch)
                for event in batch:
                    document.add(event)
        if asked.max_tokens_field is not None:
            answer.tell_room(asked.max_tokens_field, wanted.max_tokens, self.access.context_size)
        document.extra = answer.shown_warnings
        return web.Response(body=document.encode(), content_type="application/json")

    async def _streamed(
        self, request: web.Request, asked: openai_chat_request.Asked, wanted: GenerationRequest
    ) -> web.StreamResponse:
        request[ANSWER].awaited = asked.choices
        chunks = Chunks(
            request_id=wanted.id,
            created=request[ANSWER].created,
            model=self.access.models.shown(wanted.model),
            include_usage=asked.include_usage,
            scored=wanted.top_logprobs is not None,
            choices=asked.choices,
        )
        async with (
            sse.Stream(request, chunks, on_error=self._error_chunk, waiting=self.access.waiting) as stream,
            self.access.turn(request, wanted) as turn,
            Choices(turn, wanted, asked.choices) as batches,
        ):
            await stream.send(batches)
        return stream.response

    def _error_chunk(self, refusal: Refusal) -> bytes:
        return sse.message(self.errors.envelope(refusal))
