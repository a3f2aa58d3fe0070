"""Every model of this machine behind one face: what the wire layer asks, kept off the event loop."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Protocol, Self, TypeVar

import msgspec

from pocketserver.errors import Code, Refusal, StartupError
from pocketserver.models.catalog import Catalog
from pocketserver.models.creation import Creation, carry_out, copy_model, not_found, plan_creation, sound
from pocketserver.models.gguf_info import read_model_info
from pocketserver.models.installed import InstalledModel, Origin
from pocketserver.models.modelfile import write_modelfile
from pocketserver.models.options import text_of_value
from pocketserver.models.pull import PullMeans
from pocketserver.models.pull_fault import as_refusal
from pocketserver.models.shared_pull import SharedPull
from pocketserver.models.step_stream import StepStream
from pocketserver.models.store import ModelStore, read_only
from pocketserver.models.stored import (
    SUCCESS,
    CreateSpec,
    ModelDetails,
    ModelSettings,
    ShownModel,
    Step,
    StoredMessage,
    StoredModel,
)
from pocketserver.models.threads import in_thread

__all__ = [
    "CreateSpec",
    "DiskLibrary",
    "ModelDetails",
    "ModelLibrary",
    "ModelSettings",
    "ShownModel",
    "Step",
    "StoredMessage",
    "StoredModel",
]

_Result = TypeVar("_Result")

HASHING_REST = 3.0
"""Seconds of rest for each second of hashing in the background: a quarter of one core."""


class ModelLibrary(Protocol):
    """Installed models and those that can be fetched. Names may lack `:latest` and are compared without case.

    Refusals: MODEL_NOT_FOUND with `model 'x' not found`, INVALID_PARAMETER for names that cannot be one
    (`invalid model name`), for faults of a Modelfile (with the line) and of a field. None of them tells a folder.
    """

    async def installed(self) -> Sequence[StoredModel]:
        """All loadable models, last modified first. Quick: what has not changed on disk is not read again."""
        ...

    async def find(self, name: str) -> StoredModel | None:
        """The model of this name, a broken one too (`problem`); None for every other word, whatever it contains."""
        ...

    async def show(self, name: str, *, verbose: bool = False) -> ShownModel:
        """Everything about a model; `verbose` with the metadata's arrays. Raises MODEL_NOT_FOUND."""
        ...

    def create(
        self, spec: CreateSpec, *, local_files: bool = False
    ) -> AbstractAsyncContextManager[AsyncIterator[Step]]:
        """Make a model; an existing one of this name is replaced as a whole.

        Entering raises every refusal that can be known before work begins (name, base, values), so that a status can
        still be sent; iterating does the work and may still raise. Leaving the block before `success` leaves nothing.
        `local_files` allows the path of a file as base: for callers on this machine.
        """
        ...

    async def copy(self, source: str, destination: str) -> None:
        """A second name for a model, weights linked; an existing destination is replaced. Raises MODEL_NOT_FOUND."""
        ...

    async def delete(self, name: str) -> None:
        """Remove a name; weights stay while another name has them. The caller unloads the model first.

        Raises MODEL_NOT_FOUND, or INVALID_PARAMETER for a model in a folder that is only read (Ollama's own).
        """
        ...

    def pull(self, name: str) -> AbstractAsyncContextManager[AsyncIterator[Step]]:
        """Fetch a model of the catalogue; one that is there is only checked.

        Entering raises MODEL_NOT_FOUND for a name that the catalogue has not, before anything is sent anywhere.
        Iterating may raise UPSTREAM_FAILED or UPSTREAM_UNREACHABLE. Pulls of one model share the work; when the last
        reader leaves its block, the work stops and what was fetched waits for the next pull.
        """
        ...


class DiskLibrary:
    """The library over the folders of this machine.

    Inside `async with` it computes unknown digests in the background, slowly; elsewhere they stay stand-ins. `warn` is
    told, once each, of what lies in the folders and cannot be served.
    """

    def __init__(
        self,
        store: ModelStore,
        catalog: Catalog,
        *,
        means: PullMeans | None = None,
        warn: Callable[[str], None] = lambda _sentence: None,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._means = means or PullMeans()
        self._warn = warn
        self._warned: set[str] = set()
        self._pulls: dict[str, SharedPull] = {}
        self._hashing: asyncio.Task[None] | None = None
        self._look_for_unknown = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._hashing = asyncio.create_task(self._keep_hashing(), name="digests of models")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._hashing is not None
        self._hashing.cancel()
        await asyncio.wait({self._hashing})

    async def installed(self) -> Sequence[StoredModel]:
        models = await _ask(self._installed)
        if not all(model.digest_known for model in models):
            self._look_for_unknown.set()
        return models

    async def find(self, name: str) -> StoredModel | None:
        return await _ask(lambda: self._find(name))

    async def show(self, name: str, *, verbose: bool = False) -> ShownModel:
        return await _ask(lambda: self._show(name, verbose=verbose))

    @asynccontextmanager
    async def create(self, spec: CreateSpec, *, local_files: bool = False) -> AsyncIterator[AsyncIterator[Step]]:
        creation = await _ask(lambda: plan_creation(spec, self._store, local_files=local_files))
        steps = StepStream()
        working = asyncio.create_task(self._carry_out(creation, steps), name=f"create {creation.name}")
        try:
            yield steps
        finally:
            working.cancel()
            await asyncio.wait({working})

    async def copy(self, source: str, destination: str) -> None:
        await _ask(lambda: copy_model(source, destination, self._store))

    async def delete(self, name: str) -> None:
        await _ask(lambda: self._delete(name))

    @asynccontextmanager
    async def pull(self, name: str) -> AsyncIterator[AsyncIterator[Step]]:
        entry = self._catalog.find(name)
        if entry is None:
            raise not_found(name)
        shared = self._pulls.get(entry.name)
        if shared is None or shared.ended:
            shared = self._pulls[entry.name] = SharedPull(entry, self._store, self._means)
        steps = shared.join()
        try:
            yield steps
        finally:
            await shared.leave(steps)
            if shared.ended and self._pulls.get(entry.name) is shared:
                del self._pulls[entry.name]

    def _installed(self) -> list[StoredModel]:
        models = [self._stored(model) for model in self._store.list() if model.fault is None]
        self._tell_skipped()
        return sorted(models, key=lambda model: model.modified, reverse=True)

    def _tell_skipped(self) -> None:
        broken = [model.problem for model in self._store.list() if model.problem is not None]
        for sentence in (*self._store.skipped(), *broken):
            if sentence not in self._warned and len(self._warned) < 1_000:
                self._warned.add(sentence)
                self._warn(sentence)

    def _find(self, name: str) -> StoredModel | None:
        model = self._store.find(name)
        return None if model is None else self._stored(model)

    def _stored(self, model: InstalledModel) -> StoredModel:
        digest, known = self._store.digests.of(model)
        return model.stored(digest, digest_known=known)

    def _show(self, name: str, *, verbose: bool) -> ShownModel:
        model = self._store.find(name)
        if model is None:
            raise not_found(name)
        metadata = sound(model, "model").checked()
        info = read_model_info(model.path, metadata.parameter_count, arrays=verbose)
        settings = model.settings
        comments = (f"To change this model, write FROM {model.id} and below it only what is to be different.",)
        return ShownModel(
            model=self._stored(model),
            modelfile=write_modelfile(model.id, settings, template=model.template, comments=comments),
            parameters="\n".join(_parameter_lines(settings)),
            template=model.template,
            system=settings.system,
            license="\n".join(settings.license) or str(info.get("general.license") or ""),
            model_info=info,
        )

    def _delete(self, name: str) -> None:
        model = self._store.find(name)
        if model is None:
            raise not_found(name)
        if model.origin is not Origin.OWN:
            raise Refusal(Code.INVALID_PARAMETER, read_only(model), param="model")
        self._store.remove(model.id)

    async def _carry_out(self, creation: Creation, steps: StepStream) -> None:
        report = steps.reporter()
        try:
            await in_thread(lambda stop: carry_out(creation, self._store, report, stop))
        except (Refusal, StartupError) as error:
            steps.fail(as_refusal(error))
        except Exception:
            steps.fail(Refusal(Code.INTERNAL_ERROR, "The model could not be made. Look at the server's log."))
            raise
        else:
            steps.put(SUCCESS)
            steps.close()

    async def _keep_hashing(self) -> None:
        while True:
            await self._look_for_unknown.wait()
            self._look_for_unknown.clear()
            for path in await _ask(lambda: self._store.digests.unknown(self._store.list())):
                with contextlib.suppress(OSError):  # it vanished, or may not be read
                    await in_thread(partial(self._store.digests.compute, path, rest=HASHING_REST))


async def _ask(work: Callable[[], _Result]) -> _Result:
    """Blocking work in a thread; what keeps a command from its work refuses a request."""
    try:
        return await asyncio.to_thread(work)
    except StartupError as error:
        raise as_refusal(error) from error


def _parameter_lines(settings: ModelSettings) -> list[str]:
    """One option a line, names padded as Ollama does, texts in quotes."""
    return [
        f"{name:<30} {_quoted(text) if isinstance(value, list | str) else text}"
        for name, value in settings.parameters.items()
        for text in text_of_value(value)
    ]


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()
