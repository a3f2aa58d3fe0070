"""`POST /v1/chat/completions`: parse, enter the door, render."""

from dataclasses import dataclass

import msgspec
from aiohttp import web

from pocketserver.errors import Refusal
from pocketserver.wire import openai_chat_request, sse
from pocketserver.wire.choices import Choices
from pocketserver.wire.context import ANSWER, KEY_NAME, REQUEST_ID, Door, ModelNames, body_of
from pocketserver.wire.openai_chat_answer import Chunks, Document
from pocketserver.wire.openai_errors import OpenAIErrors


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCompletions:
    door: Door
    models: ModelNames
    defaults: openai_chat_request.Defaults
    errors: OpenAIErrors
    client_seconds: float
    """How long a client may take to send its body."""

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/chat/completions", self.create)]

    async def create(self, request: web.Request) -> web.StreamResponse:
        body = await body_of(request, self.client_seconds)
        asked = openai_chat_request.parse(body, request_id=request[REQUEST_ID], defaults=self.defaults)
        self.door.check_ready()
        model = await self.models.resolve(asked.model)
        wanted = msgspec.structs.replace(asked.request, model=model, whole=not asked.stream)
        answer = request[ANSWER]
        answer.model = model
        created = answer.created
        scored = wanted.top_logprobs is not None
        async with (
            self.door.turn(owner=request.get(KEY_NAME)) as turn,
            Choices(turn, wanted, asked.choices) as batches,
        ):
            if not asked.stream:
                document = Document(request_id=wanted.id, created=created, model=model, scored=scored)
                async for batch in batches:
                    answer.note(batch)
                    for event in batch:
                        document.add(event)
                return web.Response(body=document.encode(), content_type="application/json")
            chunks = Chunks(
                request_id=wanted.id,
                created=created,
                model=model,
                include_usage=asked.include_usage,
                scored=scored,
                choices=asked.choices,
            )
            return await sse.respond(request, batches, chunks, on_error=self._error_chunk)

    def _error_chunk(self, refusal: Refusal) -> bytes:
        return sse.message(self.errors.envelope(refusal))
