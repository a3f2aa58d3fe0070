"""`POST /v1/explain`: what a body of any generating API would become, without generating.

Each API's own parser reads the body, so that an explanation cannot differ from an answer.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from aiohttp import web

from pocketserver.chat import AnyJsonObject, Constraint, Explanation, GenerationRequest, Grammar, JsonSchema, JsonValue
from pocketserver.errors import Code, Refusal
from pocketserver.wire.context import ANSWER, ModelAccess, body_of
from pocketserver.wire.json_body import decode, invalid

_CONSTRAINTS: Mapping[type[Constraint], str] = {
    AnyJsonObject: "json_object",
    JsonSchema: "json_schema",
    Grammar: "grammar",
}
_NOT_OF_ANTHROPIC = frozenset({"system", "developer", "tool", "function"})
"""Roles of messages that Anthropic's API does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """One API whose bodies can be explained.

    `needs` are fields without which a body is not of this API, `fields` all that it reads. `prepare` reads a body as
    the API itself does and raises Refusal as that does.
    """

    needs: frozenset[str]
    fields: frozenset[str]
    prepare: Callable[[web.Request, bytes], Awaitable[GenerationRequest]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explain:
    """`apis` by the word that `?api=` takes."""

    access: ModelAccess
    apis: Mapping[str, Explained]

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/explain", self.explain)]

    async def explain(self, request: web.Request) -> web.Response:
        body = await body_of(request, self.access.client_seconds)
        given = decode(body, dict[str, JsonValue], required="model")
        api = self._named(request) or self._recognised(given)
        wanted = await self.apis[api].prepare(request, body)
        explanation = await self.access.door.explain(wanted)
        document = self._document(api, wanted, explanation) | {"warnings": request[ANSWER].warnings}
        return web.Response(body=msgspec.json.encode(document), content_type="application/json")

    def _named(self, request: web.Request) -> str | None:
        name = request.query.get("api")
        if name is not None and name not in self.apis:
            raise invalid("api", f"`api` must be one of {', '.join(self.apis)}.")
        return name

    def _recognised(self, given: Mapping[str, JsonValue]) -> str:
        """The one API that a body can be of. Raises MALFORMED_REQUEST when there are several, or none."""
        found = [name for name, api in self.apis.items() if api.needs <= given.keys() and _may_be(name, given)]
        known = [name for name in given if any(name in self.apis[api].fields for api in found)]
        fits = [name for name in found if all(field in self.apis[name].fields for field in known)]
        if len(fits) == 1:
            return fits[0]
        how = f"Say which API it is for, as in /v1/explain?api={next(iter(fits or found or self.apis))}."
        if not found:
            raise Refusal(Code.MALFORMED_REQUEST, f"The body is of no API that can be explained. {how}")
        fields = "its fields belong to different APIs" if not fits else f"it could be for {' or '.join(fits)}"
        raise Refusal(Code.MALFORMED_REQUEST, f"The body is ambiguous: {fields}. {how}")

    def _document(self, api: str, wanted: GenerationRequest, found: Explanation) -> dict[str, JsonValue]:
        left = found.context_size - found.prompt_tokens
        return {
            "object": "explanation",
            "api": api,
            "model": self.access.models.shown(wanted.model),
            "would_be_answered": not found.problems,
            "problems": [msgspec.to_builtins(problem) for problem in found.problems],
            "prompt": found.prompt,
            "prompt_tokens": found.prompt_tokens,
            "cached_tokens": found.cached_tokens,
            "context_size": found.context_size,
            "fits": left > 0,
            "answer_tokens_left": max(left, 0),
            "max_tokens": wanted.max_tokens,
            "usable_tools": found.usable_tools,
            "constraint": None if wanted.constraint is None else _CONSTRAINTS[type(wanted.constraint)],
            "queue": self._queue(),
            "tokens": [{"id": token.id, "text": token.text} for token in found.tokens],
        }

    def _queue(self) -> dict[str, JsonValue]:
        """Where the request would stand if it came now."""
        place = self.access.door.next_place()
        return {"position": place.position, "ahead": place.ahead, "wait_seconds": place.wait_seconds}


def _may_be(api: str, given: Mapping[str, JsonValue]) -> bool:
    """Whether tools and roles are of this API's shape; top-level fields are compared elsewhere."""
    for_anthropic = api == "messages"
    messages, tools = _objects(given.get("messages")), _objects(given.get("tools"))
    roles = [role for message in messages if isinstance(role := message.get("role"), str)]
    if for_anthropic and not _NOT_OF_ANTHROPIC.isdisjoint(roles):
        return False
    return not any(("input_schema" in tool) is not for_anthropic for tool in tools if _tells(tool))


def _tells(tool: Mapping[str, JsonValue]) -> bool:
    return "input_schema" in tool or "function" in tool or "parameters" in tool


def _objects(given: JsonValue) -> Sequence[Mapping[str, JsonValue]]:
    return [entry for entry in given if isinstance(entry, dict)] if isinstance(given, list) else []
