"""A clock that moves when a test says so."""

from dataclasses import dataclass


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now
