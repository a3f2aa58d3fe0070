"""Pairing: a six-digit code that one device exchanges, once and soon, for a key of its own."""

import asyncio
import hmac
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from pocketserver.errors import Code, Refusal, StartupError, UsageError
from pocketserver.gate.keys import MAIN, KeyStore
from pocketserver.gate.limits import WrongKeyThrottle

LIFETIME_SECONDS = 120
WRONG_TRIES = 5
_CODE_DIGITS = 6
_MOST_NAME_CHARACTERS = 28
"""Leaves room for a number that tells two devices of one name apart; names of keys have at most 32 characters."""
_MOST_NAMESAKES = 300


class OfferState(StrEnum):
    OPEN = "open"
    USED = "used"
    VOID = "void"
    EXPIRED = "expired"


class OfferShown(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an offer. `name` is the key that it became, `seconds` how long it is still good.

    `number` counts the server's offers, so that whoever waits for one sees when it is another's turn.
    """

    number: int
    state: OfferState
    seconds: float
    name: str | None = None


@dataclass(slots=True, kw_only=True)
class _Offer:
    number: int
    code: str
    ends: float
    tries_left: int = WRONG_TRIES
    state: OfferState = OfferState.OPEN
    name: str | None = None


class PairingDesk:
    """Hands out one code at a time; a new one voids the one before.

    A code is good for two minutes, for one device, and for five wrong tries, whoever makes them. `throttle` counts
    wrong codes by address as well.
    """

    def __init__(
        self, keys: KeyStore | None, throttle: WrongKeyThrottle, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._keys = keys
        self._throttle = throttle
        self._clock = clock
        self._offer: _Offer | None = None
        self._naming = asyncio.Lock()

    @property
    def possible(self) -> bool:
        """Whether there are keys to give away."""
        return self._keys is not None

    def offer(self) -> str:
        """A fresh code. Raises UsageError where the server asks for no key."""
        if self._keys is None:
            raise UsageError("This server asks for no key (--auth off), so there is nothing to pair. Open its address.")
        code = f"{secrets.randbelow(10**_CODE_DIGITS):0{_CODE_DIGITS}d}"
        number = 1 if self._offer is None else self._offer.number + 1
        self._offer = _Offer(number=number, code=code, ends=self._clock() + LIFETIME_SECONDS)
        return code

    def shown(self) -> OfferShown | None:
        """The latest offer; None before the first."""
        offer = self._current()
        if offer is None:
            return None
        left = max(0.0, offer.ends - self._clock())
        return OfferShown(number=offer.number, state=offer.state, seconds=round(left, 1), name=offer.name)

    async def exchange(self, code: str, name: str, peer: str) -> tuple[str, str]:
        """A key and its name for a right code. Raises INVALID_PAIRING_CODE or TOO_MANY_ATTEMPTS."""
        offer = self._claimed(code, peer)
        assert self._keys is not None, "an offer was made"
        async with self._naming:
            try:
                key, given = await asyncio.to_thread(_new_key, self._keys, name)
            except StartupError as error:
                raise Refusal(
                    Code.INTERNAL_ERROR,
                    "The server could not make a key; its owner sees why with `pocketserver key new NAME`.",
                ) from error
        offer.name = given
        return key, given

    def _claimed(self, code: str, peer: str) -> _Offer:
        """Use the offer up, so that a second exchange in the same moment finds it used."""
        offer = self._current()
        given = code.replace(" ", "").encode("utf-8", "surrogatepass")
        if offer is not None and offer.state is OfferState.OPEN:
            if hmac.compare_digest(given, offer.code.encode()):
                offer.state = OfferState.USED
                return offer
            offer.tries_left -= 1
            if offer.tries_left == 0:
                offer.state = OfferState.VOID
        self._throttle.note_wrong(peer)
        raise Refusal(
            Code.INVALID_PAIRING_CODE,
            "This pairing code is wrong, used, or older than two minutes. Ask for a new one: on the server, run "
            "`pocketserver pair`.",
            param="code",
        )

    def _current(self) -> _Offer | None:
        offer = self._offer
        if offer is not None and offer.state is OfferState.OPEN and self._clock() >= offer.ends:
            offer.state = OfferState.EXPIRED
        return offer


def key_name(wanted: str) -> str:
    """A device's own words as the name of a key: `Anna's iPhone` becomes `Anna-s-iPhone`."""
    words = re.sub(r"[^A-Za-z0-9._-]+", "-", wanted[:200]).strip("-._")
    return words[:_MOST_NAME_CHARACTERS].rstrip("-._") or "device"


def _new_key(keys: KeyStore, wanted: str) -> tuple[str, str]:
    """A chat key under the first free name. Locks and writes the key file: call it in a thread."""
    base = key_name(wanted)
    taken = {MAIN, *(key.name for key in keys.list())}
    candidates = (base, *(f"{base}-{number}" for number in range(2, _MOST_NAMESAKES)))
    name = next((name for name in candidates if name not in taken), base)
    return keys.new(name), name
