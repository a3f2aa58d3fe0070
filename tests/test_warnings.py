"""Nothing that a client asks for is changed without a word: what was ignored or mapped is named, or refused."""

from pathlib import Path

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
