"""Loading and unloading the simulated device's models on request, in the device's own time."""

import asyncio
from collections.abc import Callable, Sequence

from pocketserver.chat import EngineState, LoadedModel
from pocketserver.engines.sim.clock import Timer
from pocketserver.engines.sim.state import Device
from pocketserver.errors import Code, Refusal

_LOOK_SECONDS = 0.05


class SimLoading:
    """One model at a time, as on the device. `device` is asked anew each time: a reset puts another in its place."""

    def __init__(self, device: Callable[[], Device], keep_alive_seconds: float) -> None:
        self._device = device
        self._keep_alive_seconds = keep_alive_seconds
        self._expiry: Timer | None = None

    async def have(self, model: str) -> float:
        """Have this model loaded; returns the device seconds that it took.

        Raises MODEL_NOT_FOUND, and what the device's memory refuses.
        """
        device = self._device()
        self._forget_expiry()
        if device.preset.model(model) is None:
            raise Refusal(Code.MODEL_NOT_FOUND, f"The model {model!r} is not on this device.", param="model")
        if device.state is EngineState.READY and device.model.id == model:
            return 0.0
        began = device.clock.now()
        device.load(model)
        while device.state is EngineState.LOADING:
            await self._pass(device, began + device.preset.load_seconds(device.model))
        if device.state is not EngineState.READY:
            code = Code(device.problem_code or Code.MODEL_NOT_LOADED)
            raise Refusal(code, device.problem or "The model could not be loaded.")
        return device.clock.now() - began

    def unload(self, model: str) -> None:
        device = self._device()
        if device.state is not EngineState.NO_MODEL and device.model.id == model:
            self._forget_expiry()
            device.unload()

    def expire_in(self, keep_alive: float | None) -> None:
        """Unload after so many seconds of device time without a request; negative is never."""
        device = self._device()
        self._forget_expiry()
        seconds = self._keep_alive_seconds if keep_alive is None else keep_alive
        model = device.model.id
        if seconds == 0:
            self.unload(model)
        elif seconds > 0 and device.state is EngineState.READY:
            self._expiry = device.clock.call_at(device.clock.now() + seconds, lambda: self.unload(model))

    def loaded(self) -> Sequence[LoadedModel]:
        device = self._device()
        if device.state is not EngineState.READY:
            return ()
        context = device.served_context
        expires = None if self._expiry is None else device.clock.unix_time() + self._expiry.when - device.clock.now()
        needed = device.preset.bytes_needed(device.model, context)
        return (LoadedModel(id=device.model.id, size_bytes=needed, context_size=context, expires_at=expires),)

    async def _pass(self, device: Device, until: float) -> None:
        """Let device time pass: virtual time at once, real time in pieces, since its speed may change."""
        if device.clock.virtual:
            device.clock.advance(max(0.0, until - device.clock.now()))
            await asyncio.sleep(0)
        else:
            await asyncio.sleep(min(device.clock.real_seconds(until), _LOOK_SECONDS))

    def _forget_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
