"""Nothing that a client asks for is changed without a word: what was ignored or mapped is named, or refused."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pocketserver.profile import load_profile
from tests.serving import running

BODY = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}], "cache_prompt": True, "user": "me"}


async def test_hub_names_what_it_ignored_and_mapped_in_header_and_document(tmp_path: Path) -> None:
    async with (
        running(tmp_path, profile="hub", mdns=False) as server,
        server.session() as session,
        session.post("/v1/chat/completions", json=BODY) as answer,
    ):
        told = ["cache_prompt:ignored", "user:ignored", "model:gpt-4o was answered by sim-1b"]
        assert (await answer.json())["warnings"] == told
        assert answer.headers["x-pocketserver-warnings"] == ", ".join(told)


async def test_a_stream_has_them_in_its_header(tmp_path: Path) -> None:
    async with (
        running(tmp_path, profile="hub", mdns=False) as server,
        server.session() as session,
        session.post("/v1/chat/completions", json={**BODY, "stream": True}) as answer,
    ):
        assert "user:ignored" in answer.headers["x-pocketserver-warnings"]


async def test_a_product_profile_says_nothing_of_it(tmp_path: Path) -> None:
    async with (
        running(tmp_path) as server,
        server.session() as session,
        session.post("/v1/chat/completions", json=BODY) as answer,
    ):
        assert answer.status == 200
        assert "x-pocketserver-warnings" not in answer.headers
        assert "warnings" not in await answer.json()


async def test_strict_refuses_instead(tmp_path: Path) -> None:
    async with (
        running(tmp_path, strict="on") as server,
        server.session() as session,
        session.post("/v1/chat/completions", json=BODY) as refused,
    ):
        assert refused.status == 400
        error = (await refused.json())["error"]
        assert (error["code"], error["param"]) == ("invalid_parameter", "cache_prompt")


async def test_foreign_text_cannot_break_the_header(tmp_path: Path) -> None:
    field = "a\r\nSet-Cookie: é,x"
    async with (
        running(tmp_path, profile="hub", mdns=False) as server,
        server.session() as session,
        session.post("/v1/chat/completions", json={**BODY, field: 1, **{f"field{n}": n for n in range(200)}}) as answer,
    ):
        line = answer.headers["x-pocketserver-warnings"]
        assert "Set-Cookie" not in answer.headers
        assert len(line) <= 1024
        assert line.isascii()


HI = [{"role": "user", "content": "hi"}]
EVERY_API: Mapping[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/embeddings": {"input": "hi"},
    "/v1/messages": {"messages": HI, "max_tokens": 20},
    "/v1/messages/count_tokens": {"messages": HI},
    "/v1/explain": {"input": "hi"},
    "/api/chat": {"messages": HI},
    "/api/generate": {"prompt": "hi"},
    "/api/embed": {"input": "hi"},
    "/api/embeddings": {"prompt": "hi"},
}
ODD = {"odd_b": 1, "odd_a": 1, "odd_c": None}
TOLD = ["odd_b:ignored", "odd_a:ignored"]
PRODUCTS = ("pocketllm", "pooled", "roach")


async def post(origin: str, path: str, body: dict[str, Any]) -> tuple[int, Mapping[str, str], Any]:
    async with aiohttp.ClientSession(origin) as http, http.post(path, json=body) as answer:
        return answer.status, answer.headers, await answer.json()


@pytest.mark.parametrize("path", EVERY_API)
async def test_every_api_of_hub_names_unknown_fields_in_the_order_of_the_body(tmp_path: Path, path: str) -> None:
    async with running(tmp_path, profile="hub", mdns=False, auth="off") as server:
        body = {"model": "sim-1b", "stream": False, **EVERY_API[path], **ODD}
        status, headers, document = await post(server.origin, path, body)

    extra = ["stream:ignored"] if path in ("/api/embed", "/api/embeddings") else []
    assert status == 200, document
    assert document["warnings"] == [*extra, *TOLD]
    assert headers["x-pocketserver-warnings"] == ", ".join([*extra, *TOLD])


@pytest.mark.parametrize(
    ("profile", "path"),
    [(name, path) for name in PRODUCTS for path in EVERY_API if path in load_profile(name).routes],
)
async def test_no_api_of_a_product_says_a_word_of_them(tmp_path: Path, profile: str, path: str) -> None:
    async with running(tmp_path, profile=profile, mdns=False, auth="off") as server:
        model = load_profile(profile).model_prefix + "sim-1b"
        body = {"model": model, "stream": False, **EVERY_API[path], **ODD}
        status, headers, document = await post(server.origin, path, body)

    assert status == 200, document
    assert "x-pocketserver-warnings" not in headers
    assert "warnings" not in document


@pytest.mark.parametrize("path", EVERY_API)
async def test_every_api_of_a_strict_server_refuses_them(tmp_path: Path, path: str) -> None:
    async with running(tmp_path, profile="hub", mdns=False, auth="off", strict="on") as server:
        status, _, document = await post(server.origin, path, {"model": "sim-1b", **EVERY_API[path], **ODD})

    assert status == 400
    assert "odd_b" in str(document["error"])


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/chat/completions", "max_completion_tokens"),
        ("/v1/chat/completions", "max_tokens"),
        ("/v1/responses", "max_output_tokens"),
        ("/v1/messages", "max_tokens"),
    ],
)
async def test_a_limit_beyond_the_context_is_told_with_what_was_left(tmp_path: Path, path: str, field: str) -> None:
    async with running(tmp_path, profile="hub", mdns=False, auth="off") as server:
        asked = {"model": "sim-1b", **EVERY_API[path]}
        _, _, most = await post(server.origin, path, {**asked, field: 100_000})
        _, headers, enough = await post(server.origin, path, {**asked, field: 100})
        _, _, unsaid = await post(server.origin, path, asked)

    [said] = most["warnings"]
    tokens = most["usage"].get("prompt_tokens") or most["usage"]["input_tokens"]
    assert said == f"{field}:cut to {8192 - tokens} by the context"
    assert "warnings" not in {**enough, **unsaid, **headers}
