"""Models that lie on another machine: they can be listed and asked, and nothing of them can be changed from here."""

import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NoReturn

from pocketserver.chat import ModelInfo
from pocketserver.errors import Code, Refusal
from pocketserver.models.names import full_name, key_of
from pocketserver.models.stored import CreateSpec, ModelDetails, ShownModel, Step, StoredModel


class LibraryElsewhere:
    """Implements `ModelLibrary` over what another server lists."""

    def __init__(self, models: Callable[[], Sequence[ModelInfo]]) -> None:
        self._models = models

    async def installed(self) -> Sequence[StoredModel]:
        return [_stored(model) for model in self._models()]

    async def find(self, name: str) -> StoredModel | None:
        listed = await self.installed()
        return next((model for model in listed if name == model.id or key_of(name) == key_of(model.id)), None)

    async def show(self, name: str, *, verbose: bool = False) -> ShownModel:
        del verbose
        found = await self.find(name)
        if found is None:
            raise Refusal(Code.MODEL_NOT_FOUND, f"model '{name[:80]}' not found", param="model")
        return ShownModel(model=found, modelfile="", parameters="", template="", system="", license="", model_info={})

    @asynccontextmanager
    async def create(self, spec: CreateSpec, *, local_files: bool = False) -> AsyncIterator[AsyncIterator[Step]]:
        _refuse(spec, local_files)
        yield _nothing()

    async def copy(self, source: str, destination: str) -> None:
        _refuse(source, destination)

    async def delete(self, name: str) -> None:
        _refuse(name)

    @asynccontextmanager
    async def pull(self, name: str) -> AsyncIterator[AsyncIterator[Step]]:
        _refuse(name)
        yield _nothing()


def _refuse(*_asked: object) -> NoReturn:
    raise Refusal(
        Code.INVALID_PARAMETER, "The models of this server lie on another machine. Change them there.", param="model"
    )


async def _nothing() -> AsyncIterator[Step]:
    steps: Sequence[Step] = ()
    for step in steps:
        yield step


def _stored(model: ModelInfo) -> StoredModel:
    return StoredModel(
        id=model.id,
        name=full_name(model.id) or model.id,
        size_bytes=model.size_bytes,
        modified=float(model.created),
        digest=hashlib.sha256(model.id.encode()).hexdigest(),
        digest_known=False,
        details=ModelDetails(family=model.architecture or "", quantization_level=model.quantization or ""),
        context_length=model.context_size,
    )
