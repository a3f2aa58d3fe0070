"""The words in which a model library speaks: what is stored, what is asked of it, and how far it is. No files here."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from pocketserver.chat import JsonValue

ParameterValue: TypeAlias = bool | int | float | str | list[str]
"""The value of an Ollama option, checked by `options.py`; `stop` is the one list."""

_GO_ACTION = re.compile(r"\{\{-?\s*(?:\.|\$|/\*|if\b|range\b|end\b|else\b|with\b|template\b|define\b|block\b)")


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that every conversation with the model begins with."""

    role: Literal["system", "user", "assistant"]
    content: str


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a name adds to its weights: the content of `<name>.toml`, or of an Ollama manifest's small layers.

    Empty texts and lists mean that nothing is set. `parameters` have Ollama's option names. `parent` is the model that
    this one was made from. `modified` is in Unix seconds; 0 means that the time of the weights counts.
    """

    system: str = ""
    template: str = ""
    parameters: Mapping[str, ParameterValue] = msgspec.field(default_factory=dict)
    messages: tuple[StoredMessage, ...] = ()
    license: tuple[str, ...] = ()
    parent: str = ""
    modified: float = 0.0

    @property
    def jinja_template(self) -> str | None:
        """The template to render conversations with in place of the model's own; None when there is none to run."""
        return self.template if self.template and not is_go_template(self.template) else None


def is_go_template(text: str) -> bool:
    """Whether a template is written for Ollama's Go templates, which nothing here can run."""
    return _GO_ACTION.search(text) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDetails:
    """Ollama's `details`: `parameter_size` like `134.52M`, `quantization_level` like `Q4_1`."""

    parent_model: str = ""
    format: str = "gguf"
    family: str = ""
    families: tuple[str, ...] = ()
    parameter_size: str = ""
    quantization_level: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModel:
    """One installed model under one name.

    `id` is the shortest way to say the name (`tiny`, `tiny:q4`, `ns/tiny`); `name` always has its tag (`tiny:latest`).
    `path` is the first file of the weights, None where there are no files. `modified` is in Unix seconds. `digest` is
    the SHA-256 of the weights in 64 hexadecimal digits; while it is not known yet (`digest_known` false), a stable
    stand-in made from the size and both ends of the file. `context_length` is in tokens, as trained.
    `has_template` says whether conversations can be rendered; `is_encoder` models only embed.
    `problem` is why the model cannot be loaded, as a sentence without folders; such models are not in lists.
    """

    id: str
    name: str
    size_bytes: int
    modified: float
    digest: str
    details: ModelDetails
    path: Path | None = None
    digest_known: bool = True
    settings: ModelSettings = field(default_factory=ModelSettings)
    context_length: int | None = None
    embedding_length: int | None = None
    has_template: bool = True
    is_encoder: bool = False
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownModel:
    """Everything about one model. The texts are empty when there is none.

    `modelfile` makes the same model again. `parameters` is one option a line, names padded to 30 characters.
    `template` is the one set for this name, else the model's own. `model_info` are the file's metadata by key, arrays
    as None unless they were asked for, and `general.parameter_count`.
    """

    model: StoredModel
    modelfile: str
    parameters: str
    template: str
    system: str
    license: str
    model_info: Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateSpec:
    """A model to be made: `name` over `base`, an installed model's name or the path of a local GGUF file.

    What is None is inherited from the base, what is empty is cleared. `parameters` merge with the base's by key, values
    unchecked as they came (`stop` a text or a list). `modelfile` says the same as text; fields given beside it win.
    """

    name: str
    base: str | None = None
    system: str | None = None
    template: str | None = None
    parameters: Mapping[str, JsonValue] = field(default_factory=dict)
    messages: tuple[StoredMessage, ...] | None = None
    license: tuple[str, ...] | None = None
    modelfile: str | None = None


class Step(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a pull or a creation is, one line of Ollama's NDJSON as it stands (`msgspec.json.encode(step)`).

    `status` is `pulling manifest`, `pulling 0123456789ab` (with digest, total and completed in bytes), `verifying
    sha256 digest`, `writing manifest`, …, at last `success`. One that begins with `warning: ` tells what has no effect.
    """

    status: str
    digest: str = ""
    total: int = 0
    completed: int = 0


SUCCESS = Step(status="success")
"""The last step of whatever came to its end; a stream without it has failed."""
