"""Which model an Ollama request means, and what that model can do."""

import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from aiohttp import web

from pocketserver.errors import Code, Refusal
from pocketserver.models.library import ModelLibrary, ModelSettings, StoredModel
from pocketserver.wire.context import ANSWER, KEY_NAME, ModelAccess
from pocketserver.wire.json_body import invalid
from pocketserver.wire.ollama_fields import required_name

_MOST_REMEMBERED = 256
_TOOLS = re.compile(r"\btools?\b")
_THINKING = re.compile(r"enable_thinking|reasoning_content|reasoning_effort|</?think>|\.Thinking\b|\bthinking\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a model can do, as far as clients decide by it. Without `known` that is a guess, and nothing is decided."""

    completion: bool = True
    tools: bool = False
    thinking: bool = False
    embedding: bool = False
    insert: bool = False
    known: bool = True

    @property
    def words(self) -> list[str]:
        """In Ollama's order and words."""
        return [word for word in ("completion", "tools", "insert", "embedding", "thinking") if getattr(self, word)]


EVERYTHING = Capabilities(tools=True, thinking=True, embedding=True, insert=True, known=False)
"""Of a model that somebody else runs, who will say what it cannot do."""


async def nothing_known(_model: StoredModel) -> Capabilities | None:
    """For engines that cannot tell what a model can do."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The model of one request. `name` is what the client wrote."""

    id: str
    name: str
    settings: ModelSettings
    capabilities: Capabilities

    def effort(self, asked: str | None) -> str | None:
        """How much to think. A model that can thinks unless told not to; one that cannot refuses to be told to."""
        if not self.capabilities.known:
            return asked
        if self.capabilities.thinking:
            return asked or "medium"
        if asked not in (None, "none"):
            raise invalid("think", f'"{self.name}" does not support thinking')
        return None

    def check(self, capability: str, verb: str) -> None:
        if not getattr(self.capabilities, capability):
            raise invalid("model", f'"{self.name}" does not support {verb}')


@dataclass(slots=True, kw_only=True)
class OllamaModels:
    """Looks models up by the names that this family's clients use.

    `examine` tells what an engine knows a model to be able to do; where it knows nothing the template is read.
    """

    access: ModelAccess
    library: ModelLibrary
    examine: Callable[[StoredModel], Awaitable[Capabilities | None]]
    _remembered: OrderedDict[tuple[str, str, float], Capabilities] = field(default_factory=OrderedDict)

    async def choose(self, request: web.Request, name: str | None) -> Chosen:
        """Raises MODEL_NOT_FOUND in Ollama's words, and whatever keeps any model from answering now."""
        if name is not None or self.access.models.required:
            name = required_name(name)
        self.access.door.check_ready()
        model = await self.find(request, name)
        request[ANSWER].model = model.id
        return Chosen(
            id=model.id, name=name or model.id, settings=model.settings, capabilities=await self.capabilities(model)
        )

    async def find(self, request: web.Request, name: str | None) -> StoredModel:
        """The installed model of this name, or the one that a generic name means here."""
        found = None if name is None else await self.library.find(name)
        if found is None:
            found = await self.library.find(await self._loaded_as(request, name))
        if found is None:
            raise not_found(name or "")
        if found.problem is not None:
            raise Refusal(Code.MODEL_NOT_FOUND, f"model '{name}' cannot be loaded: {found.problem}", param="model")
        return found

    async def _loaded_as(self, request: web.Request, name: str | None) -> str:
        try:
            return await self.access.models.resolve(name, request[ANSWER])
        except Refusal as refusal:
            raise (not_found(name or "") if refusal.code is Code.MODEL_NOT_FOUND else refusal) from refusal

    async def capabilities(self, model: StoredModel) -> Capabilities:
        key = (model.id, model.digest, model.modified)
        found = self._remembered.get(key)
        if found is None:
            found = self._remembered[key] = await self.examine(model) or await self._from_template(model)
            if len(self._remembered) > _MOST_REMEMBERED:
                self._remembered.popitem(last=False)
        return found

    async def _from_template(self, model: StoredModel) -> Capabilities:
        if model.is_encoder:
            return Capabilities(completion=False, embedding=True)
        template = (await self.library.show(model.id)).template
        return Capabilities(tools=bool(_TOOLS.search(template)), thinking=bool(_THINKING.search(template)))

    async def load(self, request: web.Request, model: str, keep_alive: float | None) -> bool:
        """Have a model in memory for so long, or out of it for 0. True when it is in memory now."""
        owner = request.get(KEY_NAME)
        if keep_alive == 0:
            await self.access.door.unload(model, owner=owner)
            return False
        await self.access.door.load(model, keep_alive, owner=owner)
        return True

    def is_loaded(self, model: str) -> bool:
        return any(loaded.id == model for loaded in self.access.door.loaded())

    def context_size(self, model: str) -> int | None:
        """What the model is served with; None while it is not loaded."""
        return next((loaded.context_size for loaded in self.access.door.loaded() if loaded.id == model), None)


def not_found(name: str) -> Refusal:
    return Refusal(Code.MODEL_NOT_FOUND, f"model '{name}' not found", param="model")
