"""Every model of this machine behind one face: what the wire layer asks, kept off the event loop."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from pocketserver.models.stored import (
    CreateSpec,
    ModelDetails,
    ModelSettings,
    ShownModel,
    Step,
    StoredMessage,
    StoredModel,
)

__all__ = [
    "CreateSpec",
    "ModelDetails",
    "ModelLibrary",
    "ModelSettings",
    "ShownModel",
    "Step",
    "StoredMessage",
    "StoredModel",
]


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
