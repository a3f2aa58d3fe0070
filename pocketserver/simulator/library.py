"""The simulated device's models behind the face of a model library: store commands act on its list in memory."""

import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import msgspec

from pocketserver.chat import JsonValue
from pocketserver.engines.sim.device import MODEL_CREATED, SimModel
from pocketserver.engines.sim.engine import SimEngine
from pocketserver.errors import Code, Refusal
from pocketserver.models.creation import with_modelfile
from pocketserver.models.library import CreateSpec, ModelDetails, ModelSettings, ShownModel, Step, StoredModel
from pocketserver.models.modelfile import write_modelfile
from pocketserver.models.names import full_name, key_of, model_id, stem_for
from pocketserver.models.options import checked_parameters, text_of_value
from pocketserver.models.stored import SUCCESS
from pocketserver.wire.ollama_models import Capabilities

_EMBEDDING_LENGTH = 2048
_PULL_PIECES = 4
_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


class SimLibrary:
    """Implements `ModelLibrary`. What it is told is forgotten when the device is reset or switched off."""

    def __init__(self, engine: SimEngine, *, unix_time: Callable[[], float]) -> None:
        self._engine = engine
        self._unix_time = unix_time
        self._settings: dict[str, ModelSettings] = {}

    async def installed(self) -> Sequence[StoredModel]:
        return sorted(map(self._stored, self._models), key=lambda model: model.modified, reverse=True)

    async def find(self, name: str) -> StoredModel | None:
        return next((self._stored(model) for model in self._models if key_of(model.id) == key_of(name)), None)

    async def show(self, name: str, *, verbose: bool = False) -> ShownModel:
        stored = await self._known(name)
        settings, model = stored.settings, self._device_model(stored.id)
        return ShownModel(
            model=stored,
            modelfile=write_modelfile(settings.parent or stored.name, settings),
            parameters=_parameters(settings),
            template=settings.template or _TEMPLATE,
            system=settings.system,
            license="\n".join(settings.license),
            model_info=_model_info(model, verbose=verbose),
        )

    @asynccontextmanager
    async def create(self, spec: CreateSpec, *, local_files: bool = False) -> AsyncIterator[AsyncIterator[Step]]:
        """As of a device without a disk: `local_files` names none here."""
        del local_files
        if stem_for(spec.name) is None:
            raise Refusal(Code.INVALID_PARAMETER, "invalid model name", param="model")
        spec, _ = with_modelfile(spec)
        base = await self._known(spec.base or "", "from")
        settings = _over(base, spec, self._unix_time())
        yield self._created(spec.name, base, settings)

    async def copy(self, source: str, destination: str) -> None:
        base = await self._known(source, "source")
        if key_of(source) != key_of(destination):
            settings = msgspec.structs.replace(base.settings, modified=self._unix_time())
            self._put(destination, base, settings)

    async def delete(self, name: str) -> None:
        stored = await self._known(name)
        self._replace_models([model for model in self._models if model.id != stored.id])
        self._settings.pop(stored.id, None)

    @asynccontextmanager
    async def pull(self, name: str) -> AsyncIterator[AsyncIterator[Step]]:
        """The device's own models are its catalogue."""
        stored = await self._known(name)
        yield _pulled(stored)

    async def examined(self, model: StoredModel) -> Capabilities | None:
        """What this model of the device can do."""
        found = self._device_model(model.id)
        return Capabilities(tools=found.tools, thinking=found.thinking, embedding=found.embeddings, insert=found.insert)

    @property
    def _models(self) -> Sequence[SimModel]:
        return self._engine.device.preset.models

    def _replace_models(self, models: Sequence[SimModel]) -> None:
        device = self._engine.device
        device.preset = msgspec.structs.replace(device.preset, models=tuple(models))

    def _device_model(self, identity: str) -> SimModel:
        return next(model for model in self._models if model.id == identity)

    async def _known(self, name: str, param: str = "model") -> StoredModel:
        found = await self.find(name)
        if found is None:
            raise Refusal(Code.MODEL_NOT_FOUND, f"model '{name[:80]}' not found", param=param)
        return found

    async def _created(self, name: str, base: StoredModel, settings: ModelSettings) -> AsyncIterator[Step]:
        yield Step(status=f"using existing layer sha256:{base.digest}")
        yield Step(status="writing manifest")
        self._put(name, base, settings)
        yield SUCCESS

    def _put(self, name: str, base: StoredModel, settings: ModelSettings) -> None:
        """The device gets a model of this name with the weights of another; one that has it is replaced."""
        model = msgspec.structs.replace(self._device_model(base.id), id=model_id(name))
        others = [other for other in self._models if key_of(other.id) != key_of(name)]
        self._replace_models([*others, model])
        self._settings[model.id] = settings

    def _stored(self, model: SimModel) -> StoredModel:
        settings = self._settings.get(model.id, ModelSettings())
        weights = f"{model.architecture} {model.quantization} {model.size_bytes}"
        return StoredModel(
            id=model.id,
            name=full_name(model.id),
            size_bytes=model.size_bytes,
            modified=settings.modified or MODEL_CREATED,
            digest=hashlib.sha256(weights.encode()).hexdigest(),
            details=ModelDetails(
                parent_model=settings.parent,
                family=model.architecture,
                families=(model.architecture,),
                parameter_size=f"{model.parameters / 1e9:.1f}B",
                quantization_level=model.quantization,
            ),
            settings=settings,
            context_length=model.context_size,
            embedding_length=_EMBEDDING_LENGTH,
        )


async def _pulled(model: StoredModel) -> AsyncIterator[Step]:
    digest, total = f"sha256:{model.digest}", model.size_bytes
    yield Step(status="pulling manifest")
    for piece in range(_PULL_PIECES + 1):
        completed = total * piece // _PULL_PIECES
        yield Step(status=f"pulling {model.digest[:12]}", digest=digest, total=total, completed=completed)
    yield Step(status="verifying sha256 digest")
    yield Step(status="writing manifest")
    yield SUCCESS


def _over(base: StoredModel, spec: CreateSpec, now: float) -> ModelSettings:
    """What the base has, with what is given in its place. Raises Refusal for parameters that cannot be."""
    own = base.settings
    parameters, unknown = checked_parameters(spec.parameters)
    if unknown:
        raise Refusal(Code.INVALID_PARAMETER, f"unknown parameter {unknown[0][:80]!a}", param="parameters")
    return ModelSettings(
        system=own.system if spec.system is None else spec.system,
        template=own.template if spec.template is None else spec.template,
        parameters={**own.parameters, **parameters},
        messages=own.messages if spec.messages is None else spec.messages,
        license=own.license if spec.license is None else spec.license,
        parent=base.name,
        modified=now,
    )


def _parameters(settings: ModelSettings) -> str:
    lines = [(name, text) for name, value in settings.parameters.items() for text in text_of_value(value)]
    return "\n".join(f"{name:<30} {text}" for name, text in lines)


def _model_info(model: SimModel, *, verbose: bool) -> Mapping[str, JsonValue]:
    architecture = model.architecture
    return {
        "general.architecture": architecture,
        "general.parameter_count": model.parameters,
        f"{architecture}.context_length": model.context_size,
        f"{architecture}.embedding_length": _EMBEDDING_LENGTH,
        "tokenizer.ggml.model": "simulated",
        "tokenizer.ggml.tokens": [] if verbose else None,
    }
