"""Who waits for the model, in the order in which they will have it. It knows nothing of what they want."""

import asyncio
import itertools
from collections import deque
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class Waiting(Protocol):
    """Someone in the line: whose request it is, and what wakes it."""

    @property
    def owner(self) -> str | None: ...

    @property
    def waiter(self) -> "asyncio.Future[None] | None": ...


Member = TypeVar("Member", bound=Waiting)
_MOST_RANKS = 1024


class Line(Generic[Member]):
    """Owners take turns, whoever was served longest ago first; of one owner's requests the oldest is first.

    So one owner's hundred requests delay another's single one by one turn, not by a hundred.
    """

    def __init__(self) -> None:
        self._queues: dict[str | None, deque[Member]] = {}
        self._ranks: dict[str | None, tuple[int, int]] = {}
        """The lowest is next: (0, when it came) for who had no turn lately, (1, which turn that was) for the others."""
        self._numbers = itertools.count(1)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __contains__(self, member: Member) -> bool:
        return member in self._queues.get(member.owner, ())

    def __iter__(self) -> Iterator[Member]:
        """All of them, in the order in which they would be served if nobody else came."""
        yield from sorted((member for queue in self._queues.values() for member in queue), key=self.ahead_of)

    def add(self, member: Member) -> None:
        if member.owner not in self._ranks:
            self._ranks[member.owner] = (0, next(self._numbers))
        self._queues.setdefault(member.owner, deque()).append(member)
        self._length += 1

    def remove(self, member: Member) -> None:
        queue = self._queues[member.owner]
        queue.remove(member)
        self._shortened(member.owner)

    def next(self) -> Member | None:
        """Take whoever's turn it is; None when nobody waits."""
        if not self._queues:
            return None
        owner = next(iter(self._queues)) if len(self._queues) == 1 else min(self._queues, key=self._ranks.__getitem__)
        member = self._queues[owner].popleft()
        self._shortened(owner)
        return member

    def served(self, owner: str | None) -> None:
        """Note that an owner has the model now: all others who wait come before it the next time."""
        if not self._queues:
            self._ranks.clear()  # nobody's past matters while nobody waits
        elif len(self._ranks) > _MOST_RANKS:
            self._ranks = {waiting: self._ranks[waiting] for waiting in self._queues}
        self._ranks[owner] = (1, next(self._numbers))

    def ahead_of(self, member: Member) -> int:
        """How many of those who wait will be served before this one, if nobody else comes."""
        before = self._queues[member.owner].index(member)
        mine = self._ranks[member.owner]
        return before + sum(
            min(len(queue), before + (self._ranks[owner] < mine))
            for owner, queue in self._queues.items()
            if owner != member.owner
        )

    def _shortened(self, owner: str | None) -> None:
        self._length -= 1
        if not self._queues[owner]:
            del self._queues[owner]
