"""However an upstream writes its stream, clients of every API get the whole text once, and an end only if there was one."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from tests.engines.upstream.fake import STREAM_HEAD, Answer, Asked, saying
from tests.engines.upstream.gateway import HI, answered_by

TEXT = "Grüße 😀 done"
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


def chunk(text: str | None, *, reason: str | None = None, usage: Any = None, choices: bool = True) -> str:
    choice = {"index": 0, "delta": {} if text is None else {"content": text}, "finish_reason": reason}
    return json.dumps({"id": "c", "choices": [choice] if choices else [], "usage": usage}, ensure_ascii=False)


CHUNKS = [
    chunk("Grüße "), chunk("😀 "), chunk("done"), chunk(None, reason="stop"), chunk(None, usage=USAGE, choices=False)
]  # fmt: skip


def written(*chunks: str, end: str = "\n", field: str = "data: ", done: bool = True) -> bytes:
    events = [*chunks, *(["[DONE]"] if done else [])]
    return "".join(f"{field}{event}{end}{end}" for event in events).encode()


def two_lines(event: str) -> str:
    """The same JSON over two data lines; a line feed between members is white space."""
    return event.replace(", ", ",\ndata: ", 1)


WHOLE = {
    "line feeds": written(*CHUNKS),
    "carriage returns and line feeds": written(*CHUNKS, end="\r\n"),
    "carriage returns": written(*CHUNKS, end="\r"),
    "no blank": written(*CHUNKS, field="data:"),
    "comments": written(*CHUNKS, field=": glued\ndata: ", end="\n: more\n\n: between\n"),
    "two data lines": written(*map(two_lines, CHUNKS)),
    "all in the last one": written(*CHUNKS[:2], chunk("done", reason="stop", usage=USAGE)),
    "a usage nobody asked for, twice": written(*CHUNKS, CHUNKS[-1]),
    "no end mark": written(*CHUNKS, done=False),
    "no reason but an end mark": written(*CHUNKS[:3], CHUNKS[-1]),
    "a byte order mark": b"\xef\xbb\xbf" + written(*CHUNKS),
    "more behind the end": written(*CHUNKS) + written(chunk("never")),
    "choices that are null": written(
        *CHUNKS[:4], json.dumps({"choices": None, "usage": {**USAGE, "prompt_tokens_details": None}, "x": 1})
    ),
}


def in_pieces(data: bytes, size: int) -> Answer:
    """The stream in packets of this size, a carriage return and its line feed apart too."""

    async def answer(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        for start in range(0, len(data), size):
            writer.write(data[start : start + size])
            await asyncio.sleep(0)
        await writer.drain()

    return answer


async def chat(session: aiohttp.ClientSession, stream: bool) -> tuple[str, str, int, int]:
    body = {"messages": HI, "stream": stream}
    async with session.post("/v1/chat/completions", json=body) as response:
        assert response.status == 200
        raw = await response.read()
    if not stream:
        document = json.loads(raw)
        choice, usage = document["choices"][0], document["usage"]
        return choice["message"]["content"], choice["finish_reason"], usage["prompt_tokens"], usage["completion_tokens"]
    assert b"\r" not in raw
    assert not raw.startswith(b"\xef")
    lines = raw.decode().split("\n\n")
    assert all(line.startswith("data: ") for line in lines if line)
    assert lines[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(line[6:]) for line in lines[:-2]]
    assert not any(chunk.get("usage") for chunk in chunks), "nobody asked for it"
    choices = [chunk["choices"][0] for chunk in chunks]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    return text, choices[-1]["finish_reason"], 7, 3


async def messages(session: aiohttp.ClientSession, stream: bool) -> tuple[str, str, int, int]:
    body = {"model": "org/real-name", "messages": HI, "max_tokens": 99, "stream": stream}
    async with session.post("/v1/messages", json=body) as response:
        assert response.status == 200
        raw = await response.text()
    if not stream:
        document = json.loads(raw)
        text = "".join(part["text"] for part in document["content"])
        reason, usage = document["stop_reason"], document["usage"]
    else:
        events = [json.loads(line[6:]) for line in raw.split("\n") if line.startswith("data: ")]
        text = "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta")
        end = next(event for event in events if event["type"] == "message_delta")
        reason, usage = end["delta"]["stop_reason"], end["usage"]
        assert events[-1]["type"] == "message_stop"
    return text, {"end_turn": "stop"}[reason], usage["input_tokens"], usage["output_tokens"]


async def ollama(session: aiohttp.ClientSession, stream: bool) -> tuple[str, str, int, int]:
    body = {"model": "org/real-name", "messages": HI, "stream": stream}
    async with session.post("/api/chat", json=body) as response:
        assert response.status == 200
        lines = [json.loads(line) for line in (await response.text()).splitlines()]
    last = lines[-1]
    assert last["done"] is True
    text = "".join(line["message"]["content"] for line in lines)
    return text, last["done_reason"], last["prompt_eval_count"], last["eval_count"]


APIS = {"chat": chat, "messages": messages, "ollama": ollama}


@pytest.mark.parametrize("dialect", WHOLE)
async def test_every_dialect_reaches_every_api_whole(tmp_path: Path, dialect: str) -> None:
    for size in (1, 10_000):
        async with answered_by(tmp_path, in_pieces(WHOLE[dialect], size)) as (_upstream, session, _server):
            for ask in APIS.values():
                for stream in (True, False):
                    assert await ask(session, stream) == (TEXT, "stop", 7, 3), (ask, stream, size)


def stream_error(path: str, raw: str) -> bool:
    """Whether a stream ended in an error, and in nothing else."""
    if path == "/v1/messages":
        return "event: error\n" in raw and "message_stop" not in raw
    if path == "/api/chat":
        return "error" in json.loads(raw.splitlines()[-1])
    return '"error"' in raw and "[DONE]" not in raw


BROKEN = {
    "neither a reason nor an end mark": written(*CHUNKS[:3], done=False),
    "a line of 20 MB": written(CHUNKS[0]) [:-14] + b"data: " + b"x" * 20_000_000 + b"\n\n",
    "half a chunk": written(CHUNKS[0], done=False) + b'data: {"choices":[{"del\n\n',
    "an error and an end mark": written(CHUNKS[0], '{"error":{"message":"died","code":500}}'),
}  # fmt: skip


@pytest.mark.parametrize("fault", BROKEN)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/api/chat"])
async def test_a_broken_stream_never_looks_whole(tmp_path: Path, path: str, fault: str) -> None:
    body = {"model": "org/real-name", "messages": HI, "max_tokens": 99}
    resident = psutil.Process().memory_info().rss
    async with answered_by(tmp_path, saying(STREAM_HEAD + BROKEN[fault])) as (_upstream, session, _server):
        async with session.post(path, json={**body, "stream": True}) as response:
            assert response.status == 200
            raw = await response.text()
        assert "Grüße" in raw
        assert stream_error(path, raw)
        async with session.post(path, json={**body, "stream": False}) as response:
            assert response.status == 502
    assert psutil.Process().memory_info().rss - resident < 100_000_000
