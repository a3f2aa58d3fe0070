"""How warm the device is, which thermal state the system reports, and what that leaves of its token rate."""

import math
from collections.abc import Mapping
from enum import StrEnum

from pocketserver.engines.sim.device import DevicePreset


class Thermal(StrEnum):
    """`ProcessInfo.thermalState`, as iOS reports it."""

    NOMINAL = "nominal"
    FAIR = "fair"
    SERIOUS = "serious"
    CRITICAL = "critical"


PINNED_FACTORS: Mapping[Thermal, float] = {
    Thermal.NOMINAL: 1.0,
    Thermal.FAIR: 0.8,
    Thermal.SERIOUS: 0.45,
    Thermal.CRITICAL: 0.25,
}
"""Share of the cold rate when a state is set by hand. Serious: 0.42 to 0.50 were measured on iPhone 17 Pro after
minutes of decoding; fair and critical are assumptions between and beyond."""

_THRESHOLDS = ((0.6, Thermal.SERIOUS), (0.25, Thermal.FAIR))
"""Assumed. Ten minutes of decoding took an iPhone 17 Pro to serious and not beyond, so work alone never is critical."""


class Heat:
    """Heat from 0 to 1, moved by working and resting; `pinned` overrides it."""

    def __init__(self, preset: DevicePreset) -> None:
        self._preset = preset
        self.level = 0.0
        self.pinned: Thermal | None = None

    @property
    def thermal(self) -> Thermal:
        if self.pinned is not None:
            return self.pinned
        for level, state in _THRESHOLDS:
            if self.level >= level:
                return state
        return Thermal.NOMINAL

    @property
    def factor(self) -> float:
        """What is left of the cold rate."""
        if self.pinned is not None:
            return PINNED_FACTORS[self.pinned]
        return 1.0 - self._preset.hot_loss * self.level

    def work(self, seconds: float) -> None:
        if self._preset.heat_seconds is not None:
            self.level += (1.0 - self.level) * -math.expm1(-seconds / self._preset.heat_seconds)

    def rest(self, seconds: float) -> None:
        if self.level:
            self.level *= math.exp(-seconds / self._preset.cool_seconds)
