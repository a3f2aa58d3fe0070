"""`POST /v1/completions`: plain text goes on, without a template. Parse, enter the door, render."""

from dataclasses import dataclass

import msgspec
from aiohttp import web

from pocketserver.errors import Refusal
from pocketserver.wire import openai_completions_request, sse
from pocketserver.wire.choices import Choices
from pocketserver.wire.context import ANSWER, ModelAccess, body_of
from pocketserver.wire.error_table import ErrorTable
from pocketserver.wire.openai_completions_answer import Chunks, Document
from pocketserver.wire.openai_completions_request import Asked
from pocketserver.wire.openai_sampling import Defaults


@dataclass(frozen=True, slots=True, kw_only=True)
class Completions:
    access: ModelAccess
    defaults: Defaults
    errors: ErrorTable

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/completions", self.create)]

    async def create(self, request: web.Request) -> web.StreamResponse:
        asked = await self.prepared(request, await body_of(request, self.access.client_seconds))
        asked = msgspec.structs.replace(asked, model=self.access.models.shown(asked.requests[0].model))
        return await self._streamed(request, asked) if asked.stream else await self._whole(request, asked)

    async def prepared(self, request: web.Request, body: bytes) -> Asked:
        """What a body asks of the model, which is named in each request. Raises Refusal with the field at fault."""
        access, answer = self.access, request[ANSWER]
        asked = openai_completions_request.parse(
            body, request_id=answer.request_id, defaults=self.defaults, warn=answer.warn
        )
        access.door.check_ready()
        model = answer.model = await access.models.resolve(asked.model, answer)
        wanted = tuple(msgspec.structs.replace(each, model=model, whole=not asked.stream) for each in asked.requests)
        return msgspec.structs.replace(asked, requests=wanted)

    async def _whole(self, request: web.Request, asked: Asked) -> web.Response:
        answer = request[ANSWER]
        document = Document(
            asked.requests,
            choices=asked.choices,
            created=answer.created,
            model=asked.model or "",
            extra=answer.shown_warnings,
        )
        first, *others = asked.requests
        async with (
            self.access.turn(request, first) as turn,
            Choices(turn, first, asked.choices, others=others) as batches,
        ):
            async for batch in batches:
                answer.note(batch)
                for event in batch:
                    document.add(event)
        answer.usage = document.usage
        return web.Response(body=document.encode(), content_type="application/json")

    async def _streamed(self, request: web.Request, asked: Asked) -> web.StreamResponse:
        answer = request[ANSWER]
        answer.awaited = asked.choices * len(asked.requests)
        chunks = Chunks(
            asked.requests,
            choices=asked.choices,
            created=answer.created,
            model=asked.model or "",
            include_usage=asked.include_usage,
        )
        first, *others = asked.requests
        async with (
            sse.Stream(request, chunks, on_error=self._error_chunk, waiting=self.access.waiting) as stream,
            self.access.turn(request, first) as turn,
            Choices(turn, first, asked.choices, others=others) as batches,
        ):
            await stream.send(batches)
        answer.usage = chunks.usage
        return stream.response

    def _error_chunk(self, refusal: Refusal) -> bytes:
        return sse.message(self.errors.envelope(refusal))
