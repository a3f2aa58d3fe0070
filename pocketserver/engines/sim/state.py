"""The state of a simulated device, and what follows from it: which model is in memory, and how fast it answers."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from pocketserver.chat import EngineState, EngineStatus, JsonValue
from pocketserver.engines.sim.clock import DeviceClock, Timer
from pocketserver.engines.sim.device import DevicePreset, SimModel
from pocketserver.engines.sim.heat import Heat, Thermal
from pocketserver.errors import Code

_UNLOADED = "No model is loaded. Load one with `pocketserver sim set model=NAME`."


class App(StrEnum):
    """Where the serving app is. In `background` its port is closed, `locked` it hangs, `killed` it lost its model."""

    FOREGROUND = "foreground"
    BACKGROUND = "background"
    LOCKED = "locked"
    KILLED = "killed"


class Network(StrEnum):
    """`gone`: connections are refused; `silent`: they are made, and nothing ever comes."""

    UP = "up"
    GONE = "gone"
    SILENT = "silent"


@dataclass(slots=True)
class Device:
    """One simulated device. `changed` is called after every change that somebody may want to see."""

    preset: DevicePreset
    clock: DeviceClock
    context_size: int | None = None
    """Tokens of context that the app asks for; None takes each model's own."""
    changed: Callable[[], None] = lambda: None
    app: App = App.FOREGROUND
    network: Network = Network.UP
    address: str | None = None
    goodbye: bool = True
    """Whether leaving the network is announced by mDNS."""
    low_power: bool = False
    battery: float = 100.0
    state: EngineState = EngineState.NO_MODEL
    problem_code: str | None = None
    problem: str | None = None
    model: SimModel = field(init=False)
    memory_limit_bytes: int = field(init=False)
    heat: Heat = field(init=False)
    _touched: float = 0.0
    _loading: Timer | None = None
    _load_began: float = 0.0
    _status: tuple[tuple[object, ...], EngineStatus] | None = None

    def __post_init__(self) -> None:
        self.model = self.preset.models[0]
        self.memory_limit_bytes = self.preset.memory_limit_bytes
        self.heat = Heat(self.preset)
        self._touched = self.clock.now()

    # Time

    def rest(self) -> None:
        """Account for the time since the device last did something: it cooled down."""
        now = self.clock.now()
        if self.heat.level:
            self.heat.rest(now - self._touched)
        self._touched = now

    def work(self, seconds: float) -> None:
        """Account for so many seconds of work that ended now."""
        self._touched = self.clock.now()
        if self.preset.heat_seconds is not None:
            self.heat.work(seconds)
        if self.preset.battery_percent_per_hour:
            self.battery = max(1.0, self.battery - seconds * self.preset.battery_percent_per_hour / 3600)

    def factor(self) -> float:
        """What heat and low-power mode leave of the cold rates."""
        return self.heat.factor * (self.preset.low_power_factor if self.low_power else 1.0)

    def token_seconds(self, depth: int) -> float:
        """Time for one more token at this depth of context."""
        slower = 1.0 + depth / self.preset.slowing_tokens if self.preset.slowing_tokens else 1.0
        return slower / (self.model.tokens_per_second * self.factor())

    def prompt_seconds(self, tokens: int) -> float:
        return self.preset.first_token_seconds + tokens / (self.model.prompt_tokens_per_second * self.factor())

    # Model and memory

    @property
    def served_context(self) -> int:
        return min(self.context_size or self.model.context_size, self.model.context_size)

    @property
    def available_memory_bytes(self) -> int:
        used = self.preset.app_bytes
        if self.state is EngineState.READY:
            used = self.preset.bytes_needed(self.model, self.served_context)
        return max(0, self.memory_limit_bytes - used)

    def load(self, model_id: str) -> None:
        """Begin to load a model of this device; the one before is unloaded first. Raises KeyError for no such model."""
        model = self.preset.model(model_id)
        if model is None:
            raise KeyError(model_id)
        self._unload()
        self.model = model
        if not self.check_memory():
            return
        self.state, self._load_began = EngineState.LOADING, self.clock.now()
        seconds = self.preset.load_seconds(model)
        if seconds:
            self._loading = self.clock.call_at(self._load_began + seconds, self._loaded)
        else:
            self._loaded()
        self.changed()

    def unload(self, code: Code | None = None, sentence: str = _UNLOADED) -> None:
        self._unload()
        self.problem_code = None if code is None else code.value
        self.problem = sentence
        self.changed()

    def check_memory(self) -> bool:
        """Whether the model and its context fit; where they do not, it is unloaded with the reason."""
        limit = self.memory_limit_bytes
        weights = self.preset.bytes_needed(self.model, 0)
        needed = self.preset.bytes_needed(self.model, self.served_context)
        if needed <= limit:
            return True
        if weights > limit:
            self.unload(Code.INSUFFICIENT_MEMORY, _too_large(self.model.id, weights, limit))
        else:
            self.unload(Code.CONTEXT_ALLOCATION_FAILED, _no_context(self.served_context, needed, limit))
        return False

    def _loaded(self) -> None:
        self._loading = None
        self.state, self.problem, self.problem_code = EngineState.READY, None, None
        self.changed()

    def _unload(self) -> None:
        if self._loading is not None:
            self._loading.cancel()
            self._loading = None
        self.state = EngineState.NO_MODEL

    # What it shows

    @property
    def load_progress(self) -> float | None:
        if self._loading is None:
            return None
        return min(1.0, (self.clock.now() - self._load_began) / self.preset.load_seconds(self.model))

    def status(self) -> EngineStatus:
        """The engine's status; the same object until something in it changes."""
        heat = self.heat
        if heat.level:
            self.rest()  # it has cooled down since somebody looked
        shown = (
            self.state, self.problem_code, self.problem, self.load_progress if self._loading else None, self.model,
            self.context_size, self.app, self.network, self.address, self.low_power, int(self.battery),
            self.memory_limit_bytes, heat.pinned, heat.thermal if heat.level else None,
        )  # fmt: skip
        if self._status is None or self._status[0] != shown:
            self._status = (shown, self._new_status())
        return self._status[1]

    def _new_status(self) -> EngineStatus:
        ready = self.state is EngineState.READY
        return EngineStatus(
            state=self.state,
            model=self.model.id if ready else None,
            context_size=self.served_context,
            load_progress=self.load_progress,
            supports_tools=self.model.tools,
            problem=self.problem,
            problem_code=self.problem_code,
            device=self.shown(),
        )

    def shown(self) -> dict[str, JsonValue]:
        """The device as `/health` and the control's `GET /state` show it."""
        return {
            "device": self.preset.name,
            "thermal": self.heat.thermal.value,
            "low_power": self.low_power,
            "app": self.app.value,
            "network": self.network.value,
            "address": self.address,
            "battery": int(self.battery),
            "memory_limit_bytes": self.memory_limit_bytes,
            "available_memory_bytes": self.available_memory_bytes,
            "model": self.model.id if self.state is EngineState.READY else None,
            "model_state": _MODEL_STATES[self.state],
        }


_MODEL_STATES = {
    EngineState.READY: "loaded",
    EngineState.LOADING: "loading",
    EngineState.NO_MODEL: "unloaded",
    EngineState.STUCK: "stuck",
}


def thermal_of(word: str) -> Thermal | None:
    """The state that a word pins; None for `auto`, which lets the device heat up and cool down by itself."""
    return None if word == "auto" else Thermal(word)


def _too_large(model: str, needed: int, limit: int) -> str:
    return (
        f"The model {model} needs {needed:,} bytes of memory and the app may use {limit:,}. "
        "Load a smaller or more strongly quantized model."
    )


def _no_context(tokens: int, needed: int, limit: int) -> str:
    return (
        f"A context of {tokens:,} tokens does not fit: {needed:,} bytes are needed with the model, the app may use "
        f"{limit:,}. Ask for a smaller context."
    )
