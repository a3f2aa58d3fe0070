"""The shipped device presets, and presets of a person's own: TOML files that become `DevicePreset`s."""

import tomllib
from pathlib import Path

import msgspec

from pocketserver.engines.sim.device import DEFAULT_MODEL, DevicePreset, SimModel
from pocketserver.engines.sim.engine import SimEngine, SimOptions, generic
from pocketserver.errors import UsageError
from pocketserver.models.gguf import read_metadata
from pocketserver.settings import Settings
from pocketserver.settings_files import shipped_settings
from pocketserver.simulator.scenario import load_scenario

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
        return msgspec.convert({"name": path.stem, **values}, DevicePreset)
    except OSError as error:
        raise UsageError(f"The device file {path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"The device file {path} is not valid: {error}.") from error


def with_file(preset: DevicePreset, path: Path) -> DevicePreset:
    """The device with the model of a GGUF file in front of its own: sizes from the file, rates in proportion to them.

    Decoding is bound by memory bandwidth, so that a model twice as large answers half as fast. Raises BadModelFile.
    """
    metadata = read_metadata(path)
    known = preset.models[0]
    ratio = known.size_bytes / max(1, metadata.tensor_bytes)
    model = SimModel(
        id=path.stem,
        size_bytes=metadata.tensor_bytes,
        kv_bytes_per_token=metadata.kv_cache_bytes(1),
        context_size=max(16, metadata.context_length),
        prompt_tokens_per_second=known.prompt_tokens_per_second * ratio,
        tokens_per_second=known.tokens_per_second * ratio,
        architecture=metadata.architecture,
        quantization=metadata.quantization,
        parameters=metadata.parameter_count,
    )
    return msgspec.structs.replace(preset, models=(model, *preset.models))


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
        )
    )
