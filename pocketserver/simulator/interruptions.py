"""What faults of place ANSWER do to an answer in mid-stream. The engine calls them between tokens."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from pocketserver.engines.sim.stream import Pause
from pocketserver.errors import Refusal

OPENING = "Zoë "
"""What a reply begins with when a character of several bytes is needed."""


@dataclass(slots=True, kw_only=True)
class Opening:
    """Only says something first."""

    opening: str = OPENING

    async def reached(self, tokens: int, pause: Pause, *, ended: bool) -> None:
        """Nothing more."""


@dataclass(slots=True, kw_only=True)
class Delay:
    """Waits before the first token, or before every one. The seconds are real: a client's time-out is real too."""

    seconds: float
    every: bool
    opening: str = ""

    async def reached(self, tokens: int, pause: Pause, *, ended: bool) -> None:
        if not ended and (self.every or tokens == 0) and self.seconds > 0:
            await pause(self.seconds)


@dataclass(slots=True, kw_only=True)
class Break:
    """After so many tokens, or at the end of a shorter reply: hang up, fall silent, or end with an error."""

    after_tokens: float = math.inf
    hang_up: Callable[[], None] | None = None
    refusal: Refusal | None = None
    opening: str = ""

    async def reached(self, tokens: int, pause: Pause, *, ended: bool) -> None:
        if tokens < self.after_tokens and not ended:
            return
        if self.refusal is not None:
            raise self.refusal
        if self.hang_up is not None:
            self.hang_up()
        await pause(None)
