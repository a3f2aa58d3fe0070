"""Responses that clients may come back to: in memory only, few, and not for long.

Items are kept once, however many responses of a conversation hold them: each response has its whole context, so that
deleting an earlier one breaks no later one.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from pocketserver.errors import Code, Refusal
from pocketserver.wire.openai_responses_items import Item

MOST_RESPONSES = 256
MOST_BYTES = 64 * 1024 * 1024
LIFETIME_SECONDS = 3600.0
_ENTRY_BYTES = 256
"""What an item or a response costs beside its text."""

_encode = msgspec.json.Encoder().encode


class Kept:
    """One item as JSON. Compared by identity: two alike are two."""

    __slots__ = ("data", "id")

    def __init__(self, item: Item) -> None:
        self.id = str(item["id"])
        self.data: bytes = _encode(item)

    @property
    def item(self) -> Item:
        item: Item = msgspec.json.decode(self.data)
        return item


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One response: its object as JSON, the items that it answers (those of the whole conversation), and its own."""

    id: str
    status: str
    document: bytes
    input: tuple[Kept, ...]
    output: tuple[Kept, ...] = ()

    @property
    def context(self) -> tuple[Kept, ...]:
        """What a response that follows continues."""
        return (*self.input, *self.output)


@dataclass(slots=True)
class _Entry:
    stored: Stored
    used: float = field(default=0.0)


class ResponseStore:
    """At most so many responses and bytes, each dropped an hour after its last use; the least used goes first.

    `clock` counts seconds and never goes back. Everything is asked for with its owner (the name of a key, None without
    keys): another's response is not found. Nothing wakes up by itself: what is over is dropped when the store is used.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        most_responses: int = MOST_RESPONSES,
        most_bytes: int = MOST_BYTES,
        lifetime_seconds: float = LIFETIME_SECONDS,
    ) -> None:
        self._clock = clock
        self._most_responses = most_responses
        self._most_bytes = most_bytes
        self._lifetime_seconds = lifetime_seconds
        self._entries: OrderedDict[tuple[str | None, str], _Entry] = OrderedDict()
        self._holders: dict[Kept, int] = {}
        self.size_bytes = 0

    def __len__(self) -> int:
        self._drop_old()
        return len(self._entries)

    def put(self, owner: str | None, stored: Stored) -> None:
        """Keep a response, in place of an earlier state of it. One that is larger than everything is not kept."""
        self.discard(owner, stored.id)
        self._entries[owner, stored.id] = _Entry(stored, self._clock())
        self._hold(stored)
        self._drop_old()

    def get(self, owner: str | None, response_id: str) -> Stored:
        """A response, which counts as its use. Raises RESPONSE_NOT_FOUND."""
        self._drop_old()
        entry = self._entries.get((owner, response_id))
        if entry is None:
            raise Refusal(Code.RESPONSE_NOT_FOUND, f"Response with id '{response_id[:80]}' not found.")
        entry.used = self._clock()
        self._entries.move_to_end((owner, response_id))
        return entry.stored

    def delete(self, owner: str | None, response_id: str) -> None:
        """Raises RESPONSE_NOT_FOUND."""
        self.get(owner, response_id)
        self.discard(owner, response_id)

    def discard(self, owner: str | None, response_id: str) -> None:
        """Drop a response if it is there."""
        entry = self._entries.pop((owner, response_id), None)
        if entry is not None:
            self._release(entry.stored)

    def discard_unfinished(self, owner: str | None, response_id: str) -> None:
        """Drop a response whose answer did not come to an end."""
        entry = self._entries.get((owner, response_id))
        if entry is not None and entry.stored.status == "in_progress":
            self.discard(owner, response_id)

    def item(self, owner: str | None, item_id: str) -> Item | None:
        """An item of any response of this owner, which counts as a use of that response."""
        self._drop_old()
        for (holder, response_id), entry in reversed(self._entries.items()):
            found = next((kept for kept in entry.stored.context if kept.id == item_id), None)
            if holder == owner and found is not None:
                self.get(owner, response_id)
                return found.item
        return None

    def _drop_old(self) -> None:
        """The order of the entries is that of their last use."""
        until = self._clock() - self._lifetime_seconds
        while self._entries:
            key, entry = next(iter(self._entries.items()))
            crowded = len(self._entries) > self._most_responses or self.size_bytes > self._most_bytes
            if entry.used > until and not crowded:
                return
            self.discard(*key)

    def _hold(self, stored: Stored) -> None:
        self.size_bytes += _ENTRY_BYTES + len(stored.document)
        for kept in stored.context:
            if kept not in self._holders:
                self.size_bytes += _size(kept)
            self._holders[kept] = self._holders.get(kept, 0) + 1

    def _release(self, stored: Stored) -> None:
        self.size_bytes -= _ENTRY_BYTES + len(stored.document)
        for kept in stored.context:
            self._holders[kept] -= 1
            if not self._holders[kept]:
                del self._holders[kept]
                self.size_bytes -= _size(kept)


def kept(items: Iterable[Item]) -> tuple[Kept, ...]:
    return tuple(map(Kept, items))


def _size(item: Kept) -> int:
    return _ENTRY_BYTES + len(item.data)
