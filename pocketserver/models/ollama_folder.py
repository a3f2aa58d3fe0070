"""An Ollama models folder, read in place: manifests that name blobs. Nothing in it is ever written.

The folder belongs to another program, so every fault in it costs one model, never the list.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from pocketserver.models.gguf import BadModelFile, read_metadata
from pocketserver.models.installed import InstalledModel, Origin
from pocketserver.models.names import full_name, model_id
from pocketserver.models.options import OPTIONS, OptionFault, checked_value
from pocketserver.models.stored import ModelSettings, ParameterValue, StoredMessage

MAX_MANIFEST_BYTES = 1 << 20
MAX_LAYER_BYTES = 4 << 20
MAX_MANIFESTS = 10_000
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")
_KIND = "application/vnd.ollama.image."

_Signature: TypeAlias = tuple[tuple[int, int], ...]


class _Layer(msgspec.Struct, frozen=True):
    media_type: str = msgspec.field(name="mediaType")
    digest: str


class _Manifest(msgspec.Struct, frozen=True):
    layers: list[_Layer]


class _Skipped(Exception):  # noqa: N818 - a finding
    """Why a manifest is passed over, as the end of a sentence that begins with its name."""


class OllamaFolder:
    """The models of a folder that Ollama keeps."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[Path, tuple[_Signature, InstalledModel]] = {}
        self.skipped: dict[str, str] = {}
        """Models that cannot be served, with the reason."""

    def scan(self) -> list[InstalledModel]:
        """All models whose manifest and weights are whole, by name."""
        models: dict[str, InstalledModel] = {}
        skipped: dict[str, str] = {}
        seen: dict[Path, tuple[_Signature, InstalledModel]] = {}
        for name, manifest in self._manifests():
            try:
                seen[manifest] = known = self._model(name, manifest)
                models.setdefault(known[1].key, known[1])
            except _Skipped as fault:
                skipped[name] = str(fault)
        self._known, self.skipped = seen, skipped
        return list(models.values())

    def _manifests(self) -> Iterator[tuple[str, Path]]:
        """Full names with their manifests: `manifests/HOST/NAMESPACE/MODEL/TAG`."""
        root = self.folder / "manifests"
        for count, path in enumerate(sorted(root.glob("*/*/*/*"))):
            if count == MAX_MANIFESTS:
                return
            if not path.name.startswith("."):
                host, namespace, model, tag = path.relative_to(root).parts
                yield full_name(f"{host}/{namespace}/{model}:{tag}"), path

    def _model(self, name: str, manifest: Path) -> tuple[_Signature, InstalledModel]:
        layers = self._layers(manifest)
        weights = layers[f"{_KIND}model"][0]
        signature = tuple((stat.st_size, stat.st_mtime_ns) for stat in (manifest.stat(), _stat(weights)))
        known = self._known.get(manifest)
        if known is None or known[0] != signature:
            known = (signature, _read(name, manifest, layers))
        return known

    def _layers(self, manifest: Path) -> dict[str, list[Path]]:
        """The blobs by media type; there is at least one with weights."""
        try:
            document = msgspec.json.decode(_bytes_of(manifest, MAX_MANIFEST_BYTES), type=_Manifest)
        except msgspec.DecodeError as error:
            raise _Skipped(f"has a manifest that is none ({error})") from error
        layers: dict[str, list[Path]] = {}
        for layer in document.layers:
            found = _DIGEST.fullmatch(layer.digest)
            if found is None:
                raise _Skipped(f"names a layer {layer.digest[:80]!a}, which is no digest")
            layers.setdefault(layer.media_type, []).append(self.folder / "blobs" / f"sha256-{found[1]}")
        if f"{_KIND}model" not in layers:
            raise _Skipped("names no weights")
        if f"{_KIND}adapter" in layers:
            raise _Skipped("is a LoRA adapter over another model, which is not supported")
        return layers


def _read(name: str, manifest: Path, layers: dict[str, list[Path]]) -> InstalledModel:
    weights = layers[f"{_KIND}model"][0]
    try:
        metadata = read_metadata(weights)
    except BadModelFile as fault:
        raise _Skipped(f"cannot be served: {fault.without_folder()}") from fault
    return InstalledModel(
        id=model_id(name),
        path=weights,
        size_bytes=metadata.size_bytes,
        created=int(manifest.stat().st_mtime),
        metadata=metadata,
        settings=_settings(layers),
        files=metadata.parts,
        origin=Origin.OLLAMA,
        digest=weights.name.removeprefix("sha256-"),
    )


def _settings(layers: dict[str, list[Path]]) -> ModelSettings:
    return ModelSettings(
        system="".join(_texts(layers, "system")),
        template="".join(_texts(layers, "template")),
        parameters=_parameters(layers),
        messages=_messages(layers),
        license=tuple(_texts(layers, "license")),
    )


def _texts(layers: dict[str, list[Path]], kind: str) -> list[str]:
    return [_bytes_of(path, MAX_LAYER_BYTES).decode(errors="replace") for path in layers.get(_KIND + kind, ())]


def _parameters(layers: dict[str, list[Path]]) -> dict[str, ParameterValue]:
    """Options of the table with values that they can have; others belong to another version of Ollama."""
    parameters: dict[str, ParameterValue] = {}
    for text in _texts(layers, "params"):
        try:
            given: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise _Skipped(f"has parameters that are none ({error})") from error
        for name, value in given.items():
            if name in OPTIONS and value is not None:
                try:
                    parameters[name] = checked_value(name, value)
                except OptionFault as fault:
                    raise _Skipped(f"has a parameter that cannot be ({fault})") from fault
    return parameters


def _messages(layers: dict[str, list[Path]]) -> tuple[StoredMessage, ...]:
    messages: list[StoredMessage] = []
    for text in _texts(layers, "messages"):
        try:
            messages += msgspec.json.decode(text, type=list[StoredMessage])
        except msgspec.DecodeError as error:
            raise _Skipped(f"has messages that are none ({error})") from error
    return tuple(messages)


def _bytes_of(path: Path, limit_bytes: int) -> bytes:
    if _stat(path).st_size > limit_bytes:
        raise _Skipped(f"has a part of more than {limit_bytes >> 20} MiB ({path.name})")
    try:
        return path.read_bytes()
    except OSError as error:
        raise _Skipped(f"cannot be read ({path.name}: {error.strerror})") from error


def _stat(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:
        raise _Skipped(f"lacks {path.name} ({error.strerror})") from error
