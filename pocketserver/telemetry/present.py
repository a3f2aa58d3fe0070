"""Figures that are read at the moment of a scrape: the lane, the engine, the last request, the processes.

Nothing is counted up and down here, so no gauge can stay up after a disconnect or a crash.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import psutil
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric

from pocketserver.chat import EngineState, EngineStatus, ModelInfo
from pocketserver.telemetry.model_figures import MeasuredAnswer
from pocketserver.telemetry.rates import tokens_per_second


class Lane(Protocol):
    """The door to the model, as far as figures look at it. Nothing here waits for the model."""

    @property
    def taken(self) -> int: ...

    @property
    def busy(self) -> bool: ...

    @property
    def stuck(self) -> bool: ...

    @property
    def waiting(self) -> int: ...


class Upstream(Protocol):
    """What is counted of another server that answers for us. There are as many as the settings name."""

    @property
    def name(self) -> str: ...

    @property
    def healthy(self) -> bool: ...

    @property
    def outcomes(self) -> Mapping[str, int]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where present figures are read. `status` and `models` answer at once; they may be called from another thread."""

    status: Callable[[], EngineStatus]
    models: Callable[[], Sequence[ModelInfo]]
    lane: Lane
    dropped_log_lines: Callable[[], int] = lambda: 0
    upstreams: Callable[[], Sequence[Upstream]] = lambda: ()


_LAST_REQUEST_HELP = {
    "finished_timestamp_seconds": "When the last answered request ended, in Unix time.",
    "duration_seconds": "From the arrival of the last answered request to its last byte.",
    "prompt_tokens": "Prompt tokens of the last answered request.",
    "cached_prompt_tokens": "Prompt tokens of the last answered request that were taken from the prefix cache.",
    "generated_tokens": "Generated tokens of the last answered request.",
    "time_to_first_token_seconds": "From the arrival of the last answered request to its first token.",
    "prompt_processing_seconds": "Time spent on the prompt of the last answered request.",
    "tokens_per_second": "Generation speed of the last answered request after its first token.",
}


class LastRequestFigures:
    """Gauges of the last request; absent before the first, because a zero would be a lie."""

    def __init__(self) -> None:
        self.last: MeasuredAnswer | None = None

    def describe(self) -> Iterable[Metric]:
        return [_gauge(f"last_request_{name}", text) for name, text in _LAST_REQUEST_HELP.items()]

    def collect(self) -> Iterator[Metric]:
        figures = {} if self.last is None else _last_request(self.last)
        for name, value in figures.items():
            if value is not None:
                yield _gauge(f"last_request_{name}", _LAST_REQUEST_HELP[name], value)


def _last_request(last: MeasuredAnswer) -> dict[str, float | None]:
    """Its figures; what was not measured is None."""
    return {
        "finished_timestamp_seconds": last.ended,
        "duration_seconds": last.seconds,
        "prompt_tokens": last.usage.prompt_tokens,
        "cached_prompt_tokens": last.usage.cached_tokens,
        "generated_tokens": last.usage.completion_tokens,
        "time_to_first_token_seconds": last.time_to_first_token,
        "prompt_processing_seconds": last.timings.prompt_seconds or None,
        "tokens_per_second": tokens_per_second(last.usage, last.timings),
    }


class StateFigures:
    """Gauges of the lane and the engine, once their sources are known."""

    def __init__(self, version: str) -> None:
        self._version = version
        self.sources: Sources | None = None

    def describe(self) -> Iterable[Metric]:
        return [_build_info(self._version)]

    def collect(self) -> Iterator[Metric]:
        yield _build_info(self._version)
        if self.sources is not None:
            status = self.sources.status()
            yield from _lane_gauges(self.sources.lane)
            yield from _engine_gauges(status, self.sources.models())
            yield from _worker_gauges(status)
            yield from _upstream_figures(self.sources.upstreams())
            yield CounterMetricFamily(
                "pocketserver_log_lines_dropped",
                "Log lines that could not be written.",
                self.sources.dropped_log_lines(),
            )


class ProcessFigures:
    """The standard figures of this process, under Prometheus' own names, on every system psutil knows."""

    def __init__(self) -> None:
        self._process = psutil.Process()

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        process = self._process
        with process.oneshot():
            memory, cpu, started = process.memory_info(), process.cpu_times(), process.create_time()
        yield GaugeMetricFamily("process_start_time_seconds", "When this process started, in Unix time.", started)
        yield GaugeMetricFamily("process_resident_memory_bytes", "Resident memory of this process.", memory.rss)
        yield GaugeMetricFamily("process_virtual_memory_bytes", "Virtual memory of this process.", memory.vms)
        yield CounterMetricFamily("process_cpu_seconds", "User and system time of this process.", cpu.user + cpu.system)
        if os.name == "posix":
            yield GaugeMetricFamily("process_open_fds", "Open file descriptors of this process.", process.num_fds())


def _lane_gauges(lane: Lane) -> Iterator[Metric]:
    yield _gauge("requests_running", "Requests that have the model now.", lane.taken)
    yield _gauge("requests_waiting", "Requests that wait for the model.", lane.waiting)
    yield _gauge("busy", "1 while the model answers a request.", int(lane.busy))
    yield _gauge("stuck", "1 while the running request makes no progress.", int(lane.stuck))


def _engine_gauges(status: EngineStatus, models: Sequence[ModelInfo]) -> Iterator[Metric]:
    loaded = status.model if status.state is EngineState.READY else None
    family = GaugeMetricFamily("pocketserver_model_loaded", "1 for the model that is loaded.", labels=("model",))
    for name in sorted({model.id for model in models} | ({loaded} if loaded else set())):
        family.add_metric((name,), int(name == loaded))
    yield family
    if loaded and status.context_size is not None:
        yield _gauge("context_size_tokens", "Tokens that fit into the loaded model's context.", status.context_size)


def _worker_gauges(status: EngineStatus) -> Iterator[Metric]:
    yield CounterMetricFamily(
        "pocketserver_worker_restarts", "How often the model's process was started again.", status.worker_restarts
    )
    if status.worker_pid is None:
        return
    try:
        resident = psutil.Process(status.worker_pid).memory_info().rss
    except psutil.Error:  # it ended a moment ago
        return
    yield _gauge("worker_resident_memory_bytes", "Resident memory of the model's process.", resident)


def _upstream_figures(upstreams: Sequence[Upstream]) -> Iterator[Metric]:
    if not upstreams:
        return
    requests = CounterMetricFamily(
        "pocketserver_upstream_requests",
        "What upstreams made of requests: accepted, refused, failed, or broken after it was accepted.",
        labels=("upstream", "outcome"),
    )
    healthy = GaugeMetricFamily(
        "pocketserver_upstream_healthy", "1 for an upstream that answers.", labels=("upstream",)
    )
    for upstream in upstreams:
        healthy.add_metric((upstream.name,), int(upstream.healthy))
        for outcome, count in upstream.outcomes.items():
            requests.add_metric((upstream.name, outcome), count)
    yield from (requests, healthy)


def _build_info(version: str) -> Metric:
    return InfoMetricFamily("pocketserver_build", "The version of this server.", {"version": version})


def _gauge(name: str, text: str, value: float | None = None) -> Metric:
    return GaugeMetricFamily(f"pocketserver_{name}", text, value)
