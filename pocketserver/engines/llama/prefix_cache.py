"""Which conversation the context holds, and where the others are parked: in memory and on disk.

Never the reason for a wrong answer: a state is used only where its tokens begin as the prompt does, and what differs is
cut away or, for models whose memory cannot be cut, the state is not used at all.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from pocketserver.engines.llama.cache_disk import (
    SLACK_TOKENS,
    DiskCache,
    DiskState,
    State,
    Tokens,
    covers,
    shared_length,
)
from pocketserver.engines.llama.free_memory import available_memory

_LEAST_GAIN_TOKENS = 16
_TOKENS_FOR_EACH_GAINED = 50
"""Restoring a token costs some hundredth of computing it; a state is worth while that is well repaid."""
_WRITES_FOR_A_TOKEN = 8
"""A conversation goes to the disk again when an eighth of it is new: so each token is written eight times at most,
however long the conversation grows, and after a crash an eighth is read anew at most. A clean end writes the rest."""
_SPARE_BYTES = 128 * 1024 * 1024
"""Memory that the system keeps when a state is copied."""


class LiveContext(Protocol):
    """The context as the cache needs it; see `Decoder`."""

    tokens: list[int]

    @property
    def can_be_cut(self) -> bool: ...

    def reuse(self, prompt: Sequence[int]) -> int: ...

    def state_bytes(self) -> int: ...

    def save(self) -> State | None: ...

    def restore(self, tokens: Sequence[int], state: State) -> bool: ...


@dataclass(frozen=True, slots=True, eq=False)
class MemoryState:
    """A state in memory."""

    tokens: Tokens
    state: State


Parked: TypeAlias = MemoryState | DiskState


class PrefixCache:
    """Belongs to the decoding thread. `disk` may be set later, by another thread, when it has been opened."""

    def __init__(self, live: LiveContext, budget_bytes: int, disk: DiskCache | None = None) -> None:
        self.disk = disk
        self._live = live
        self._budget_bytes = budget_bytes
        self._parked: list[MemoryState] = []
        """Least recently used first."""

    @property
    def parked_bytes(self) -> int:
        return sum(len(parked.state) for parked in self._parked)

    def prepare(self, prompt: Sequence[int]) -> int:
        """Bring the context as far into this prompt as any known state allows; how many tokens need no decoding.

        At least one token is left to decode. Another conversation that is lost by this is parked first.
        """
        if self.disk is not None:
            self.disk.pause()
        wanted = np.asarray(prompt, np.int32)
        while (best := self._best(wanted)) is not None:
            state = best.state if isinstance(best, MemoryState) else self._read(best)
            if state is not None:
                self._park_live(kept=0)
                self._restore(best, state, wanted)
                break
        self._park_live(kept=self._usable(self._live_tokens(), wanted))
        return self._live.reuse(prompt)

    def known(self, prompt: Sequence[int]) -> int:
        """How many tokens of this prompt would need no decoding now. From any thread: true for a moment only."""
        wanted = np.asarray(prompt, np.int32)
        here = self._usable(np.asarray([*self._live.tokens], np.int32), wanted)
        parked = [*(state.tokens for state in [*self._parked]), *(self.disk.glance() if self.disk else ())]
        gains = [(self._usable(tokens, wanted) - here, len(tokens)) for tokens in parked]
        return here + max((gain for gain, length in gains if _is_worth(gain, length)), default=0)

    def answered(self) -> None:
        """The answer is out: the disk may be written again."""
        if self.disk is not None:
            self.disk.resume()

    def checkpoint(self) -> None:
        """Send the live conversation on its way to the disk, unless little of it is new there."""
        if self._is_new(self._live_tokens()):
            self._write_live()

    def close(self, seconds: float) -> None:
        """The process is about to end: everything to the disk, the latest first, within so many seconds."""
        if self.disk is None:
            return
        deadline = time.monotonic() + seconds
        live = self._live_tokens()
        if len(live) >= SLACK_TOKENS and not self.disk.covers(live):
            self._write_live()
        self.disk.flush(deadline - time.monotonic())
        for parked in reversed(self._parked):
            if time.monotonic() < deadline and not self.disk.covers(parked.tokens):
                self.disk.write(parked.tokens, parked.state, replacing=self._live.can_be_cut)
                self.disk.flush(deadline - time.monotonic())

    def _is_new(self, tokens: Tokens) -> bool:
        """Whether so much of a conversation is not on disk that it is worth to be written."""
        if self.disk is None or len(tokens) < SLACK_TOKENS or self.disk.covers(tokens):
            return False
        known = max((self._usable(kept, tokens) for kept in self.disk.kept()), default=0)
        return (len(tokens) - known) * _WRITES_FOR_A_TOKEN >= len(tokens)

    def _write_live(self) -> None:
        if self.disk is None or self._live.state_bytes() > self.disk.budget_bytes:
            return
        if (state := self._copy()) is not None:
            self.disk.write(self._live_tokens(), state, replacing=self._live.can_be_cut)

    def _best(self, wanted: Tokens) -> Parked | None:
        """The parked state that saves most, if it saves enough over what the context holds; memory before disk."""
        here = self._usable(self._live_tokens(), wanted)
        candidates: list[Parked] = [*reversed(self._parked), *(self.disk.states() if self.disk else ())]
        gains = [(self._usable(parked.tokens, wanted) - here, parked) for parked in candidates]
        worth = [(gain, parked) for gain, parked in gains if _is_worth(gain, len(parked.tokens))]
        return max(worth, key=lambda pair: (pair[0], -len(pair[1].tokens)), default=(0, None))[1]

    def _usable(self, tokens: Tokens, wanted: Tokens) -> int:
        """Tokens of a state that would stay in the context for this prompt."""
        shared = min(shared_length(tokens, wanted), len(wanted) - 1)
        return shared if self._live.can_be_cut or shared == len(tokens) else 0

    def _live_tokens(self) -> Tokens:
        return np.asarray(self._live.tokens, np.int32)

    def _read(self, state: DiskState) -> State | None:
        return None if self.disk is None else self.disk.read(state)

    def _restore(self, parked: Parked, state: State, wanted: Tokens) -> None:
        """Put a state into the context; one that llama.cpp does not take is forgotten, and the context is empty.

        A state in memory stays parked only where the context will lose a good part of it.
        """
        taken = self._live.restore(parked.tokens.tolist(), state)
        if isinstance(parked, MemoryState):
            self._parked = [other for other in self._parked if other is not parked]
            if taken and len(parked.tokens) - self._usable(parked.tokens, wanted) >= SLACK_TOKENS:
                self._keep(parked)
        elif not taken and self.disk is not None:
            self.disk.forget(parked)

    def _park_live(self, kept: int) -> None:
        """Copy the context into memory before all but `kept` tokens of it are lost, unless a copy exists."""
        live = self._live_tokens()
        if len(live) - kept < SLACK_TOKENS or self._known(live):
            return
        if self._live.state_bytes() <= self._budget_bytes and (state := self._copy()) is not None:
            self._keep(MemoryState(live, state))
            if self.disk is not None and self._is_new(live):
                self.disk.write(live, state, replacing=self._live.can_be_cut)

    def _known(self, live: Tokens) -> bool:
        return any(covers(parked.tokens, live) for parked in self._parked) or bool(self.disk and self.disk.covers(live))

    def _copy(self) -> State | None:
        enough = available_memory() >= self._live.state_bytes() + _SPARE_BYTES
        return self._live.save() if enough else None

    def _keep(self, added: MemoryState) -> None:
        """Put a state last; what it covers goes, and what is over the budget."""
        if self._live.can_be_cut:
            self._parked = [other for other in self._parked if not covers(added.tokens, other.tokens)]
        self._parked.append(added)
        while self.parked_bytes > self._budget_bytes:
            del self._parked[0]


def _is_worth(gain: int, length: int) -> bool:
    """Whether restoring a state of so many tokens is well repaid by what it saves."""
    return gain >= _LEAST_GAIN_TOKENS and gain * _TOKENS_FOR_EACH_GAINED >= length
