"""Rates of one answer, computed in one place so that the log, the metrics and the last request agree."""

from pocketserver.chat import Timings, Usage


def tokens_per_second(usage: Usage | None, timings: Timings | None) -> float | None:
    """How fast tokens came after the first one; None when fewer than two came or no time was measured."""
    if usage is None or timings is None or usage.completion_tokens < 2 or timings.generation_seconds <= 0:
        return None
    return (usage.completion_tokens - 1) / timings.generation_seconds


def seconds_per_output_token(usage: Usage, seconds: float, time_to_first_token: float | None) -> float | None:
    """OpenTelemetry's time per output token: what followed the first token, divided; None for fewer than two tokens."""
    if time_to_first_token is None or usage.completion_tokens < 2:
        return None
    return max(0.0, seconds - time_to_first_token) / (usage.completion_tokens - 1)
