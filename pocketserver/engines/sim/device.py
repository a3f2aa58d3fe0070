"""What a device is: its memory, its speed, how it heats up, and the models that lie on it. Presets fill these."""

from typing import Annotated

import msgspec
from msgspec import Meta

from pocketserver.chat import ModelInfo

Positive = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Bytes = Annotated[int, Meta(ge=0)]

DEFAULT_MODEL = "sim-1b"
MODEL_CREATED = 1_735_689_600
"""The same date for every simulated model, so that lists are the same in every run."""


class SimModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model on a simulated device. Rates are for a cold device and an empty context.

    `size_bytes` is the file and the weights in memory. `kv_bytes_per_token` is what a token of context takes.
    `context_size` is the trained length; the app may ask for less. With `insert` it fills in the middle of a text.
    `file` is a GGUF file whose vocabulary and chat template count its tokens; without one the documented rule does.
    """

    id: str
    size_bytes: Bytes = 800_000_000
    kv_bytes_per_token: Bytes = 32_768
    context_size: Annotated[int, Meta(ge=16)] = 131_072
    prompt_tokens_per_second: Positive = 400.0
    tokens_per_second: Positive = 40.0
    tools: bool = True
    thinking: bool = True
    embeddings: bool = True
    insert: bool = False
    file: str | None = None
    architecture: str = "llama"
    quantization: str = "Q4_K_M"
    parameters: int = 1_235_814_400

    def info(self, *, loaded: bool, context_size: int | None = None) -> ModelInfo:
        return ModelInfo(
            id=self.id,
            loaded=loaded,
            created=MODEL_CREATED,
            size_bytes=self.size_bytes,
            quantization=self.quantization,
            architecture=self.architecture,
            parameters=self.parameters,
            context_size=context_size if loaded else self.context_size,
        )


class DevicePreset(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One device. Times are in seconds, factors multiply token rates.

    `first_token_seconds` is the fixed cost of an answer before its prompt is read. `jitter` is the standard deviation
    of a token's time as a share of it. Heat rises towards 1 with time constant `heat_seconds` while the device works
    and falls with `cool_seconds` while it rests; at heat 1 the rates have lost `hot_loss`. None heats never.
    `slowing_tokens` is the depth of context at which decoding takes twice as long. `background_grace_seconds` is how
    long connections live on, silent, after the app went to the background. `battery_percent_per_hour` is spent while
    working.
    """

    name: str
    summary: str
    memory_limit_bytes: Bytes = 4_000_000_000
    app_bytes: Bytes = 50_000_000
    compute_bytes: Bytes = 100_000_000
    first_token_seconds: Annotated[float, Meta(ge=0)] = 0.0
    load_base_seconds: Annotated[float, Meta(ge=0)] = 0.0
    load_bytes_per_second: Positive | None = None
    jitter: Share = 0.0
    heat_seconds: Positive | None = None
    cool_seconds: Positive = 150.0
    hot_loss: Share = 0.58
    low_power_factor: Share = 0.6
    slowing_tokens: Positive | None = None
    background_grace_seconds: Annotated[float, Meta(ge=0)] = 5.0
    battery_percent_per_hour: Annotated[float, Meta(ge=0)] = 0.0
    models: Annotated[tuple[SimModel, ...], Meta(min_length=1)] = (SimModel(id=DEFAULT_MODEL),)

    def model(self, model_id: str) -> SimModel | None:
        return next((model for model in self.models if model.id == model_id), None)

    def load_seconds(self, model: SimModel) -> float:
        bytes_per_second = self.load_bytes_per_second
        return self.load_base_seconds + (model.size_bytes / bytes_per_second if bytes_per_second else 0.0)

    def bytes_needed(self, model: SimModel, context_size: int) -> int:
        """The app's memory with this model: app, weights, keys and values of the whole context, compute buffers."""
        return self.app_bytes + model.size_bytes + model.kv_bytes_per_token * context_size + self.compute_bytes


GENERIC = DevicePreset(name="generic", summary="no device in particular: never hot, loads at once")
