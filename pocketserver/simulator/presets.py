"""The shipped device presets, and presets of a person's own: TOML files that become `DevicePreset`s."""

import importlib.util
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pocketserver.engines.sim.device import DEFAULT_MODEL, DevicePreset, SimModel
from pocketserver.engines.sim.engine import SimEngine, SimOptions, generic
from pocketserver.engines.sim.tokens import Tokenizer
from pocketserver.errors import Refusal, StartupError, UsageError
from pocketserver.models.gguf import read_metadata
from pocketserver.settings import Settings
from pocketserver.settings_files import shipped_settings
from pocketserver.simulator.scenario import load_scenario

if TYPE_CHECKING:
    from pocketserver.engines.llama.tokenizer import ModelTokenizer

_DEFAULT_CONTEXT = 8192
_PROMPT_FACTOR = 10.0
"""Without a device: a prompt is read so many times as fast as an answer is written, as on phones."""


def preset_names() -> list[str]:
    return sorted(path.stem for path in (shipped_settings() / "devices").glob("*.toml"))


def load_preset(name: str) -> DevicePreset:
    """A shipped preset by name, or the TOML file at a path. Raises UsageError, one line."""
    path = Path(name) if name.endswith(".toml") else shipped_settings() / "devices" / f"{name}.toml"
    if not name.endswith(".toml") and name not in preset_names():
        allowed = ", ".join(preset_names())
        raise UsageError(f"device = {name!r} cannot be. Allowed: {allowed}, or the path of a TOML file.")
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        _read_sizes(values.get("models"), path.parent)
        return msgspec.convert({"name": path.stem, **values}, DevicePreset)
    except OSError as error:
        raise UsageError(f"The device file {path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"The device file {path} is not valid: {error}.") from error


def with_file(preset: DevicePreset, path: Path) -> DevicePreset:
    """The device with the model of a GGUF file in front of its own: sizes from the file, rates in proportion to them.

    Decoding is bound by memory bandwidth, so that a model twice as large answers half as fast. Raises BadModelFile.
    """
    known = preset.models[0]
    model = msgspec.convert(_sizes_of(path), SimModel)
    ratio = known.size_bytes / max(1, model.size_bytes)
    model = msgspec.structs.replace(
        model,
        prompt_tokens_per_second=known.prompt_tokens_per_second * ratio,
        tokens_per_second=known.tokens_per_second * ratio,
    )
    return msgspec.structs.replace(preset, models=(model, *preset.models))


def _read_sizes(models: object, folder: Path) -> None:
    """Fill in what the files of a device's models say of them; a path is relative to the device's own file."""
    for model in models if isinstance(models, list) else ():
        if isinstance(model, dict) and isinstance(model.get("file"), str):
            path = folder / model["file"]
            model |= {**_sizes_of(path), **model, "file": str(path)}


def _sizes_of(path: Path) -> dict[str, object]:
    metadata = read_metadata(path)
    return {
        "id": path.stem,
        "size_bytes": metadata.tensor_bytes,
        "kv_bytes_per_token": metadata.kv_cache_bytes(1),
        "context_size": max(16, metadata.context_length),
        "architecture": metadata.architecture,
        "quantization": metadata.quantization,
        "parameters": metadata.parameter_count,
        "file": str(path),
    }


def with_tokenizers(preset: DevicePreset, state_folder: Path) -> tuple[DevicePreset, Mapping[str, Tokenizer]]:
    """Tokenizers for the models whose files are named, and the device whose models can do what those files can.

    Raises StartupError, one line, where the packages are missing or llama.cpp does not take a file.
    """
    read = {model.id: _tokenizer(model, state_folder) for model in preset.models if model.file is not None}
    models = [
        model
        if (found := read.get(model.id)) is None
        else msgspec.structs.replace(
            model,
            tools=model.tools and found.supports_tools,
            thinking=model.thinking and found.supports_thinking,
            insert=found.can_insert,
        )
        for model in preset.models
    ]
    return msgspec.structs.replace(preset, models=tuple(models)), read


def _tokenizer(model: SimModel, state_folder: Path) -> "ModelTokenizer":
    missing = missing_packages()
    if missing:
        raise StartupError(
            f"To count tokens as {model.file} does takes packages that are missing ({', '.join(missing)}). Install "
            "pocketserver[llama], or leave the file away."
        )
    from pocketserver.engines.llama.tokenizer import ModelTokenizer  # needs the extra `llama`

    assert model.file is not None, "asked for a file's tokenizer"
    try:
        return ModelTokenizer(Path(model.file), context_size=model.context_size, state_folder=state_folder)
    except Refusal as refusal:
        raise StartupError(f"The vocabulary of {model.file} cannot be read: {refusal.message}") from refusal


def missing_packages() -> Sequence[str]:
    """Those of the extra `llama` that are not installed."""
    return [name for name in ("llama_cpp", "llguidance", "jinja2") if importlib.util.find_spec(name) is None]


def sim_engine(settings: Settings) -> SimEngine:
    """The simulated engine that the settings describe. `model` names one of the device's, or a GGUF file."""
    context = settings.context or _DEFAULT_CONTEXT
    scenario_device = None if settings.scenario is None else load_scenario(settings.scenario).device
    device = settings.device or scenario_device
    if device is None:
        preset = generic(DEFAULT_MODEL, context, settings.tokens_per_second, prompt_factor=_PROMPT_FACTOR)
    else:
        preset = load_preset(device)
    model = settings.model or preset.models[0].id
    if model.endswith(".gguf"):
        preset = with_file(preset, Path(model))
        model = preset.models[0].id
    if preset.model(model) is None:
        known = ", ".join(one.id for one in preset.models)
        raise UsageError(f"The simulated device has no model {model!r}. It has: {known}.")
    if settings.memory_limit_bytes is not None:
        preset = msgspec.structs.replace(preset, memory_limit_bytes=settings.memory_limit_bytes)
    preset, tokenizers = with_tokenizers(preset, settings.home_folder / "llama")
    speed = None if settings.speed == "max" else settings.speed
    return SimEngine(
        SimOptions(
            model=model,
            context_size=context,
            seed=settings.seed,
            reply=settings.reply,
            preset=preset,
            speed=speed,
            loads_on_request=settings.switching,
            keep_alive_seconds=settings.model_keep_alive_seconds,
            tokenizers=tokenizers,
        )
    )
