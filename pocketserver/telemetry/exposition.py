"""Which form of the metrics a scraper gets, and its exact Content-Type: text 0.0.4, or OpenMetrics 1.0."""

import gzip

from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
"""Prometheus 3 fails a scrape whose Content-Type it does not know, so both are spelled out here."""

_LEAST_WORTH_PACKING_BYTES = 1024


def render(metrics: Collector, accept: str) -> tuple[bytes, str]:
    """The exposition and its Content-Type. Whoever asks for neither form gets text: every scraper reads it."""
    if wants_openmetrics(accept):
        return openmetrics.generate_latest(metrics), OPENMETRICS  # type: ignore[no-untyped-call]
    return generate_latest(metrics), TEXT


def wants_openmetrics(accept: str) -> bool:
    """Whether an Accept header names OpenMetrics, and likes nothing of the text family better."""
    qualities = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for part in accept.split(","):
        media_type, quality = _quality(part)
        if media_type in qualities:
            qualities[media_type] = max(qualities[media_type], quality)
    wanted = qualities["application/openmetrics-text"]
    return wanted > 0 and wanted >= qualities["text/plain"]


def packed(body: bytes, accept_encoding: str) -> tuple[bytes, dict[str, str]]:
    """The body as it travels, and the headers that say so: gzip when the scraper takes it and it is worth the work."""
    headers = {"Vary": "Accept, Accept-Encoding"}
    takes_gzip = any(coding == "gzip" and quality > 0 for coding, quality in map(_quality, accept_encoding.split(",")))
    if not takes_gzip or len(body) < _LEAST_WORTH_PACKING_BYTES:
        return body, headers
    return gzip.compress(body, compresslevel=3), {**headers, "Content-Encoding": "gzip"}


def _quality(part: str) -> tuple[str, float]:
    """A value of an Accept header and its weight; a weight that is no number counts as 0 (RFC 9110, 12.4.2)."""
    value, *parameters = (piece.strip().lower() for piece in part.split(";"))
    for parameter in parameters:
        name, _, number = parameter.partition("=")
        if name.strip() == "q":
            try:
                return value, float(number)
            except ValueError:
                return value, 0.0
    return value, 1.0
