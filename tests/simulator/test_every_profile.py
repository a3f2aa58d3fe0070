"""Every row of every product's status table, in each API family that it serves, provoked in one line and seen over a
socket. Grows by itself with the profiles."""

import http.client
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from pocketserver.errors import Code
from pocketserver.profile import Profile, load_profile, profile_names
from pocketserver.testing.device import SimulatedServer

Factory = Callable[..., SimulatedServer]

BODIES: Mapping[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 100},
    "/api/chat": {"messages": [{"role": "user", "content": "hi"}]},
    "/api/generate": {"prompt": "hi"},
}
"""The routes that generate."""

TABLE: Mapping[str, tuple[int, int, int]] = {
    "invalid_json": (400, 400, 400),
    "malformed_request": (400, 400, 400),
    "invalid_parameter": (400, 400, 400),
    "context_length_exceeded": (400, 400, 400),
    "tools_unsupported": (400, 400, 400),
    "template_unsupported": (400, 400, 400),
    "previous_response_not_found": (400, 400, 400),
    "missing_api_key": (401, 401, 401),
    "invalid_api_key": (401, 401, 401),
    "insufficient_scope": (403, 403, 403),
    "invalid_pairing_code": (403, 403, 403),
    "host_not_allowed": (403, 403, 403),
    "origin_not_allowed": (403, 403, 403),
    "peer_not_local": (403, 403, 403),
    "unknown_route": (404, 404, 404),
    "model_not_found": (404, 404, 404),
    "response_not_found": (404, 404, 404),
    "method_not_allowed": (405, 405, 405),
    "request_too_large": (413, 413, 413),
    "unsupported_encoding": (415, 415, 415),
    "too_many_attempts": (429, 429, 429),
    "model_busy": (429, 529, 503),
    "queue_full": (429, 529, 503),
    "request_cancelled": (503, 529, 503),
    "model_not_loaded": (503, 529, 503),
    "host_gone": (503, 529, 503),
    "disconnected_by_host": (503, 529, 503),
    "insufficient_memory": (503, 529, 500),
    "context_allocation_failed": (503, 529, 500),
    "upstream_failed": (502, 502, 502),
    "upstream_unreachable": (503, 529, 503),
    "generation_stalled": (504, 504, 504),
    "worker_lost": (500, 500, 500),
    "generation_failed": (500, 500, 500),
    "internal_error": (500, 500, 500),
}
"""Statuses of the OpenAI, Anthropic and Ollama families, as the products' pages say them."""
FAMILIES = ("openai", "anthropic", "ollama")
OWN_ROWS = {("pocketllm", "request_cancelled"): 499, ("pocketllm", "generation_stalled"): 500}
OWN_WORDS = {("pocketllm", "context_length_exceeded"): "invalid_parameter", ("", "response_not_found"): None}
WAITS = {
    "too_many_attempts": 6, "model_busy": 1, "queue_full": 5, "model_not_loaded": 5, "host_gone": 5,
    "disconnected_by_host": 5, "generation_stalled": 5,
}  # fmt: skip
HEADERS = {
    "missing_api_key": ("WWW-Authenticate", "Bearer"),
    "invalid_api_key": ("WWW-Authenticate", 'Bearer error="invalid_token"'),
    "method_not_allowed": ("Allow", "POST"),
    "insufficient_memory": ("x-should-retry", "false"),
    "context_allocation_failed": ("x-should-retry", "false"),
}


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def family_of(profile: Profile, path: str) -> str:
    prefixes = [prefix for prefix in profile.error_families if path.startswith(prefix)]
    return profile.error_families[max(prefixes, key=len)]


PLACES = [
    pytest.param(name, path, id=f"{name}{path}")
    for name in profile_names()
    for path in BODIES
    if path in load_profile(name).routes
]


@pytest.fixture
def server(pocketserver_factory: Factory, name: str) -> SimulatedServer:
    return pocketserver_factory(profile=name)


def ask(server: SimulatedServer, path: str, *, stream: bool) -> Answer:
    port = urlsplit(server.base_url).port
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"Authorization": f"Bearer {server.api_key}"}
    try:
        body = json.dumps({"model": server.model, "stream": stream, **BODIES[path]})
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        return Answer(response.status, dict(response.getheaders()), response.read())
    finally:
        connection.close()


def by_control(server: SimulatedServer, fault: str) -> None:
    url = urlsplit(server.control_url)
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=30)
    headers = {"Authorization": f"Bearer {server.control_token}"}
    connection.request("POST", f"{url.path}/faults", json.dumps({"fault": fault}), headers)
    assert connection.getresponse().status == 200
    connection.close()


def check(name: str, path: str, code: str, answer: Answer) -> None:
    family = family_of(load_profile(name), path)
    status = OWN_ROWS.get((name, code), TABLE[code][FAMILIES.index(family)])
    assert answer.status == status, answer
    assert answer.headers.get("Retry-After") == (str(WAITS[code]) if code in WAITS else None)
    if code in HEADERS:
        header, value = HEADERS[code]
        assert answer.headers[header] == value
    word = OWN_WORDS.get((name, code), OWN_WORDS.get(("", code), code))
    SHAPES[family](answer.json, word)


def is_openai_error(document: Any, code: str | None) -> None:
    error = document["error"]
    assert set(error) >= {"message", "type", "param", "code"}
    assert error["code"] == code


def is_anthropic_error(document: Any, _code: str | None) -> None:
    assert document["type"] == "error"
    assert set(document["error"]) == {"type", "message"}


def is_ollama_error(document: Any, _code: str | None) -> None:
    assert set(document) == {"error"}
    assert isinstance(document["error"], str)


SHAPES: Mapping[str, Callable[[Any, str | None], None]] = {
    "openai": is_openai_error,
    "anthropic": is_anthropic_error,
    "ollama": is_ollama_error,
}


@pytest.mark.parametrize(("name", "path"), PLACES)
def test_each_code_is_one_line_of_control_and_one_fixture_call_away(
    server: SimulatedServer, name: str, path: str
) -> None:
    for code in TABLE:
        by_control(server, code)
        check(name, path, code, ask(server, path, stream=False))
        server.fail_next(code)
        check(name, path, code, ask(server, path, stream=True))

    assert ask(server, path, stream=False).status == 200


@pytest.mark.parametrize(("name", "path"), PLACES)
def test_a_stream_that_fails_says_so_in_its_familys_words_and_never_looks_whole(
    server: SimulatedServer, name: str, path: str
) -> None:
    server.fail_next("error_chunk", code="worker_lost", after_tokens=3)

    answer = ask(server, path, stream=True)

    assert answer.status == 200
    family = family_of(load_profile(name), path)
    assert b"error" in answer.body
    for end in (b"[DONE]", b"message_stop", b'"done":true', b"response.completed"):
        assert end not in answer.body, (family, answer.body[-300:])


@pytest.mark.parametrize(("name", "path"), PLACES)
@pytest.mark.parametrize(
    ("state", "code"),
    [
        ({"memory_limit_bytes": 500_000_000}, "insufficient_memory"),
        ({"memory_limit_bytes": 1_000_000_000}, "context_allocation_failed"),
    ],
)
def test_a_device_without_memory_answers_by_the_same_rows(
    server: SimulatedServer, name: str, path: str, state: Mapping[str, int], code: str
) -> None:
    for word, value in state.items():
        setattr(server.device, word, value)

    check(name, path, code, ask(server, path, stream=False))


def test_the_table_has_every_code() -> None:
    assert set(TABLE) == {code.value for code in Code}


def test_every_profile_is_met() -> None:
    assert {place.values[0] for place in PLACES} == set(profile_names())
