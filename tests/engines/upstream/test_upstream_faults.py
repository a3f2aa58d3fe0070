"""Whatever another server answers, our clients get a status, a code and a sentence in their own API's shape."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.engines.upstream.fake import STREAM_HEAD, Asked, fake_upstream, plain, saying
from tests.engines.upstream.gateway import BODIES, HI, SECRET, answered_by, in_front_of
from tests.waiting import until


def error_text(path: str, document: dict[str, object]) -> str:
    error = document["error"]
    return error if isinstance(error, str) else str(error["message"])  # type: ignore[index]


FAULTS: dict[str, tuple[bytes, set[int]]] = {
    "an error inside a 200": (plain(200, b'{"error":{"message":"slot busy","code":502}}'), {502}),
    "an error that is a word": (plain(401, b'{"error":"Unauthorized"}'), {502}),
    "a page of a proxy": (plain(502, b"<html>Bad gateway</html>", "text/html"), {503, 529}),
    "nothing": (plain(500, b""), {502}),
    "a login page": (plain(200, b"<html>Log in at 10.0.0.9</html>", "text/html"), {502}),
    "a document without choices": (plain(200, b"{}"), {502}),
    "an unknown model": (plain(404, b'{"error":{"message":"no such model"}}'), {404}),
    "too long a prompt": (
        plain(400, b'{"error":{"message":"too long","code":"context_length_exceeded"}}', "text/plain"),
        {400},
    ),
    "busy": (plain(429, b'{"error":{"message":"busy"}}', Retry_After="7"), {429, 529, 503}),
    "a stream that begins with an error": (
        STREAM_HEAD + b'data: {"error":{"message":"died"}}\n\ndata: [DONE]\n\n',
        {502},
    ),
    "a stream that breaks off": (STREAM_HEAD + b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n', {502}),
}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("fault", FAULTS)
async def test_each_fault_has_a_status_and_a_sentence_in_each_shape(tmp_path: Path, path: str, fault: str) -> None:
    said, statuses = FAULTS[fault]
    async with answered_by(tmp_path, saying(said)) as (upstream, session, _server):
        async with session.post(path, json=BODIES[path]) as answer:
            text = await answer.text()
            assert answer.status in statuses
            assert answer.status != 401, "the client's key is right"
        message = error_text(path, json.loads(text))
        assert len(message) > 5
        for hidden in (str(upstream.port), "127.0.0.1", "10.0.0.9", "html", SECRET):
            assert hidden not in text
        if fault == "busy":
            assert answer.headers["Retry-After"] == "7"


async def test_a_busy_upstream_without_a_time_gets_ours(tmp_path: Path) -> None:
    async with answered_by(tmp_path, saying(plain(429, b"{}"))) as (_upstream, session, _server):
        async with session.post("/v1/chat/completions", json=BODIES["/v1/chat/completions"]) as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (429, "5")


async def test_an_endless_body_is_cut_off(tmp_path: Path) -> None:
    async def endless(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 314572800\r\n\r\n")
        for _ in range(300):
            writer.write(b" " * 1048576)
            await writer.drain()

    async with answered_by(tmp_path, endless) as (upstream, session, _server):
        async with session.post("/v1/chat/completions", json=BODIES["/v1/chat/completions"]) as answer:
            assert answer.status == 502
        await asyncio.wait_for(upstream.asked[0].left.wait(), 20)


async def test_an_upstream_that_is_not_there_is_said_to_be_unreachable(tmp_path: Path) -> None:
    async with in_front_of(tmp_path, "http://127.0.0.1:9/v1") as server, server.session() as session:
        async with session.post("/v1/chat/completions", json=BODIES["/v1/chat/completions"]) as answer:
            assert answer.status == 503
            assert answer.headers["Retry-After"]
            assert (await answer.json())["error"]["code"] == "upstream_unreachable"


async def test_a_fault_in_mid_stream_is_an_error_chunk_and_no_end_mark(tmp_path: Path) -> None:
    said = STREAM_HEAD + b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
    async with answered_by(tmp_path, saying(said)) as (_upstream, session, _server):
        async with session.post("/v1/chat/completions", json={"messages": HI, "stream": True}) as answer:
            assert answer.status == 200
            text = await answer.text()
        assert '"content":"a"' in text
        assert '"code":"upstream_failed"' in text
        assert "[DONE]" not in text


CALLS = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": HI, "max_tokens": 9},
    "/api/chat": {"model": "org/real-name", "messages": HI},
    "/v1/embeddings": {"input": "hi"},
}


@pytest.mark.parametrize("tokens", [0, 3])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", CALLS)
async def test_a_client_that_leaves_ends_the_work_upstream(
    tmp_path: Path, path: str, stream: bool, tokens: int
) -> None:
    sent = asyncio.Event()

    async def slow(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if tokens and "embeddings" not in asked.path:
            writer.write(STREAM_HEAD)
            for _ in range(tokens):
                writer.write(b'data: {"choices":[{"delta":{"content":"a "}}]}\n\n')
            await writer.drain()
        sent.set()
        await asyncio.wait_for(asked.left.wait(), 60)

    async with answered_by(tmp_path, slow) as (upstream, session, server):
        asking = asyncio.create_task(session.post(path, json={**CALLS[path], "stream": stream}))
        await asyncio.wait_for(sent.wait(), 20)
        if tokens and stream and "embeddings" not in path:
            answer = await asyncio.wait_for(asking, 20)
            await answer.content.readany()
            answer.close()
        else:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        await asyncio.wait_for(upstream.asked[0].left.wait(), 20)
        exchange = await server.exchange()
        assert exchange.status == 499 or exchange.error == "request_cancelled"
        assert server.server.engine.status.model == "org/real-name", "the upstream is still in order"
        await until(lambda: not server.server.door.busy)


async def test_the_way_of_a_request_is_told_to_the_next_server(tmp_path: Path) -> None:
    whole = STREAM_HEAD + b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    async with answered_by(tmp_path, saying(whole)) as (upstream, session, server):
        headers = {"x-pocketserver-via": "first"}
        async with session.post("/v1/chat/completions", json={"messages": HI}, headers=headers) as answer:
            assert answer.status == 200
        asked = upstream.asked[0].headers
        assert asked["x-pocketserver-via"] == f"first, {server.server.instance}"
        assert asked["authorization"] == f"Bearer {SECRET}", "and the client's own key stays here"


async def test_another_upstream_takes_over_before_the_first_token_and_never_after(tmp_path: Path) -> None:
    whole = STREAM_HEAD + b'data: {"choices":[{"delta":{"content":"b"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    early = STREAM_HEAD + b'data: {"choices":[{"delta":{"role":"assistant"}}]}\n\n'
    late = STREAM_HEAD + b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
    async with fake_upstream(saying(whole)) as good:
        for broken, status in ((early, 200), (plain(503, b""), 200), (late, 502)):
            async with fake_upstream(saying(broken)) as bad, in_front_of(tmp_path, bad.url, good.url) as server:
                async with server.session() as session:
                    async with session.post("/v1/chat/completions", json={"messages": HI}) as answer:
                        assert answer.status == status
                        if status == 200:
                            assert (await answer.json())["choices"][0]["message"]["content"] == "b"
