"""Who owns the page: a one-time token from the command line becomes a session. An address alone proves nothing."""

import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pocketserver.errors import Code, Refusal
from pocketserver.gate.limits import WrongKeyThrottle

SESSION_HEADER = "x-pocketserver-owner"
"""Where the page's script sends its session. No browser adds this header by itself, so no other page can use it."""
TOKEN_SECONDS = 300.0
IDLE_SECONDS = 1800.0
LONGEST_SECONDS = 12 * 3600.0
Value = TypeVar("Value")
_MOST_TOKENS = 8
_MOST_SESSIONS = 8


@dataclass(slots=True)
class _Session:
    began: float
    used: float


class OwnerSessions:
    """Tokens that are good once and soon, and the sessions they became. Only digests are kept.

    A session ends half an hour after its last use, after twelve hours, and with the server.
    """

    def __init__(self, throttle: WrongKeyThrottle, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._throttle = throttle
        self._clock = clock
        self._tokens: OrderedDict[bytes, float] = OrderedDict()
        self._sessions: OrderedDict[bytes, _Session] = OrderedDict()

    def new_token(self) -> str:
        """For the link that the command line prints."""
        token = secrets.token_urlsafe(32)
        _put(self._tokens, _digest(token), self._clock() + TOKEN_SECONDS, most=_MOST_TOKENS)
        return token

    def exchange(self, token: str, peer: str) -> str:
        """A session for a token, once. Raises INSUFFICIENT_SCOPE or TOO_MANY_ATTEMPTS."""
        ends = self._tokens.pop(_digest(token), None)
        if ends is None or self._clock() >= ends:
            self._throttle.note_wrong(peer)
            raise Refusal(
                Code.INSUFFICIENT_SCOPE,
                "This link was used before or is older than five minutes. Run `pocketserver page` for a new one.",
            )
        session, now = secrets.token_urlsafe(32), self._clock()
        _put(self._sessions, _digest(session), _Session(now, now), most=_MOST_SESSIONS)
        return session

    def holds(self, session: str | None) -> bool:
        """Whether this is a session that lives; using it keeps it alive."""
        if not session:
            return False
        digest, now = _digest(session), self._clock()
        found = self._sessions.get(digest)
        if found is None:
            return False
        if now - found.used >= IDLE_SECONDS or now - found.began >= LONGEST_SECONDS:
            del self._sessions[digest]
            return False
        found.used = now
        return True

    def end(self, session: str) -> None:
        """Forget a session; nothing happens when there is none."""
        self._sessions.pop(_digest(session), None)

    def require(self, session: str | None) -> None:
        """Raise INSUFFICIENT_SCOPE unless the session lives."""
        if not self.holds(session):
            raise Refusal(
                Code.INSUFFICIENT_SCOPE,
                "Only the owner may do this. Run `pocketserver page` on the machine of the server and open its link.",
            )


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _put(table: OrderedDict[bytes, Value], key: bytes, value: Value, *, most: int) -> None:
    table[key] = value
    if len(table) > most:
        table.popitem(last=False)
