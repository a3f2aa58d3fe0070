"""Metrics: what is counted, that labels stay few and innocent, and that scrapers read every form."""

import gzip
import math
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from aiohttp import web
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from pocketserver.chat import EngineState, EngineStatus, ModelInfo, Timings, Usage
from pocketserver.errors import Code, Refusal
from pocketserver.gate.keys import KeyStore
from pocketserver.telemetry import exposition
from pocketserver.telemetry.metrics import Metrics
from pocketserver.telemetry.present import Sources
from pocketserver.telemetry.request_figures import REJECTED
from tests.telemetry.prometheus_bed import need, prometheus, scrape_config

PROMETHEUS_ACCEPT = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1"
    ";q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
CHAT = "/v1/chat/completions"


class Lane:
    """A door as metrics see it."""

    taken = 0
    busy = False
    stuck = False
    waiting = 0


class Device:
    """The sources of one server, to be changed by a test."""

    def __init__(self) -> None:
        self.lane = Lane()
        self.status = EngineStatus(
            state=EngineState.READY, model="tiny", context_size=8192, worker_pid=os.getpid(), worker_restarts=1
        )
        self.dropped = 0

    def sources(self) -> Sources:
        return Sources(
            status=lambda: self.status,
            models=lambda: [ModelInfo(id="tiny"), ModelInfo(id="large")],
            lane=self.lane,
            dropped_log_lines=lambda: self.dropped,
        )


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
def metrics(device: Device) -> Metrics:
    metrics = Metrics(routes=("/health", "/v1/models", CHAT, "/metrics"))
    metrics.watch(device.sources())
    return metrics


def answer(metrics: Metrics, model: str = "tiny", tokens: int = 40) -> None:
    metrics.observe_answer(
        model=model,
        usage=Usage(prompt_tokens=100, completion_tokens=tokens, cached_tokens=60),
        timings=Timings(prompt_seconds=0.5, generation_seconds=2.0),
        time_to_first_token=0.6,
        seconds=2.6,
    )


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = metrics.render()[0].decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse_text(text)
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return samples(metrics).get((f"pocketserver_{name}", frozenset(labels.items())))


# What is counted


def test_requests_are_counted_by_api_route_status_and_code(metrics: Metrics) -> None:
    metrics.observe_request(route=CHAT, status=200, error=None)
    metrics.observe_request(route=CHAT, status=200, error=None)
    metrics.observe_request(route=CHAT, status=429, error=Code.MODEL_BUSY)
    metrics.observe_request(route="/v1/messages", status=200, error=None)
    metrics.observe_request(route="/api/chat", status=200, error=None)

    assert value(metrics, "requests_total", api="openai", route=CHAT, code="200", error="") == 2
    assert value(metrics, "requests_total", api="openai", route=CHAT, code="429", error="model_busy") == 1
    assert value(metrics, "requests_total", api="anthropic", route="/v1/messages", code="200", error="") == 1
    assert value(metrics, "requests_total", api="ollama", route="/api/chat", code="200", error="") == 1
    assert value(metrics, "requests_rejected_total", reason="busy") == 1


def test_a_client_that_left_is_counted_as_cancelled(metrics: Metrics) -> None:
    metrics.observe_request(route=CHAT, status=499, error=Code.REQUEST_CANCELLED)

    assert value(metrics, "requests_cancelled_total") == 1


@pytest.mark.parametrize("code", REJECTED)
def test_every_rejection_has_a_reason_that_starts_at_zero(metrics: Metrics, code: Code) -> None:
    assert value(metrics, "requests_rejected_total", reason=REJECTED[code]) == 0

    metrics.observe_request(route=CHAT, status=400, error=code)

    assert value(metrics, "requests_rejected_total", reason=REJECTED[code]) == 1


def test_known_series_are_there_before_the_first_request(metrics: Metrics) -> None:
    assert value(metrics, "requests_total", api="openai", route=CHAT, code="200", error="") == 0
    assert value(metrics, "generated_tokens_total", model="tiny") == 0
    assert value(metrics, "time_to_first_token_seconds_count", model="tiny") == 0


def test_an_answer_is_measured_once_in_each_figure(metrics: Metrics) -> None:
    answer(metrics)
    answer(metrics, tokens=1)

    assert value(metrics, "prompt_tokens_total", model="tiny") == 200
    assert value(metrics, "generated_tokens_total", model="tiny") == 41
    assert value(metrics, "cached_prompt_tokens_total", model="tiny") == 120
    assert value(metrics, "prompt_processing_seconds_total", model="tiny") == 1.0
    assert value(metrics, "request_duration_seconds_sum", model="tiny") == pytest.approx(5.2)
    assert value(metrics, "time_to_first_token_seconds_count", model="tiny") == 2
    assert value(metrics, "request_prompt_tokens_sum", model="tiny") == 200
    # One token alone has no time per token.
    assert value(metrics, "time_per_output_token_seconds_count", model="tiny") == 1
    assert value(metrics, "time_per_output_token_seconds_sum", model="tiny") == pytest.approx(2.0 / 39)


def test_many_answers_from_many_threads_are_all_counted(metrics: Metrics) -> None:
    def some() -> None:
        for _ in range(300):
            answer(metrics)
            metrics.observe_request(route=CHAT, status=200, error=None, key="ann")

    threads = [threading.Thread(target=some) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        counted = value(metrics, "generated_tokens_total", model="tiny")
        assert counted is not None
        assert counted % 40 == 0
    for thread in threads:
        thread.join()

    assert value(metrics, "generated_tokens_total", model="tiny") == 900 * 40
    assert value(metrics, "request_duration_seconds_count", model="tiny") == 900
    assert value(metrics, "requests_total", api="openai", route=CHAT, code="200", error="") == 900
    assert value(metrics, "key_requests_total", key="ann") == 900


def test_a_broken_answer_counts_the_tokens_that_went_out(metrics: Metrics) -> None:
    metrics.observe_answer(model="tiny", usage=None, timings=None, time_to_first_token=0.2, seconds=1.0, tokens=7)

    assert value(metrics, "generated_tokens_total", model="tiny") == 7
    assert value(metrics, "request_duration_seconds_count", model="tiny") == 0


def test_the_last_requests_figures_are_absent_before_the_first_answer(metrics: Metrics) -> None:
    assert not [name for name, _ in samples(metrics) if "last_request" in name]

    answer(metrics)

    assert value(metrics, "last_request_prompt_tokens") == 100
    assert value(metrics, "last_request_generated_tokens") == 40
    assert value(metrics, "last_request_time_to_first_token_seconds") == 0.6
    assert value(metrics, "last_request_duration_seconds") == 2.6
    assert value(metrics, "last_request_tokens_per_second") == pytest.approx(39 / 2.0)


def test_a_rate_that_was_not_measured_is_left_out_not_zero(metrics: Metrics) -> None:
    answer(metrics, tokens=1)

    assert value(metrics, "last_request_generated_tokens") == 1
    assert value(metrics, "last_request_tokens_per_second") is None


def test_present_figures_are_read_at_the_scrape(metrics: Metrics, device: Device) -> None:
    device.lane.taken, device.lane.busy, device.lane.waiting, device.dropped = 1, True, 3, 5

    assert value(metrics, "requests_running") == 1
    assert value(metrics, "requests_waiting") == 3
    assert value(metrics, "busy") == 1
    assert value(metrics, "stuck") == 0
    assert value(metrics, "model_loaded", model="tiny") == 1
    assert value(metrics, "model_loaded", model="large") == 0
    assert value(metrics, "context_size_tokens") == 8192
    assert value(metrics, "worker_restarts_total") == 1
    assert value(metrics, "log_lines_dropped_total") == 5
    assert (value(metrics, "worker_resident_memory_bytes") or 0) > 1_000_000
    assert (samples(metrics)["process_resident_memory_bytes", frozenset()]) > 1_000_000


def test_a_worker_that_just_died_does_not_break_the_scrape(metrics: Metrics, device: Device) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    device.status = EngineStatus(state=EngineState.LOADING, model="tiny", worker_pid=gone.pid, worker_restarts=2)

    assert value(metrics, "worker_resident_memory_bytes") is None
    assert value(metrics, "model_loaded", model="tiny") == 0
    assert value(metrics, "worker_restarts_total") == 2


def test_two_servers_in_one_process_do_not_mix() -> None:
    first, second = Metrics(), Metrics()

    answer(first)

    assert value(first, "generated_tokens_total", model="other") == 40
    assert value(second, "generated_tokens_total", model="other") is None


# Labels


def test_unknown_paths_and_models_add_no_series(metrics: Metrics) -> None:
    answer(metrics, model="scan-first")
    metrics.observe_request(route=None, status=404, error=Code.UNKNOWN_ROUTE)
    before = len(samples(metrics))

    for number in range(500):
        metrics.observe_request(route=None, status=404, error=Code.UNKNOWN_ROUTE)
        answer(metrics, model=f"scan-{number}")

    assert len(samples(metrics)) == before
    assert b"scan" not in metrics.render()[0]
    assert value(metrics, "requests_total", api="other", route="other", code="404", error="unknown_route") == 501


def test_even_a_caller_that_passes_raw_paths_or_keys_fills_no_memory(metrics: Metrics) -> None:
    for number in range(1000):
        metrics.observe_request(route=f"/v1/{number}", status=200, error=None, key=f"key-{number}")

    names = [name for name, _ in samples(metrics)]
    assert names.count("pocketserver_requests_total") < 120
    assert names.count("pocketserver_key_requests_total") < 320


def test_requests_are_counted_by_the_name_of_the_key(metrics: Metrics) -> None:
    metrics.observe_request(route=CHAT, status=200, error=None, key="ann")
    metrics.observe_request(route=CHAT, status=200, error=None, key="ann")

    assert value(metrics, "key_requests_total", key="ann") == 2


# Forms


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", exposition.TEXT),
        ("*/*", exposition.TEXT),
        ("text/plain;version=0.0.4", exposition.TEXT),
        ("application/json", exposition.TEXT),
        ("text/html,application/xhtml+xml,*/*;q=0.8", exposition.TEXT),
        ("application/openmetrics-text", exposition.OPENMETRICS),
        ("application/openmetrics-text;version=0.0.1", exposition.OPENMETRICS),
        ("application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.25", exposition.OPENMETRICS),
        ("Application/OpenMetrics-Text; version=1.0.0", exposition.OPENMETRICS),
        (PROMETHEUS_ACCEPT, exposition.OPENMETRICS),
        ("application/openmetrics-text;q=0, text/plain", exposition.TEXT),
        ("application/openmetrics-text;q=0.2, text/plain;q=0.9", exposition.TEXT),
        ("application/openmetrics-text;q=x", exposition.TEXT),
    ],
)
def test_the_form_follows_accept(metrics: Metrics, accept: str, content_type: str) -> None:
    body, found = metrics.render(accept)

    assert found == content_type
    assert body.endswith(b"# EOF\n") == (content_type == exposition.OPENMETRICS)


def test_content_types_are_letter_by_letter_what_prometheus_3_knows() -> None:
    assert exposition.TEXT == "text/plain; version=0.0.4; charset=utf-8"
    assert exposition.OPENMETRICS == "application/openmetrics-text; version=1.0.0; charset=utf-8"


def test_both_forms_hold_the_same_families_and_no_creation_times(metrics: Metrics) -> None:
    answer(metrics)
    text, openmetrics = metrics.render()[0].decode(), metrics.render("application/openmetrics-text")[0].decode()

    in_text = {family.name for family in parse_text(text)}
    in_openmetrics = {family.name for family in parse_openmetrics(openmetrics)}

    assert {name.removesuffix("_info") for name in in_text} == in_openmetrics
    assert "_created" not in text + openmetrics


def test_histograms_are_whole(metrics: Metrics) -> None:
    answer(metrics)
    found = samples(metrics)

    for (name, labels), count in found.items():
        if name.endswith("_count"):
            infinite = (f"{name.removesuffix('_count')}_bucket", labels | {("le", "+Inf")})
            assert found[infinite] == count
    assert not any(math.isnan(number) for number in found.values())


def test_gzip_only_when_asked(metrics: Metrics) -> None:
    body = metrics.render()[0]

    packed, headers = exposition.packed(body, "deflate, gzip;q=0.8")
    plain, plain_headers = exposition.packed(body, "gzip;q=0, identity")

    assert headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed) == body
    assert plain == body
    assert "Content-Encoding" not in plain_headers


def test_promtool_finds_nothing_to_say(metrics: Metrics) -> None:
    answer(metrics)
    metrics.observe_wait(0.1)
    metrics.observe_request(route=CHAT, status=200, error=None, key="ann")

    checked = subprocess.run(
        [need("promtool"), "check", "metrics"], input=metrics.render()[0], capture_output=True, timeout=60, check=False
    )

    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_names_follow_the_conventions(metrics: Metrics) -> None:
    answer(metrics)

    for family in parse_text(metrics.render()[0].decode()):
        assert re.fullmatch(r"(pocketserver|process)_[a-z_]+", family.name), family.name
        assert family.documentation.endswith(".")


# A real scraper


async def test_a_real_prometheus_scrapes_with_the_bearer_token(metrics: Metrics, tmp_path: Path) -> None:
    keys = KeyStore(tmp_path / "home")
    key = keys.new("prometheus", ["metrics"])

    async def scrape(request: web.Request) -> web.Response:
        try:
            keys.require(keys.authenticate(request.headers.getall("Authorization", [])), "metrics")
        except Refusal as refusal:
            return web.Response(status=401, text=refusal.message)
        body, content_type = metrics.render(request.headers.get("Accept", ""))
        body, headers = exposition.packed(body, request.headers.get("Accept-Encoding", ""))
        return web.Response(body=body, headers={"Content-Type": content_type, **headers})

    app = web.Application()
    app.router.add_get("/metrics", scrape)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        target = "{}:{}".format(*runner.addresses[0])
        async with prometheus(scrape_config(target, key, tmp_path), tmp_path) as scraper:
            await scraper.until("up", 1)
            await scraper.until('pocketserver_generated_tokens_total{model="tiny"}', 0)
            answer(metrics)
            await scraper.until('pocketserver_generated_tokens_total{model="tiny"}', 40)
            assert await scraper.value("pocketserver_build_info") == 1
            assert await scraper.value("pocketserver_last_request_prompt_tokens") == 100

            keys.revoke("prometheus")
            await scraper.until("up", 0)
            (state,) = await scraper.targets()
            assert "401" in state["lastError"]
    finally:
        await runner.cleanup()
