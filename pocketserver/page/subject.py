"""The server as its page sees it: what can be asked and done, as values. The page never holds the server itself."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pocketserver.chat import EngineStatus
from pocketserver.gate.keys import KeyStore


class Lane(Protocol):
    """The door to the model, as far as the page looks at it."""

    @property
    def waiting(self) -> int: ...

    def stop(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """`base_url` is the address for other devices, ending in /v1, and `local_url` the one for this machine.

    `keys` None asks nobody for a key. `load` changes the model, in its turn; None where the model cannot be changed.
    `simulated` marks a scripted device, which must not be taken for a real model.
    """

    engine: str
    profile: str
    base_url: Callable[[], str]
    local_url: Callable[[], str]
    other_urls: Callable[[], Sequence[str]]
    status: Callable[[], EngineStatus]
    state: Callable[[], str]
    """`idle`, `busy`, `loading`, `no_model` or `stuck`."""
    model: Callable[[], str | None]
    """The model that is served, loaded or not yet, as clients name it."""
    lane: Lane
    keys: KeyStore | None
    load: Callable[[str], Awaitable[float]] | None
    started: float
    simulated: bool = False
