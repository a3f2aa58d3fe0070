"""One installed model: its files, what they say of it, and what its name adds."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from pocketserver.chat import ModelInfo
from pocketserver.models.gguf import BadModelFile, GgufMetadata, read_metadata, split_name
from pocketserver.models.names import full_name, key_of
from pocketserver.models.stored import ModelDetails, ModelSettings, StoredModel


class Origin(StrEnum):
    """Whose folder a model lies in; only what is in our own may be changed."""

    OWN = "own"
    FOLDER = "folder"
    OLLAMA = "ollama"
    FILE = "file"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledModel:
    """A model on disk. Exactly one of `metadata` and `fault` is there; a model with a fault is listed, never loaded.

    `path` is the first file of a split model, `files` are all that belong to its name, settings too; `size_bytes` is
    the sum over the weights. `created` is in Unix seconds. `digest` is known without reading where a store names it.
    """

    id: str
    path: Path
    size_bytes: int
    created: int
    metadata: GgufMetadata | None = None
    fault: BadModelFile | None = None
    settings: ModelSettings = field(default_factory=ModelSettings)
    files: tuple[Path, ...] = ()
    origin: Origin = Origin.FOLDER
    digest: str | None = None

    @property
    def key(self) -> str:
        """What is equal for all ways to say the name."""
        return key_of(self.id)

    @property
    def problem(self) -> str | None:
        """Why the file is broken, as a sentence without its folder; None when it is sound."""
        return None if self.fault is None else self.fault.without_folder()

    @property
    def weights(self) -> tuple[Path, ...]:
        """The files with the model's tensors, in order."""
        return self.metadata.parts if self.metadata else (self.path,)

    @property
    def template(self) -> str:
        """The template set for this name, else the model's own; empty when there is none."""
        own = self.metadata.chat_template if self.metadata else None
        return self.settings.template or own or ""

    def checked(self) -> GgufMetadata:
        """What the file says of itself. Raises `BadModelFile` when it is broken."""
        if self.fault is not None:
            raise BadModelFile(self.fault.path, self.fault.reason, self.fault.remedy)  # one instance, one raising
        assert self.metadata is not None
        return self.metadata

    def info(self, *, loaded: bool = False, context_size: int | None = None) -> ModelInfo:
        """The model as lists show it. `context_size` is what it is served with, when it is loaded."""
        known = self.metadata
        return ModelInfo(
            id=self.id,
            loaded=loaded,
            created=self.created,
            size_bytes=self.size_bytes,
            quantization=known.quantization if known else None,
            architecture=known.architecture if known else None,
            parameters=known.parameter_count if known else None,
            context_size=context_size or (known.context_length if known else None),
        )

    def stored(self, digest: str, *, digest_known: bool) -> StoredModel:
        """The model as a library tells of it."""
        known = self.metadata
        runs_own = known is not None and known.chat_template is not None
        return StoredModel(
            id=self.id,
            name=full_name(self.id),
            size_bytes=self.size_bytes,
            modified=self.settings.modified or float(self.created),
            digest=digest,
            digest_known=digest_known,
            details=self._details(),
            path=self.path,
            settings=self.settings,
            context_length=known.context_length if known else None,
            embedding_length=known.embedding_length if known else None,
            has_template=runs_own or self.settings.jinja_template is not None,
            is_encoder=known is not None and known.is_encoder,
            problem=self.problem,
        )

    def _details(self) -> ModelDetails:
        if self.metadata is None:
            return ModelDetails(parent_model=self.settings.parent)
        return ModelDetails(
            parent_model=self.settings.parent,
            family=self.metadata.architecture,
            families=(self.metadata.architecture,),
            parameter_size=parameter_size(self.metadata.parameter_count),
            quantization_level=self.metadata.quantization,
        )


def model_at(path: Path) -> InstalledModel:
    """A model anywhere on disk, under the name of its file. Raises `BadModelFile`."""
    metadata = read_metadata(path)
    split = split_name(path.name)
    return InstalledModel(
        id=split[0] if split else path.stem or path.name,
        path=path,
        size_bytes=metadata.size_bytes,
        created=int(path.stat().st_mtime),
        metadata=metadata,
        files=metadata.parts,
        origin=Origin.FILE,
    )


def parameter_size(count: int) -> str:
    """A number of parameters as Ollama writes it: `134.52M`, `1.2B`."""
    if count >= 1_000_000_000:
        return f"{count / 1e9:.1f}B"
    if count >= 1_000_000:
        return f"{count / 1e6:.2f}M"
    return f"{count / 1e3:.0f}K" if count >= 1_000 else str(count)
