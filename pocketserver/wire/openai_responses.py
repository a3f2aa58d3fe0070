"""The routes of the Responses API: create a response, read, list and delete stored ones."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import msgspec
from aiohttp import web

from pocketserver.chat import Event, GenerationRequest, JsonValue
from pocketserver.errors import Code, Refusal
from pocketserver.wire import openai_responses_request, sse
from pocketserver.wire.context import ANSWER, KEY_NAME, ModelAccess, Turn, body_of
from pocketserver.wire.json_body import invalid
from pocketserver.wire.openai_responses_answer import Output, ResponseObject, collected
from pocketserver.wire.openai_responses_events import Events
from pocketserver.wire.openai_responses_items import Item, items
from pocketserver.wire.openai_responses_request import Asked
from pocketserver.wire.openai_responses_store import Kept, ResponseStore, Stored, kept
from pocketserver.wire.openai_responses_tools import refused_here
from pocketserver.wire.openai_responses_turns import turns
from pocketserver.wire.shortening import Shorten, Shortened

_STORED = "/v1/responses/{id:(?!(?:input_tokens|compact)$)[^/]+}"
"""OpenAI has routes of these two names: they do not exist here, rather than being ids that take no POST."""
_MOST_LISTED = 100
_LISTED = 20


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is ready for the model. `input` are the items of the whole conversation, if it is to be stored."""

    asked: Asked
    wanted: GenerationRequest
    input: tuple[Kept, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Responses:
    """`store` None keeps nothing between calls. With `drop_hosted`, tools that cannot run here are left out with a
    warning; without it they are refused. `unix_time` dates the end of an answer.
    """

    access: ModelAccess
    defaults: openai_responses_request.Defaults
    store: ResponseStore | None
    drop_hosted: bool
    shorten: Shorten
    unix_time: Callable[[], float]

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/responses", self.create),
            web.get(_STORED, self.retrieve, allow_head=False),
            web.delete(_STORED, self.delete),
            web.get("/v1/responses/{id}/input_items", self.input_items, allow_head=False),
        ]

    async def create(self, request: web.Request) -> web.StreamResponse:
        body = await body_of(request, self.access.client_seconds)
        self.access.door.check_ready()
        prepared = await self.prepared(request, body)
        try:
            if prepared.asked.stream:
                return await self._streamed(request, prepared)
            return await self._whole(request, prepared)
        except Refusal as refusal:
            raise refused_here(refusal, prepared.asked.toolbox) from refusal

    async def prepared(self, request: web.Request, body: bytes) -> Prepared:
        """What a body asks of the model. Raises Refusal with the field at fault."""
        answer = request[ANSWER]
        asked = openai_responses_request.parse(
            body,
            request_id=answer.request_id,
            defaults=self.defaults,
            drop_hosted=self.drop_hosted,
            warn=answer.warn,
        )
        asked = self._without_store(request, asked) if self.store is None else asked
        model = answer.model = await self.access.models.resolve(asked.model, answer)
        before = self._previous(asked.previous_response_id, request.get(KEY_NAME))
        own = self._own(request, asked)
        messages = turns([*(one.item for one in before), *own], instructions=asked.instructions)
        wanted = msgspec.structs.replace(asked.request, model=model, messages=messages, whole=not asked.stream)
        stores = self.store is not None and asked.store is not False
        return Prepared(asked=asked, wanted=wanted, input=(*before, *kept(own)) if stores else None)

    async def retrieve(self, request: web.Request) -> web.Response:
        if request.query.get("stream") == "true":
            raise invalid("stream", "A stored response cannot be streamed again. Leave `stream` out.")
        return _json(self._stored(request).document)

    async def delete(self, request: web.Request) -> web.Response:
        assert self.store is not None, "routed only with a store"
        response_id = request.match_info["id"]
        self.store.delete(request.get(KEY_NAME), response_id)
        return _json(msgspec.json.encode({"id": response_id, "object": "response", "deleted": True}))

    async def input_items(self, request: web.Request) -> web.Response:
        found = self._stored(request).input
        shown, has_more = _page(found, request)
        document = {
            "object": "list",
            "data": [msgspec.Raw(one.data) for one in shown],
            "first_id": shown[0].id if shown else None,
            "last_id": shown[-1].id if shown else None,
            "has_more": has_more,
        }
        return _json(msgspec.json.encode(document))

    def _stored(self, request: web.Request) -> Stored:
        response_id = request.match_info["id"]
        if self.store is None:
            raise Refusal(Code.RESPONSE_NOT_FOUND, f"Response with id '{response_id[:80]}' not found.")
        return self.store.get(request.get(KEY_NAME), response_id)

    def _without_store(self, request: web.Request, asked: Asked) -> Asked:
        if asked.previous_response_id is not None:
            raise invalid(
                "previous_response_id",
                "This server keeps nothing between calls. Leave `previous_response_id` out and send the whole history"
                " in `input`.",
            )
        if asked.store:
            request[ANSWER].warn("store", "ignored, nothing is kept between calls")
        return msgspec.structs.replace(asked, store=False, echo={**asked.echo, "store": False})

    def _own(self, request: web.Request, asked: Asked) -> tuple[Item, ...]:
        """The items of this request alone."""
        store, owner = self.store, request.get(KEY_NAME)
        resolve: Callable[[str], Item | None] = _nothing if store is None else lambda found: store.item(owner, found)
        return items(asked.input, mint=_Mint(request[ANSWER].request_id), resolve=resolve, warn=request[ANSWER].warn)

    def _previous(self, response_id: str | None, owner: str | None) -> tuple[Kept, ...]:
        if response_id is None or self.store is None:
            return ()
        try:
            before = self.store.get(owner, response_id)
        except Refusal as refusal:
            raise Refusal(
                Code.PREVIOUS_RESPONSE_NOT_FOUND,
                f"Previous response with id '{response_id[:80]}' not found. Send the history in `input` instead.",
                param="previous_response_id",
            ) from refusal
        if before.status not in ("completed", "incomplete"):
            state = before.status.replace("_", " ")
            raise invalid(
                "previous_response_id", f"The previous response is {state}: only a finished one can be continued."
            )
        return before.context

    async def _whole(self, request: web.Request, prepared: Prepared) -> web.Response:
        answer, wanted = request[ANSWER], prepared.wanted
        output, response = self._output(prepared), self._response(request, prepared)
        async with self.access.turn(request, wanted) as turn, self._opened(request, prepared, turn) as batches:
            async for batch in batches:
                answer.note(batch)
                for event in batch:
                    collected(output, event)
        if prepared.asked.echo["max_output_tokens"] is not None:
            answer.tell_room("max_output_tokens", wanted.max_tokens, self.access.context_size)
        document = response.finished(output, int(self.unix_time()))
        self._keep(request, prepared, document)
        return _json(msgspec.json.encode({**document, **answer.shown_warnings}))

    async def _streamed(self, request: web.Request, prepared: Prepared) -> web.StreamResponse:
        response = self._response(request, prepared)
        events = Events(
            response,
            self._output(prepared),
            now=self.unix_time,
            ended=lambda document: self._keep(request, prepared, document),
        )
        async with (
            self._begun(request, prepared, response),
            sse.Stream(
                request,
                events,
                on_error=lambda refusal: events.failed(refused_here(refusal, prepared.asked.toolbox)),
                waiting=self.access.waiting,
            ) as stream,
            self.access.turn(request, prepared.wanted) as turn,
            self._opened(request, prepared, turn) as batches,
        ):
            await stream.send(batches)
        return stream.response

    def _opened(
        self, request: web.Request, prepared: Prepared, turn: Turn
    ) -> AbstractAsyncContextManager[AsyncIterator[Sequence[Event]]]:
        if not prepared.asked.truncates:
            return turn.open(prepared.wanted)

        def told(count: int) -> None:
            request[ANSWER].warn("input", f"the {count} oldest messages were left out")

        return Shortened(turn, prepared.wanted, door=self.access.door, shorten=self.shorten, told=told)

    def _output(self, prepared: Prepared) -> Output:
        asked = prepared.asked
        return Output(request_id=prepared.wanted.id, toolbox=asked.toolbox, encrypts=asked.encrypts)

    def _response(self, request: web.Request, prepared: Prepared) -> ResponseObject:
        wanted = prepared.wanted
        return ResponseObject(
            response_id=f"resp_{wanted.id}",
            created=request[ANSWER].created,
            model=self.access.models.shown(wanted.model),
            echo=prepared.asked.echo,
        )

    @asynccontextmanager
    async def _begun(self, request: web.Request, prepared: Prepared, response: ResponseObject) -> AsyncIterator[None]:
        """A streamed response can be looked up while it is made. One that nobody waited for is forgotten."""
        self._keep(request, prepared, response.in_progress())
        try:
            yield
        finally:
            if self.store is not None:
                self.store.discard_unfinished(request.get(KEY_NAME), response.id)

    def _keep(self, request: web.Request, prepared: Prepared, document: dict[str, JsonValue]) -> None:
        if self.store is None or prepared.input is None:
            return
        self.store.put(
            request.get(KEY_NAME),
            Stored(
                id=document["id"],
                status=document["status"],
                document=msgspec.json.encode(document),
                input=prepared.input,
                output=kept(document["output"]),
            ),
        )


class _Mint:
    """Ids of input items: the same request has the same ones in every run."""

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id
        self._made = 0

    def __call__(self, prefix: str) -> str:
        self._made += 1
        return f"{prefix}{self._request_id}i{self._made:04x}"


def _nothing(_item_id: str) -> None:
    """There are no stored items where nothing is stored."""


def _page(found: tuple[Kept, ...], request: web.Request) -> tuple[Sequence[Kept], bool]:
    """The items that `limit`, `order` and `after` ask for, and whether more follow."""
    limit, order, after = _limit(request), request.query.get("order", "desc"), request.query.get("after")
    if order not in ("asc", "desc"):
        raise invalid("order", "`order` must be asc or desc.")
    listed = found if order == "asc" else found[::-1]
    if after:
        place = next((index for index, one in enumerate(listed) if one.id == after), None)
        if place is None:
            raise invalid("after", f"`after` names {after[:80]!r}, which is no input item of this response.")
        listed = listed[place + 1 :]
    return listed[:limit], len(listed) > limit


def _limit(request: web.Request) -> int:
    given = request.query.get("limit", str(_LISTED))
    if not (given.isascii() and given.isdigit() and len(given) < 5 and 1 <= int(given) <= _MOST_LISTED):
        raise invalid("limit", f"`limit` must be from 1 to {_MOST_LISTED}.")
    return int(given)


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")
