"""Slowing down whoever tries wrong keys: a bucket of attempts for each TCP peer, in a bounded table."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from pocketserver.errors import Code, Refusal


@dataclass(slots=True)
class _Bucket:
    """Attempts that are left, as of `filled` on the monotonic clock."""

    attempts: float
    filled: float


class WrongKeyThrottle:
    """Allows `wrong_keys_a_minute` wrong keys from one peer, then refuses further wrong ones until time has passed.

    Only wrong keys are counted and refused: the right key works from every address at any time. `peer` is the TCP
    peer's address, never a header, because headers are the client's own words. The `most_peers` latest are remembered.
    """

    def __init__(
        self,
        wrong_keys_a_minute: int,
        *,
        what: str = "API keys",
        clock: Callable[[], float] = time.monotonic,
        most_peers: int = 4096,
    ) -> None:
        """`what` names the secrets that are tried, for the sentence of a refusal."""
        self._what = what
        self._limit = wrong_keys_a_minute
        self._clock = clock
        self._most_peers = most_peers
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def note_wrong(self, peer: str) -> None:
        """Count a wrong key. Raises TOO_MANY_ATTEMPTS, with the seconds to wait, when there were too many."""
        bucket = self._refilled(peer)
        if bucket.attempts < 1:
            wait = math.ceil((1 - bucket.attempts) * 60 / self._limit)
            raise Refusal(
                Code.TOO_MANY_ATTEMPTS,
                f"Too many wrong {self._what} came from {peer}. Wait {wait} seconds, or send the right one.",
                retry_after=wait,
            )
        bucket.attempts -= 1

    def __len__(self) -> int:
        return len(self._buckets)

    def _refilled(self, peer: str) -> _Bucket:
        now = self._clock()
        bucket = self._buckets.setdefault(peer, _Bucket(attempts=self._limit, filled=now))
        bucket.attempts = min(self._limit, bucket.attempts + (now - bucket.filled) * self._limit / 60)
        bucket.filled = now
        self._buckets.move_to_end(peer)
        if len(self._buckets) > self._most_peers:
            self._buckets.popitem(last=False)
        return bucket
