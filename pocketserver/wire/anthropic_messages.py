"""`POST /v1/messages` and `POST /v1/messages/count_tokens`: parse, enter the door, render."""

from dataclasses import dataclass
from functools import partial

import msgspec
from aiohttp import web

from pocketserver.chat import GenerationRequest
from pocketserver.errors import Refusal
from pocketserver.wire import anthropic_request, sse
from pocketserver.wire.anthropic_answer import Document, Events, framed
from pocketserver.wire.choices import Choices
from pocketserver.wire.context import ANSWER, ModelAccess, body_of
from pocketserver.wire.error_table import ErrorTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """`drop_hosted` leaves out tools that only Anthropic runs, with a warning, instead of refusing them."""

    access: ModelAccess
    defaults: anthropic_request.Defaults
    errors: ErrorTable
    drop_hosted: bool = False

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/messages", self.create),
            web.post("/v1/messages/count_tokens", self.count_tokens),
        ]

    async def create(self, request: web.Request) -> web.StreamResponse:
        body = await body_of(request, self.access.client_seconds)
        asked, wanted = await self.prepared(request, body)
        if asked.stream:
            return await self._streamed(request, asked, wanted)
        return await self._whole(request, asked, wanted)

    async def count_tokens(self, request: web.Request) -> web.Response:
        """Nobody waits for a count, and it is no generation."""
        body = await body_of(request, self.access.client_seconds)
        _, wanted = await self.prepared(request, body, anthropic_request.parse_count)
        tokens = await self.access.door.count(wanted)
        return _json(msgspec.json.encode({"input_tokens": tokens, **request[ANSWER].shown_warnings}))

    async def prepared(
        self, request: web.Request, body: bytes, parse: anthropic_request.Parse = anthropic_request.parse
    ) -> tuple[anthropic_request.Asked, GenerationRequest]:
        """What a body asks of the model. Raises Refusal with the field at fault."""
        access, answer = self.access, request[ANSWER]
        asked = parse(
            body,
            request_id=answer.request_id,
            defaults=self.defaults,
            drop_hosted=self.drop_hosted,
            warn=answer.warn,
        )
        access.door.check_ready()
        model = answer.model = await access.models.resolve(asked.model, answer)
        return asked, msgspec.structs.replace(asked.request, model=model, whole=not asked.stream)

    async def _whole(
        self, request: web.Request, asked: anthropic_request.Asked, wanted: GenerationRequest
    ) -> web.Response:
        answer = request[ANSWER]
        document = Document(
            request_id=wanted.id,
            model=self._named(asked, wanted),
            display=asked.display,
            context_size=self.access.context_size,
        )
        async with self.access.turn(request, wanted) as turn, Choices(turn, wanted, 1) as batches:
            async for batch in batches:
                answer.note(batch)
                for event in batch:
                    document.add(event)
        answer.tell_room("max_tokens", wanted.max_tokens, self.access.context_size)
        document.extra = answer.shown_warnings
        return _json(document.encode())

    async def _streamed(
        self, request: web.Request, asked: anthropic_request.Asked, wanted: GenerationRequest
    ) -> web.StreamResponse:
        events = Events(
            request_id=wanted.id,
            model=self._named(asked, wanted),
            display=asked.display,
            context_size=self.access.context_size,
        )
        on_error = partial(self._error_event, request[ANSWER].request_id)
        async with (
            sse.Stream(request, events, on_error=on_error, waiting=self.access.waiting) as stream,
            self.access.turn(request, wanted) as turn,
            Choices(turn, wanted, 1) as batches,
        ):
            if self.access.counts_tokens():  # the model reads the prompt meanwhile
                events.prompt_tokens = await self.access.door.count(wanted)
            await stream.send(batches)
        return stream.response

    def _named(self, asked: anthropic_request.Asked, wanted: GenerationRequest) -> str:
        """Clients compare the name with the one that they sent."""
        return asked.model or self.access.models.shown(wanted.model)

    def _error_event(self, request_id: str, refusal: Refusal) -> bytes:
        return framed("error", self.errors.envelope(refusal, request_id=request_id))


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")
