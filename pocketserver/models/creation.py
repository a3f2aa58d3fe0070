"""Makes a model over another one's weights: what is asked for is checked first, then done as a whole or not at all."""

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from pocketserver.errors import Code, Refusal
from pocketserver.models.gguf import BadModelFile
from pocketserver.models.gguf_folder import belongs_to
from pocketserver.models.installed import InstalledModel, Origin
from pocketserver.models.journal import Change, changing
from pocketserver.models.modelfile import MAX_MESSAGES, Modelfile, ModelfileFault, normal_line_ends, parse_modelfile
from pocketserver.models.names import key_of, stem_for
from pocketserver.models.options import checked_parameters
from pocketserver.models.settings_file import MAX_SETTINGS_BYTES, settings_bytes
from pocketserver.models.store import ModelStore, model_at
from pocketserver.models.stored import CreateSpec, ModelSettings, Step, StoredMessage, is_go_template

COPY_BYTES = 4 << 20
COPY_ATTEMPTS = 5
SPARE_BYTES = 64 << 20
_MADE_FROM_NOTHING = "neither 'from' or 'files' was specified; give 'from', or a 'modelfile' with a FROM line"


@dataclass(frozen=True, slots=True, kw_only=True)
class Creation:
    """A model that can be made: everything about it has been checked."""

    name: str
    base: InstalledModel
    settings: ModelSettings
    warnings: tuple[str, ...] = ()


def plan_creation(spec: CreateSpec, store: ModelStore, *, local_files: bool) -> Creation:
    """Check what is asked for. Blocks. Raises Refusal as `ModelLibrary.create` says."""
    check_name(spec.name)
    spec, warnings = with_modelfile(spec)
    if not spec.base:
        raise Refusal(Code.INVALID_PARAMETER, _MADE_FROM_NOTHING, param="from")
    base = _base(spec.base, store, local_files=local_files)
    parameters, unknown = checked_parameters(spec.parameters)
    if unknown:
        raise Refusal(Code.INVALID_PARAMETER, f"unknown parameter {unknown[0][:80]!a}", param="parameters")
    template, said = _template(spec.template, base)
    settings = ModelSettings(
        system=_given(spec.system, base.settings.system),
        template=template,
        parameters={**base.settings.parameters, **parameters},
        messages=base.settings.messages if spec.messages is None else _messages(spec.messages),
        license=base.settings.license if spec.license is None else tuple(map(normal_line_ends, spec.license)),
        parent="" if key_of(base.id) == key_of(spec.name) else base.id,
        modified=time.time(),
    )
    _check_text(settings)
    return Creation(name=spec.name, base=base, settings=settings, warnings=(*warnings, *said))


def carry_out(creation: Creation, store: ModelStore, report: Callable[[Step], None], stop: threading.Event) -> None:
    """Make the model. Blocks for as long as copying takes where the weights cannot be linked. Raises Refusal."""
    for warning in creation.warnings:
        report(Step(status=f"warning: {warning}"))
    try:
        with changing(store.folder) as change:
            _fill(change, creation, store, report, stop)
            if not stop.is_set():
                _check_unchanged(creation.base, store)
                report(Step(status="writing manifest"))
                change.commit()
    except FileNotFoundError as error:
        raise not_found(creation.base.id) from error
    except OSError as error:
        raise Refusal(
            Code.INTERNAL_ERROR, f"The model could not be stored: {error.strerror}. Look at the server's disk."
        ) from error


def copy_model(source: str, destination: str, store: ModelStore) -> None:
    """Give a model a second name. Blocks. Raises Refusal."""
    for _ in range(COPY_ATTEMPTS):
        with contextlib.suppress(_Changed):
            return _copy_once(source, destination, store)
    raise _Changed(source)


def _copy_once(source: str, destination: str, store: ModelStore) -> None:
    if stem_for(source) is None and store.find(source) is None:
        raise Refusal(Code.INVALID_PARAMETER, f'source "{_shown(source)}" is invalid', param="source")
    if stem_for(destination) is None:
        raise Refusal(Code.INVALID_PARAMETER, f'destination "{_shown(destination)}" is invalid', param="destination")
    model = store.find(source)
    if model is None:
        raise Refusal(Code.MODEL_NOT_FOUND, f'model "{_shown(source)}" not found', param="source")
    if key_of(source) == key_of(destination):
        return
    settings = msgspec.structs.replace(model.settings, modified=time.time())
    copied = Creation(name=destination, base=sound(model, "source"), settings=settings)
    carry_out(copied, store, lambda _step: None, threading.Event())


class _Changed(Refusal):
    """The base was replaced while a model was made of it: its settings and weights may be of two models."""

    def __init__(self, name: str) -> None:
        super().__init__(
            Code.MODEL_BUSY, f"{_shown(name)} was changed by another request meanwhile. Send it again.", retry_after=1
        )


def _check_unchanged(base: InstalledModel, store: ModelStore) -> None:
    if base.origin is not Origin.FILE and store.find(base.id) != base:
        raise _Changed(base.id)


def check_name(name: str) -> None:
    """Raises INVALID_PARAMETER for words that a new model cannot have as its name."""
    if not name:
        raise Refusal(Code.INVALID_PARAMETER, "model is required", param="model")
    if stem_for(name) is None:
        raise Refusal(Code.INVALID_PARAMETER, "invalid model name", param="model")


def not_found(name: str, param: str = "model") -> Refusal:
    """The refusal of a name that no model has, in the words that Ollama's clients look for."""
    return Refusal(Code.MODEL_NOT_FOUND, f"model '{_shown(name)}' not found", param=param)


def sound(model: InstalledModel, param: str) -> InstalledModel:
    """The model itself, when its file is whole. Raises INVALID_PARAMETER with what is wrong."""
    if model.fault is not None:
        raise Refusal(Code.INVALID_PARAMETER, model.fault.without_folder(), param=param)
    return model


def with_modelfile(spec: CreateSpec) -> tuple[CreateSpec, tuple[str, ...]]:
    """The fields, with those of the Modelfile where they say nothing themselves."""
    if spec.modelfile is None:
        return spec, ()
    try:
        said = parse_modelfile(spec.modelfile)
    except ModelfileFault as fault:
        raise Refusal(Code.INVALID_PARAMETER, str(fault), param="modelfile") from fault
    return _merged(spec, said), said.warnings


def _merged(spec: CreateSpec, said: Modelfile) -> CreateSpec:
    return replace(
        spec,
        base=spec.base or said.base,
        system=said.system if spec.system is None else spec.system,
        template=said.template if spec.template is None else spec.template,
        parameters={**said.parameters, **spec.parameters},
        messages=(said.messages or None) if spec.messages is None else spec.messages,
        license=(said.license or None) if spec.license is None else spec.license,
    )


def _base(name: str, store: ModelStore, *, local_files: bool) -> InstalledModel:
    """An installed model, or the file at a path. Whether a file is there is told only to those who may use it."""
    found = store.find(name)
    if found is not None:
        return sound(found, "from")
    if not _is_path(name):
        raise not_found(name, "from")
    if not local_files:
        raise Refusal(
            Code.INVALID_PARAMETER,
            "A file is taken only from callers on the server itself. Name a model.",
            param="from",
        )
    path = Path(name).expanduser()
    if not path.is_absolute():
        raise Refusal(Code.INVALID_PARAMETER, "file path must be absolute, or the name of a model", param="from")
    try:
        return model_at(path)
    except BadModelFile as fault:
        raise Refusal(Code.INVALID_PARAMETER, fault.without_folder(), param="from") from fault


def _is_path(name: str) -> bool:
    return name.endswith(".gguf") or name.startswith(("/", "~", ".")) or "\\" in name or Path(name).is_absolute()


def _template(given: str | None, base: InstalledModel) -> tuple[str, tuple[str, ...]]:
    """The template to set, empty for the weights' own, and what there is to say about it.

    One in Go's syntax cannot be run. It is kept, so that the Modelfile shows it again, and conversations are rendered
    with the weights' own template.
    """
    if given is None:
        return base.settings.template, ()
    given = normal_line_ends(given)
    own = base.checked().chat_template or ""
    if not given or given == normal_line_ends(own):
        return "", ()
    for opening, closing in (("{{", "}}"), ("{%", "%}")):
        if given.rfind(opening) > given.rfind(closing):
            raise Refusal(
                Code.INVALID_PARAMETER, f"template error: {opening} without {closing} at its end", param="template"
            )
    if is_go_template(given):
        effect = "the model's own is used" if own else "and the model has none of its own, so it cannot chat"
        return given, (f"The template is written for Go and only kept; {effect}. Give a Jinja template instead.",)
    return given, ()


def _given(text: str | None, inherited: str) -> str:
    return inherited if text is None else normal_line_ends(text)


def _messages(given: tuple[StoredMessage, ...]) -> tuple[StoredMessage, ...]:
    if len(given) > MAX_MESSAGES:
        raise Refusal(Code.INVALID_PARAMETER, f"at most {MAX_MESSAGES:,} messages are kept", param="messages")
    return tuple(msgspec.structs.replace(each, content=normal_line_ends(each.content)) for each in given)


def _check_text(settings: ModelSettings) -> None:
    try:
        size = len(settings_bytes(settings))
    except UnicodeEncodeError as error:
        raise Refusal(Code.INVALID_PARAMETER, "A text has half of a character (a lone surrogate).") from error
    if size > MAX_SETTINGS_BYTES:
        raise Refusal(Code.INVALID_PARAMETER, f"The settings have more than {MAX_SETTINGS_BYTES >> 20} MiB.")


def _fill(
    change: Change, creation: Creation, store: ModelStore, report: Callable[[Step], None], stop: threading.Event
) -> None:
    stem = store.stem_of(creation.name)
    change.clear(belongs_to(stem))
    digest, _ = store.digests.of(creation.base)
    weights = creation.base.weights
    for number, part in enumerate(weights, start=1):
        ending = f"-{number:05}-of-{len(weights):05}.gguf" if len(weights) > 1 else ".gguf"
        target = change.place(stem + ending)
        if _linked(part, target):
            report(Step(status=f"using existing layer sha256:{digest}"))
        else:
            _copy(part, target, digest, report, stop)
    change.place(f"{stem}.toml").write_bytes(settings_bytes(creation.settings))


def _linked(source: Path, target: Path) -> bool:
    try:
        os.link(source.resolve(strict=True), target)
    except FileNotFoundError:
        raise
    except OSError:  # another file system, one without hard links, or a file that is not ours to link
        return False
    return True


def _copy(source: Path, target: Path, digest: str, report: Callable[[Step], None], stop: threading.Event) -> None:
    total = source.stat().st_size
    free = shutil.disk_usage(target.parent).free
    if free < total + SPARE_BYTES:
        raise Refusal(
            Code.INTERNAL_ERROR, f"The weights take {total >> 20:,} MiB, {free >> 20:,} MiB are free. Make room."
        )
    done = 0
    with source.open("rb", buffering=0) as reader, target.open("xb", buffering=0) as writer:
        while not stop.is_set() and (block := reader.read(COPY_BYTES)):
            writer.write(block)
            done += len(block)
            report(Step(status="creating new layer", digest=f"sha256:{digest}", total=total, completed=done))


def _shown(name: str) -> str:
    """A stranger's word in an error line."""
    text = name if name.isprintable() else ascii(name)[1:-1]
    return text if len(text) <= 80 else text[:79] + "…"
