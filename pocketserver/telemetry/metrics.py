"""What the server counts and measures, for Prometheus. Figures never wait for the model and never hold foreign text.

Every label comes from a fixed or bounded set: route templates, statuses, error codes, installed models, names of keys.
"""

import time
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pocketserver import __version__
from pocketserver.chat import Timings, Usage
from pocketserver.errors import Code
from pocketserver.telemetry import buckets, exposition
from pocketserver.telemetry.model_figures import MeasuredAnswer, ModelCollector, ModelFigures
from pocketserver.telemetry.present import LastRequestFigures, ProcessFigures, Sources, StateFigures
from pocketserver.telemetry.request_figures import OTHER, RequestFigures

_MOST_MODELS = 200


class Metrics:
    """The metrics of one server, in a registry of its own: two servers in one process do not mix.

    Observing is safe from any thread and costs a few microseconds.
    """

    def __init__(self, *, version: str = __version__, routes: Iterable[str] = ()) -> None:
        """`routes` are the route templates that exist; their series start at 0, so that `rate()` sees the first."""
        self._registry = CollectorRegistry()
        self._state = StateFigures(version)
        self._last = LastRequestFigures()
        for collector in (self._state, self._last, ProcessFigures()):
            self._registry.register(collector)
        self._requests = RequestFigures(routes)
        self._registry.register(self._requests)
        self._answers = _Answers(self._registry)

    def watch(self, sources: Sources) -> None:
        """Say where present figures (busy, waiting, loaded, the model's process) are read at each scrape."""
        self._state.sources = sources

    def observe_request(self, *, route: str | None, status: int, error: Code | None, key: str | None = None) -> None:
        """Count one finished request, refused ones too. `route` is the template, None for an unknown path."""
        self._requests.count(route, status, error, key)

    def observe_wait(self, seconds: float) -> None:
        """A request got its turn after waiting so long."""
        self._answers.waited.observe(seconds)

    def observe_answer(
        self,
        *,
        model: str | None,
        usage: Usage | None,
        timings: Timings | None,
        time_to_first_token: float | None,
        seconds: float,
        tokens: int = 0,
    ) -> None:
        """Measure one generation, with times in seconds from the request's arrival.

        A generation that broke off has no `usage`; then only `tokens`, as many as went out, are counted.
        """
        figures = self._answers.of(self._known(model))
        if usage is None:
            figures.broke_off(tokens)
            return
        answer = self._last.last = MeasuredAnswer(
            usage=usage,
            timings=timings or Timings(),
            time_to_first_token=time_to_first_token,
            seconds=seconds,
            ended=time.time(),
        )
        figures.observe(answer)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The exposition and its exact Content-Type, by the request's Accept. Takes milliseconds: use a thread."""
        self._start_loaded_model_at_zero()
        return exposition.render(_WithoutCreationTimes(self._registry), accept)

    def _start_loaded_model_at_zero(self) -> None:
        sources = self._state.sources
        loaded = sources.status().model if sources is not None else None
        if loaded is not None:
            self._answers.of(loaded)

    def _known(self, model: str | None) -> str:
        """The label for a model: its id when it is installed, since clients choose that string."""
        if model is None or self._answers.has(model):
            return model or OTHER
        sources = self._state.sources
        if sources is None:
            return OTHER
        installed = {info.id for info in sources.models()} | {sources.status().model}
        return model if model in installed else OTHER


class _WithoutCreationTimes(Collector):
    """A registry's metrics without `_created` samples, which double the text; the library's switch for it is global."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


class _Answers:
    """What is measured of generations, by model."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.waited = Histogram(
            "pocketserver_queue_duration_seconds",
            "Time that requests waited for the model.",
            registry=registry,
            buckets=buckets.QUEUE_DURATION_SECONDS,
        )
        self._models: dict[str, ModelFigures] = {}
        registry.register(ModelCollector(self._models))

    def has(self, model: str) -> bool:
        return model in self._models

    def of(self, model: str) -> ModelFigures:
        if model not in self._models and len(self._models) >= _MOST_MODELS:
            model = OTHER
        figures = self._models.get(model)
        if figures is None:
            figures = self._models[model] = ModelFigures()
        return figures
