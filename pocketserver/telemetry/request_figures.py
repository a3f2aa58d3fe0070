"""Counts of finished requests: one lock for all of them, where the library's own counters take one for each."""

import threading
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from pocketserver.errors import Code

OTHER = "other"
"""The label of everything outside the known set: unknown paths, models that nobody installed."""

REJECTED: Mapping[Code, str] = {
    Code.QUEUE_FULL: "queue_full",
    Code.MODEL_BUSY: "busy",
    Code.MODEL_NOT_LOADED: "not_ready",
    Code.MISSING_API_KEY: "auth",
    Code.INVALID_API_KEY: "auth",
    Code.INSUFFICIENT_SCOPE: "auth",
    Code.TOO_MANY_ATTEMPTS: "too_many_attempts",
    Code.INVALID_PAIRING_CODE: "pairing",
    Code.HOST_NOT_ALLOWED: "host",
    Code.ORIGIN_NOT_ALLOWED: "origin",
    Code.PEER_NOT_LOCAL: "peer",
    Code.REQUEST_TOO_LARGE: "too_large",
}
"""Codes of requests that were turned away before a model saw them, and the `reason` they are counted under."""

_MOST_ROUTES = 100
_MOST_KEYS = 300
_APIS = (("/v1/messages", "anthropic"), ("/api/", "ollama"), ("/v1/", "openai"))

_Kind = tuple[str, int, Code | None]
"""Route label, status, error."""


class RequestFigures(Collector):
    """How many requests ended in which way. Safe from any thread.

    `routes` are the templates that exist; they start at 0. Routes and keys beyond a limit are counted as `other`.
    """

    def __init__(self, routes: Iterable[str]) -> None:
        self._lock = threading.Lock()
        self._kinds: dict[_Kind, int] = {(OTHER, 404, Code.UNKNOWN_ROUTE): 0}
        self._keys: dict[str, int] = {}
        self._routes: set[str] = set()
        for route in routes:
            self._kinds[self._label(route), 200, None] = 0

    def count(self, route: str | None, status: int, error: Code | None, key: str | None) -> None:
        """Add one finished request. `route` is the template, None for an unknown path."""
        if route is None or route not in self._routes:
            route = self._label(route)
        kind = (route, status, error)
        with self._lock:
            self._kinds[kind] = self._kinds.get(kind, 0) + 1
            if key is not None:
                name = key if key in self._keys or len(self._keys) < _MOST_KEYS else OTHER
                self._keys[name] = self._keys.get(name, 0) + 1

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            kinds, keys = dict(self._kinds), dict(self._keys)
        yield _requests(kinds)
        yield _rejected(kinds)
        cancelled = sum(count for (_, _, error), count in kinds.items() if error is Code.REQUEST_CANCELLED)
        yield CounterMetricFamily(
            "pocketserver_requests_cancelled", "Requests whose client left or that somebody stopped.", value=cancelled
        )
        by_key = CounterMetricFamily("pocketserver_key_requests", "Requests by the name of the key.", labels=("key",))
        for name, count in keys.items():
            by_key.add_metric((name,), count)
        yield by_key

    def _label(self, route: str | None) -> str:
        if route is None or (route not in self._routes and len(self._routes) >= _MOST_ROUTES):
            return OTHER
        self._routes.add(route)
        return route


def _requests(kinds: Mapping[_Kind, int]) -> Metric:
    family = CounterMetricFamily(
        "pocketserver_requests",
        "Requests by API, route, HTTP status and error code (empty for none).",
        labels=("api", "route", "code", "error"),
    )
    for (route, status, error), count in kinds.items():
        family.add_metric((_api(route), route, str(status), error.value if error else ""), count)
    return family


def _rejected(kinds: Mapping[_Kind, int]) -> Metric:
    reasons = dict.fromkeys(sorted(set(REJECTED.values())), 0)
    for (_, _, error), count in kinds.items():
        if error is not None and error in REJECTED:
            reasons[REJECTED[error]] += count
    family = CounterMetricFamily(
        "pocketserver_requests_rejected", "Requests turned away, by reason.", labels=("reason",)
    )
    for reason, count in reasons.items():
        family.add_metric((reason,), count)
    return family


def _api(route: str) -> str:
    """The API family of a route, by its prefix."""
    return next((api for prefix, api in _APIS if route.startswith(prefix)), OTHER)
