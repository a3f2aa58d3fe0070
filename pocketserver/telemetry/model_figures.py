"""What is measured of each model's answers: one lock for all figures, where the library's own take one for each."""

import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

import msgspec
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from pocketserver.chat import Timings, Usage
from pocketserver.telemetry import buckets
from pocketserver.telemetry.rates import seconds_per_output_token

_COUNTERS = {
    "prompt": ("prompt_tokens", "Prompt tokens of answered requests, cached ones included."),
    "generated": ("generated_tokens", "Tokens generated."),
    "cached": ("cached_prompt_tokens", "Prompt tokens that were taken from the prefix cache."),
    "prompt_seconds": ("prompt_processing_seconds", "Time the model spent on prompts."),
    "generation_seconds": ("generation_seconds", "Time from the first token to the last, summed."),
}
_HISTOGRAMS = {
    "duration": (
        "request_duration_seconds",
        "From a request's arrival to the end of its answer.",
        buckets.REQUEST_DURATION_SECONDS,
    ),
    "first_token": (
        "time_to_first_token_seconds",
        "From a request's arrival to its first token, waiting included.",
        buckets.TIME_TO_FIRST_TOKEN_SECONDS,
    ),
    "per_token": (
        "time_per_output_token_seconds",
        "Time for each token after the first.",
        buckets.TIME_PER_OUTPUT_TOKEN_SECONDS,
    ),
    "prompt_size": ("request_prompt_tokens", "Prompt tokens of each answered request.", buckets.PROMPT_TOKENS),
}

_MOST_UNCOUNTED = 256


class MeasuredAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One whole answer. Times are in seconds from the request's arrival, `ended` is Unix time."""

    usage: Usage
    timings: Timings
    time_to_first_token: float | None
    seconds: float
    ended: float


class Distribution:
    """How many values fell at or below each bound, and their sum."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def shown(self) -> tuple[list[tuple[str, float]], float]:
        """Cumulated buckets and the sum, as the exposition wants them."""
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        return [*zip(names, map(float, accumulate(self._counts)), strict=True)], self._sum


class ModelFigures:
    """One model's counters and distributions. Safe from any thread.

    Answers are only put aside, and counted many at a time or when somebody looks: that costs a third.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._uncounted: list[MeasuredAnswer] = []
        self._counters = dict.fromkeys(_COUNTERS, 0.0)
        self._distributions = {field: Distribution(bounds) for field, (_, _, bounds) in _HISTOGRAMS.items()}

    def observe(self, answer: MeasuredAnswer) -> None:
        """Add one whole answer."""
        with self._lock:
            self._uncounted.append(answer)
            if len(self._uncounted) >= _MOST_UNCOUNTED:
                self._count()

    def broke_off(self, tokens: int) -> None:
        """Add an answer that went out in part."""
        with self._lock:
            self._counters["generated"] += tokens

    def counter(self, field: str) -> float:
        with self._lock:
            self._count()
            return self._counters[field]

    def distribution(self, field: str) -> tuple[list[tuple[str, float]], float]:
        with self._lock:
            self._count()
            return self._distributions[field].shown()

    def _count(self) -> None:
        """Count what was put aside; the lock is held."""
        counters, distributions = self._counters, self._distributions
        for answer in self._uncounted:
            usage, timings, first_token = answer.usage, answer.timings, answer.time_to_first_token
            per_token = seconds_per_output_token(usage, answer.seconds, first_token)
            counters["prompt"] += usage.prompt_tokens
            counters["generated"] += usage.completion_tokens
            counters["cached"] += usage.cached_tokens
            counters["prompt_seconds"] += timings.prompt_seconds
            counters["generation_seconds"] += timings.generation_seconds
            distributions["duration"].observe(answer.seconds)
            distributions["prompt_size"].observe(usage.prompt_tokens)
            if first_token is not None:
                distributions["first_token"].observe(first_token)
            if per_token is not None:
                distributions["per_token"].observe(per_token)
        self._uncounted.clear()


class ModelCollector(Collector):
    """Shows the figures of all models to a registry."""

    def __init__(self, models: Mapping[str, ModelFigures]) -> None:
        self._models = models

    def collect(self) -> Iterable[Metric]:
        models = dict(self._models)
        for field, (name, text) in _COUNTERS.items():
            counter = CounterMetricFamily(f"pocketserver_{name}", text, labels=("model",))
            for model, figures in models.items():
                counter.add_metric((model,), figures.counter(field))
            yield counter
        for field, (name, text, _) in _HISTOGRAMS.items():
            histogram = HistogramMetricFamily(f"pocketserver_{name}", text, labels=("model",))
            for model, figures in models.items():
                shown, total = figures.distribution(field)
                histogram.add_metric((model,), shown, total)
            yield histogram
