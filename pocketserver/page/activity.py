"""What went on lately: who asks now, the last answer, devices that connected, errors. Everything is bounded."""

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

import msgspec

from pocketserver.answering import Exchange
from pocketserver.errors import Code
from pocketserver.page.rates import RateChart, Writing
from pocketserver.telemetry.rates import tokens_per_second
from pocketserver.wire.context import Answer

_MOST_ASKING = 64
_MOST_DEVICES = 32
_MOST_ERRORS = 20
_UNTOLD = frozenset({Code.REQUEST_CANCELLED})
"""Ends that are nobody's fault: the client left, or somebody pressed Stop."""


class Asking(msgspec.Struct, frozen=True, kw_only=True):
    """A request that has the model or waits for it. `key` is the name of its key, `seconds` its age."""

    key: str | None
    address: str
    seconds: float
    tokens: int
    has_model: bool


class LastAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer that was finished last; what was not measured is None. Times in seconds, `at` in Unix time."""

    at: float
    key: str | None
    address: str
    model: str | None
    seconds: float
    time_to_first_token: float | None
    prompt_seconds: float | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    tokens_per_second: float | None


class Seen(msgspec.Struct, kw_only=True):
    """A device: one address with one key. `last_seen` is Unix time."""

    address: str
    key: str | None
    last_seen: float
    requests: int = 0


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was refused or broke off."""

    at: float
    code: Code
    status: int
    route: str | None
    address: str
    key: str | None


class _Open(msgspec.Struct, frozen=True, eq=False):
    key: str | None
    address: str
    answer: Answer


def is_page_view(method: str, path: str) -> bool:
    """Whether a request only looked at the page: open pages ask for its state all the time."""
    return method == "GET" and path.startswith("/page/")


class Activity:
    """Told of each request that goes to the model, and of every request's end. Asked by the page, as often as it likes.

    Both cost a few microseconds; nothing runs in between.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, unix_time: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._unix_time = unix_time
        self._open: dict[str, _Open] = {}
        self._rates = RateChart()
        self._devices: OrderedDict[tuple[str, str | None], Seen] = OrderedDict()
        self._failures: deque[Failure] = deque(maxlen=_MOST_ERRORS)
        self._last: tuple[Exchange, float] | None = None

    @property
    def last(self) -> LastAnswer | None:
        """The answer that was finished last. Put together when somebody looks: answers are more than looks."""
        return None if self._last is None else _shown(*self._last)

    def began(self, request_id: str, key: str | None, address: str, answer: Answer) -> None:
        """A request asks for the model; it may have to wait."""
        if len(self._open) < _MOST_ASKING:
            self._open[request_id] = _Open(key, address, answer)

    def ended(self, exchange: Exchange) -> None:
        """A request, of whatever kind, has come to its end."""
        self._open.pop(exchange.request_id, None)
        if exchange.key_name is not None or not is_page_view(exchange.method, exchange.path):
            self._note_device(exchange)
        if exchange.answer.model is not None:
            self._note_answer(exchange)
        if exchange.error is not None and exchange.error not in _UNTOLD:
            self._failures.append(
                Failure(
                    at=self._unix_time(),
                    code=exchange.error,
                    status=exchange.status,
                    route=exchange.route,
                    address=exchange.peer,
                    key=exchange.key_name,
                )
            )

    def asking(self) -> Sequence[Asking]:
        """Requests at the model, the one that has it first."""
        now = self._clock()
        rows = [
            Asking(
                key=open_.key,
                address=open_.address,
                seconds=round(now - open_.answer.arrived, 1),
                tokens=open_.answer.tokens,
                has_model=open_.answer.turn is not None and open_.answer.turn.place is None,
            )
            for open_ in self._open.values()
        ]
        return sorted(rows, key=lambda row: not row.has_model)

    def rates(self) -> list[float]:
        """Tokens a second over the last minutes, oldest first."""
        now = self._clock()
        unfinished = [writing for open_ in self._open.values() if (writing := _writing(open_.answer, now))]
        return self._rates.shown(now, unfinished)

    def devices(self) -> Sequence[Seen]:
        """Who connected, the latest first."""
        return list(reversed(self._devices.values()))

    def failures(self) -> Sequence[Failure]:
        """What went wrong, the latest first."""
        return list(reversed(self._failures))

    def _note_device(self, exchange: Exchange) -> None:
        who = (exchange.peer, exchange.key_name)
        seen = self._devices.get(who)
        if seen is None:
            seen = self._devices[who] = Seen(address=exchange.peer, key=exchange.key_name, last_seen=0.0)
            if len(self._devices) > _MOST_DEVICES:
                self._devices.popitem(last=False)
        else:
            self._devices.move_to_end(who)
        seen.last_seen = self._unix_time()
        if not is_page_view(exchange.method, exchange.path):
            seen.requests += 1

    def _note_answer(self, exchange: Exchange) -> None:
        answer = exchange.answer
        writing = _writing(answer, answer.arrived + exchange.seconds)
        if writing is not None:
            self._rates.add(writing)
        if answer.usage is not None and exchange.error is None:
            self._last = exchange, self._unix_time()


def _shown(exchange: Exchange, at: float) -> LastAnswer | None:
    answer, usage, timings = exchange.answer, exchange.answer.usage, exchange.answer.timings
    if usage is None:
        return None
    return LastAnswer(
        at=at,
        key=exchange.key_name,
        address=exchange.peer,
        model=answer.model,
        seconds=round(exchange.seconds, 3),
        time_to_first_token=_rounded(answer.time_to_first_token),
        prompt_seconds=_rounded(timings.prompt_seconds if timings else None),
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        tokens_per_second=_rounded(tokens_per_second(usage, timings)),
    )


def _writing(answer: Answer, end: float) -> Writing | None:
    """An answer's tokens between its first one and `end`; None before the first."""
    tokens = answer.usage.completion_tokens if answer.usage else answer.tokens
    if answer.time_to_first_token is None or tokens == 0:
        return None
    return Writing(start=answer.arrived + answer.time_to_first_token, end=end, tokens=tokens)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
