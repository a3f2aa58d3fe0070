"""Ollama's routes about models: what there is, what is in memory, what one is made of, copies and removal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from pocketserver.chat import JsonValue, LoadedModel
from pocketserver.errors import Code, Refusal
from pocketserver.models.library import ModelDetails, ModelLibrary, ShownModel, StoredModel
from pocketserver.wire import ollama_fields
from pocketserver.wire.context import KEY_NAME, body_of
from pocketserver.wire.json_body import invalid
from pocketserver.wire.ollama_answer import rfc3339
from pocketserver.wire.ollama_documents import document, nothing
from pocketserver.wire.ollama_models import Capabilities, OllamaModels, not_found
from pocketserver.wire.ollama_request import decode

NEVER = "9999-12-31T23:59:59.000000000Z"
"""When a model expires that is kept for ever."""


class NameBody(msgspec.Struct, frozen=True):
    """`name` is what older clients say."""

    model: str | None = None
    name: str | None = None


class ShowBody(NameBody, frozen=True):
    verbose: bool | None = None
    system: str | None = None


class CopyBody(msgspec.Struct, frozen=True):
    source: str | None = None
    destination: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OllamaStore:
    models: OllamaModels

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/tags", self.tags),
            web.get("/api/ps", self.ps),
            web.post("/api/show", self.show),
            web.post("/api/copy", self.copy),
            web.delete("/api/delete", self.delete),
        ]

    @property
    def _library(self) -> ModelLibrary:
        return self.models.library

    async def tags(self, _request: web.Request) -> web.Response:
        """Every model that can be loaded, last modified first."""
        return document(
            {
                "models": [
                    _listed(model, await self.models.capabilities(model)) for model in await self._library.installed()
                ]
            }
        )

    async def ps(self, _request: web.Request) -> web.Response:
        """What is in memory, longest remaining first."""
        loaded = sorted(self.models.access.door.loaded(), key=_remaining, reverse=True)
        return document({"models": [_running(model, await self._library.find(model.id)) for model in loaded]})

    async def show(self, request: web.Request) -> web.Response:
        body = decode(await self._body(request), ShowBody)
        name = ollama_fields.required_name(body.model, body.name)
        found = await self.models.find(request, name)
        shown = await self._library.show(found.id, verbose=bool(body.verbose))
        return document(_shown(shown, await self.models.capabilities(found), system=body.system))

    async def copy(self, request: web.Request) -> web.Response:
        body = decode(await self._body(request), CopyBody)
        source = _checked("source", body.source)
        destination = _checked("destination", body.destination)
        if await self._library.find(source) is None:
            raise Refusal(Code.MODEL_NOT_FOUND, f'model "{source}" not found', param="source")
        await self._library.copy(source, destination)
        return nothing()

    async def delete(self, request: web.Request) -> web.Response:
        """Unloads first, after the running answer."""
        body = decode(await self._body(request), NameBody)
        name = ollama_fields.required_name(body.model, body.name)
        found = await self._library.find(name)
        if found is None:
            raise not_found(name)
        if self.models.is_loaded(found.id):
            await self.models.access.door.unload(found.id, owner=request.get(KEY_NAME))
        await self._library.delete(name)
        return nothing()

    async def _body(self, request: web.Request) -> bytes:
        return await body_of(request, self.models.access.client_seconds)


def _checked(field: str, name: str | None) -> str:
    try:
        return ollama_fields.required_name(name)
    except Refusal as refusal:
        raise invalid(field, f'{field} "{(name or "")[:80]}" is invalid') from refusal


def _details(details: ModelDetails) -> dict[str, Any]:
    return {
        "parent_model": details.parent_model,
        "format": details.format,
        "family": details.family,
        "families": list(details.families),
        "parameter_size": details.parameter_size,
        "quantization_level": details.quantization_level,
    }


def _listed(model: StoredModel, capabilities: Capabilities) -> dict[str, Any]:
    return {
        "name": model.name,
        "model": model.name,
        "modified_at": rfc3339(model.modified),
        "size": model.size_bytes,
        "digest": model.digest,
        "details": _details(model.details)
        | _known({"context_length": model.context_length, "embedding_length": model.embedding_length}),
        "capabilities": capabilities.words,
    }


def _known(fields: Mapping[str, JsonValue]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _remaining(model: LoadedModel) -> float:
    return float("inf") if model.expires_at is None else model.expires_at


def _running(model: LoadedModel, stored: StoredModel | None) -> dict[str, Any]:
    """A model may be in memory although its file is gone."""
    name = stored.name if stored else model.id
    return {
        "name": name,
        "model": name,
        "size": model.size_bytes or (stored.size_bytes if stored else 0),
        "digest": stored.digest if stored else "",
        "details": _details(stored.details if stored else ModelDetails()),
        "expires_at": NEVER if model.expires_at is None else rfc3339(model.expires_at),
        "size_vram": 0,
        "context_length": model.context_size,
    }


def _shown(shown: ShownModel, capabilities: Capabilities, *, system: str | None) -> dict[str, Any]:
    """Texts that are empty are left out; `model_info` is always there, since clients read the context size from it."""
    model = shown.model
    texts = {
        "license": shown.license,
        "parameters": shown.parameters,
        "template": shown.template,
        "system": shown.system if system is None else system,
    }
    messages: Sequence[Any] = [{"role": turn.role, "content": turn.content} for turn in model.settings.messages]
    return {
        "modelfile": shown.modelfile,
        **{name: text for name, text in texts.items() if text},
        "details": _details(model.details),
        **({"messages": messages} if messages else {}),
        "model_info": shown.model_info,
        "capabilities": capabilities.words,
        "modified_at": rfc3339(model.modified),
    }
