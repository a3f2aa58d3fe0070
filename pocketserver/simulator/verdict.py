"""A verdict on the client: what it did with the faults it met, judged from the requests it sent afterwards."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pocketserver.chat import JsonValue
from pocketserver.simulator.captured import CapturedRequest

_PATIENCE = 0.95
"""Share of Retry-After that counts as waited for: clients' clocks are not ours."""
_HOPELESS = frozenset(
    {
        "invalid_json", "malformed_request", "invalid_parameter", "context_length_exceeded", "tools_unsupported",
        "template_unsupported", "missing_api_key", "invalid_api_key", "insufficient_scope", "host_not_allowed",
        "origin_not_allowed", "peer_not_local", "unknown_route", "model_not_found", "method_not_allowed",
        "request_too_large", "unsupported_encoding", "insufficient_memory", "context_allocation_failed",
    }
)  # fmt: skip
_BREAKS = frozenset(
    {
        "drop_after_headers", "drop_after_tokens", "drop_inside_character", "drop_inside_line", "error_chunk",
        "truncated_json", "missing_done",
    }
)  # fmt: skip


class Mistake(StrEnum):
    """What a client can do wrong, as far as its server sees it."""

    IGNORED_RETRY_AFTER = "ignored_retry_after"
    RETRIED_HOPELESS = "retried_hopeless"
    TRUSTED_TRUNCATED = "trusted_truncated"
    LEFT_RUNNING = "left_running"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One mistake: the request that met a fault, and the later one that shows the mistake."""

    mistake: Mistake
    sentence: str
    request: str
    shown_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`resilient` when no mistake was seen; `faulty` counts the requests that met a fault or an error."""

    requests: int
    faulty: int
    findings: tuple[Finding, ...]

    @property
    def resilient(self) -> bool:
        return not self.findings

    def shown(self) -> dict[str, JsonValue]:
        return {
            "resilient": self.resilient,
            "requests": self.requests,
            "faulty": self.faulty,
            "findings": [
                {
                    "mistake": finding.mistake.value,
                    "sentence": finding.sentence,
                    "request": finding.request,
                    "shown_by": finding.shown_by,
                }
                for finding in self.findings
            ],
        }


def judge(requests: Sequence[CapturedRequest]) -> Verdict:
    """Look at each request that went wrong and at those that came after it."""
    findings: list[Finding] = []
    known = {id(request): _fingerprint(request) for request in requests}
    for number, request in enumerate(requests):
        later = requests[number + 1 :]
        again = [other for other in later if known[id(other)] == known[id(request)]]
        for check in (_retry_after, _hopeless, _left_running):
            findings += check(request, again)
        findings += _trusted(request, later)
    faulty = sum(1 for request in requests if request.fault or request.error)
    return Verdict(requests=len(requests), faulty=faulty, findings=tuple(findings))


def _retry_after(request: CapturedRequest, again: Sequence[CapturedRequest]) -> list[Finding]:
    if request.retry_after is None or request.seconds is None or not again:
        return []
    waited = again[0].arrived - (request.arrived + request.seconds)
    if waited >= request.retry_after * _PATIENCE:
        return []
    sentence = f"It was asked to wait {request.retry_after:g} s and came back after {max(waited, 0):.2f} s."
    return [_finding(Mistake.IGNORED_RETRY_AFTER, sentence, request, again[0])]


def _hopeless(request: CapturedRequest, again: Sequence[CapturedRequest]) -> list[Finding]:
    if request.error not in _HOPELESS or not again:
        return []
    sentence = f"It sent the same request again after {request.error}, which no repetition can mend."
    return [_finding(Mistake.RETRIED_HOPELESS, sentence, request, again[0])]


def _left_running(request: CapturedRequest, again: Sequence[CapturedRequest]) -> list[Finding]:
    """The same request once more while the first is still being answered: nobody closed the first."""
    for other in again:
        if request.seconds is None or other.arrived < request.arrived + request.seconds:
            sentence = "It asked again without closing the request before, which kept the model busy."
            return [_finding(Mistake.LEFT_RUNNING, sentence, request, other)]
    return []


def _trusted(request: CapturedRequest, later: Sequence[CapturedRequest]) -> list[Finding]:
    """A broken answer that turns up as a turn of the conversation was taken for a whole one."""
    if request.fault not in _BREAKS:
        return []
    asked = _messages(request)
    for other in later:
        messages = _messages(other)
        follows = messages[: len(asked)] == asked and len(messages) > len(asked)
        if asked and follows and _is_answer(messages[len(asked)]):
            sentence = f"It went on with the answer that {request.fault} had broken off."
            return [_finding(Mistake.TRUSTED_TRUNCATED, sentence, request, other)]
    return []


def _finding(mistake: Mistake, sentence: str, request: CapturedRequest, shown_by: CapturedRequest) -> Finding:
    return Finding(mistake=mistake, sentence=sentence, request=request.id, shown_by=shown_by.id)


def _fingerprint(request: CapturedRequest) -> str:
    """Equal for the same request sent again; a GET is never one, since polling is no retry."""
    if request.method != "POST":
        return f"{request.method} {request.id}"
    return f"{request.path} {hashlib.sha256(request.body).hexdigest()}"


def _messages(request: CapturedRequest) -> list[JsonValue]:
    parse: Callable[[bytes], JsonValue] = json.loads
    try:
        document = parse(request.body)
    except ValueError:
        return []
    messages = document.get("messages") or document.get("input") if isinstance(document, dict) else None
    return messages if isinstance(messages, list) else []


def _is_answer(message: JsonValue) -> bool:
    return isinstance(message, dict) and message.get("role") == "assistant"
