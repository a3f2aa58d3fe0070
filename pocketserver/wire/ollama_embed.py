"""`POST /api/embed` and the older `POST /api/embeddings`."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from pocketserver.chat import Embeddings
from pocketserver.errors import Code, Refusal
from pocketserver.wire import ollama_fields, ollama_options
from pocketserver.wire.context import ANSWER, KEY_NAME, body_of, via_of
from pocketserver.wire.json_body import invalid, tell_unread
from pocketserver.wire.ollama_answer import nanoseconds
from pocketserver.wire.ollama_documents import document
from pocketserver.wire.ollama_models import Chosen, OllamaModels
from pocketserver.wire.ollama_request import decode

MAX_INPUTS = 2048
_Body = TypeVar("_Body", bound=msgspec.Struct)


class EmbedBody(msgspec.Struct, frozen=True):
    model: str | None = None
    input: Any = None
    truncate: bool | None = None
    dimensions: int | None = None
    keep_alive: Any = None
    options: dict[str, Any] | None = None


class EmbeddingsBody(msgspec.Struct, frozen=True):
    model: str | None = None
    prompt: str | None = None
    keep_alive: Any = None
    options: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OllamaEmbed:
    models: OllamaModels

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/api/embed", self.embed), web.post("/api/embeddings", self.embeddings)]

    async def embed(self, request: web.Request) -> web.Response:
        """One vector of length 1 for each text, in their order."""
        body = await self._read(request, EmbedBody)
        inputs, keep_alive = _inputs(body.input), ollama_fields.keep_alive(body.keep_alive)
        ollama_options.checked(body.options)
        chosen = await self._choose(request, body.model)
        began = time.monotonic()
        found, load_seconds = await self._vectors(
            request, chosen, inputs, keep_alive, truncate=body.truncate is not False
        )
        answer = request[ANSWER]
        return document(
            {
                "model": chosen.name,
                "embeddings": [_cut(vector, body.dimensions) for vector in found.vectors],
                "total_duration": nanoseconds(max(time.monotonic() - began, load_seconds)),
                "load_duration": nanoseconds(load_seconds),
                "prompt_eval_count": found.prompt_tokens,
                **answer.shown_warnings,
            }
        )

    async def embeddings(self, request: web.Request) -> web.Response:
        """One vector for one text."""
        body = await self._read(request, EmbeddingsBody)
        keep_alive = ollama_fields.keep_alive(body.keep_alive)
        ollama_options.checked(body.options)
        chosen = await self._choose(request, body.model)
        found, _ = await self._vectors(request, chosen, [body.prompt] if body.prompt else [], keep_alive, truncate=True)
        embedding = found.vectors[0] if found.vectors else []
        return document({"embedding": embedding, **request[ANSWER].shown_warnings})

    async def _read(self, request: web.Request, kind: type[_Body]) -> _Body:
        """A whole body; what it has beside the fields that are read is told."""
        data = await body_of(request, self.models.access.client_seconds)
        body = decode(data, kind)
        tell_unread(data, kind, request[ANSWER].warn)
        return body

    async def _choose(self, request: web.Request, name: str | None) -> Chosen:
        try:
            return await self.models.choose(request, name)
        except Refusal as refusal:
            if refusal.code is not Code.MODEL_NOT_FOUND or "not found" not in refusal.message:
                raise
            raise Refusal(refusal.code, f'model "{name}" not found, try pulling it first', param="model") from refusal

    async def _vectors(
        self, request: web.Request, chosen: Chosen, inputs: Sequence[str], keep_alive: float | None, *, truncate: bool
    ) -> tuple[Embeddings, float]:
        """Vectors, and the seconds that the model was loaded for them."""
        owner, door = request.get(KEY_NAME), self.models.access.door
        loads = not inputs or not self.models.is_loaded(chosen.id)
        load_seconds = await door.load(chosen.id, None, owner=owner) if loads else 0.0
        found = Embeddings(vectors=(), prompt_tokens=0)
        if inputs:
            try:
                found = await door.embed(inputs, model=chosen.id, truncate=truncate, owner=owner, via=via_of(request))
            except Refusal as refusal:
                raise _in_own_words(refusal, inputs) from refusal
        for index in found.truncated:
            request[ANSWER].warn(f"input[{index}]", "cut to the context")
        if keep_alive is not None:
            await self.models.load(request, chosen.id, keep_alive)
        return found, load_seconds


def _inputs(given: Any) -> list[str]:
    if given is None or given == "":
        return []
    inputs = [given] if isinstance(given, str) else given
    if not isinstance(inputs, list) or not all(isinstance(text, str) for text in inputs):
        raise invalid("input", "invalid input type")
    if len(inputs) > MAX_INPUTS:
        raise invalid("input", f"input has {len(inputs)} entries; at most {MAX_INPUTS} are taken")
    return inputs


def _in_own_words(refusal: Refusal, inputs: Sequence[str]) -> Refusal:
    if refusal.code is not Code.CONTEXT_LENGTH_EXCEEDED:
        return refusal
    which = f" (input[{refusal.details['index']}])" if len(inputs) > 1 and "index" in refusal.details else ""
    return Refusal(
        refusal.code,
        f"the input length exceeds the context length{which}",
        param=refusal.param,
        details=refusal.details,
    )


def _cut(vector: Sequence[float], dimensions: int | None) -> Sequence[float]:
    """The first so many numbers, made a vector of length 1 again."""
    if dimensions is None or not 0 < dimensions < len(vector):
        return vector
    kept = vector[:dimensions]
    length = math.sqrt(math.fsum(number * number for number in kept)) or 1.0
    return [number / length for number in kept]
