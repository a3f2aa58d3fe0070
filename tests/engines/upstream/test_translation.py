"""What an upstream said reaches clients of every family unchanged: model, thinking, counts, vectors."""

import base64
import json
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import ollama
import pytest
from anthropic import AsyncAnthropic

from tests.engines.upstream.fake import STREAM_HEAD, Asked, fake_upstream, plain
from tests.engines.upstream.gateway import HI, in_front_of
from tests.serving import Running

MODEL = "org/real-name"
VECTORS = [[0.6, 0.8, 0.0], [0.0, 0.28, 0.96]]
USAGE = {
    "prompt_tokens": 11,
    "completion_tokens": 5,
    "total_tokens": 16,
    "prompt_tokens_details": {"cached_tokens": 4, "audio_tokens": None},
    "completion_tokens_details": {"reasoning_tokens": 2},
    "made_up": None,
}


def chunk(delta: dict[str, object], reason: str | None = None) -> dict[str, object]:
    """With what real engines add: their own model, time and keys, all of no meaning to our clients."""
    choice = {"index": 0, "delta": delta, "finish_reason": reason, "stop_reason": None, "token_ids": None}
    return {
        "id": "x",
        "object": "?",
        "created": 0,
        "model": f"{MODEL}-4bit",
        "choices": [choice],
        "prompt_token_ids": None,
    }


STREAM = [
    chunk({"role": "assistant", "reasoning_content": "I ", "reasoning": "I "}),
    chunk({"reasoning": "think"}),
    chunk({"content": "Hello"}),
    chunk({"content": " you"}),
    chunk({}, "stop"),
    {"choices": [], "usage": USAGE, "system_fingerprint": "violet"},
]


async def answer(asked: Asked, writer) -> None:  # type: ignore[no-untyped-def]
    if asked.path.endswith("/embeddings"):
        assert json.loads(asked.body)["encoding_format"] == "float"
        data = [{"index": index, "embedding": vector, "extra": None} for index, vector in enumerate(VECTORS)]
        usage = {"prompt_tokens": 6, "total_tokens": 6}
        writer.write(plain(200, json.dumps({"data": data[::-1], "usage": usage, "model": "?"}).encode()))
        return
    writer.write(STREAM_HEAD)
    for one in STREAM:
        writer.write(f"data: {json.dumps(one)}\n\n".encode())
    writer.write(b"data: [DONE]\n\n")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Running]:
    async with fake_upstream(answer) as upstream, in_front_of(tmp_path, upstream.url) as running:
        yield running


async def test_chat_under_an_alias_names_the_model_that_is_listed(server: Running) -> None:
    async with server.openai() as client:
        listed = [model.id for model in (await client.models.list()).data]
        assert listed == [MODEL]
        stream = await client.chat.completions.create(
            model="default",
            messages=HI,
            stream=True,
            stream_options={"include_usage": True},  # type: ignore[arg-type]
        )
        chunks = [chunk async for chunk in stream]
        whole = await client.chat.completions.create(model="default", messages=HI)  # type: ignore[arg-type]
    assert {chunk.model for chunk in chunks} == {whole.model} == {MODEL}
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.created for chunk in chunks)
    deltas = [chunk.choices[0].delta.model_dump() for chunk in chunks if chunk.choices]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Hello you" == whole.choices[0].message.content
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "I think"
    for usage in (chunks[-1].usage, whole.usage):
        assert usage is not None
        assert (usage.prompt_tokens, usage.completion_tokens) == (11, 5)
        assert usage.prompt_tokens_details is not None
        assert usage.prompt_tokens_details.cached_tokens == 4
        assert usage.completion_tokens_details is not None
        assert usage.completion_tokens_details.reasoning_tokens == 2
    said = whole.model_dump_json() + "".join(chunk.model_dump_json() for chunk in chunks)
    assert not any(word in said for word in ("violet", "made_up", "token_ids", "4bit"))


@pytest.mark.parametrize("thinks", [False, True])
async def test_messages_show_thinking_only_to_those_who_asked(server: Running, thinks: bool) -> None:
    extra = {"thinking": {"type": "enabled", "budget_tokens": 1024}} if thinks else {}
    async with AsyncAnthropic(base_url=server.origin, api_key=server.key, max_retries=0) as client:
        async with client.messages.stream(model=MODEL, max_tokens=2000, messages=HI, **extra) as stream:  # type: ignore[arg-type]
            message = await stream.get_final_message()
    kinds = [block.type for block in message.content]
    assert kinds == (["thinking", "text"] if thinks else ["text"])
    assert message.content[-1].text == "Hello you"  # type: ignore[union-attr]
    assert message.model == MODEL
    assert message.usage.cache_read_input_tokens == 4
    assert message.usage.input_tokens + 4 == 11, "Anthropic's input tokens leave the cached ones out"
    assert message.usage.output_tokens == 5


@pytest.mark.parametrize("stream", [False, True])
async def test_ollama_has_thinking_in_a_place_of_its_own(server: Running, stream: bool) -> None:
    async with ollama.AsyncClient(host=server.origin, headers=server.headers) as client:
        parts = [await client.chat(model=MODEL, messages=HI, think=True)]
        if stream:
            parts = [part async for part in await client.chat(model=MODEL, messages=HI, think=True, stream=True)]
    assert "".join(part.message.content or "" for part in parts) == "Hello you"
    assert "".join(part.message.thinking or "" for part in parts) == "I think"
    assert {part.model for part in parts} == {MODEL}
    assert (parts[-1].prompt_eval_count, parts[-1].eval_count) == (11, 5)


async def test_vectors_come_in_the_form_that_was_asked_for_in_the_right_order(server: Running) -> None:
    async with server.openai() as client:
        for form in ("base64", "float"):
            found = await client.embeddings.create(model=MODEL, input=["a", "b"], encoding_format=form)  # type: ignore[arg-type]
            vectors = [one.embedding for one in found.data]
            if form == "base64":
                vectors = [struct.unpack("<3f", base64.b64decode(one)) for one in vectors]  # type: ignore[arg-type,misc]
            for vector, expected in zip(vectors, VECTORS, strict=True):
                assert vector == pytest.approx(expected, abs=1e-6)
            assert found.usage.prompt_tokens == 6
            assert found.model == MODEL
        default = await client.embeddings.create(model=MODEL, input=["a", "b"])
        assert default.data[1].embedding == pytest.approx(VECTORS[1], abs=1e-6)
    async with ollama.AsyncClient(host=server.origin, headers=server.headers) as native:
        found = await native.embed(model=MODEL, input=["a", "b"])
        assert found.embeddings[0] == pytest.approx(VECTORS[0], abs=1e-6)


async def test_counts_that_an_upstream_cannot_make_are_a_clear_400(server: Running) -> None:
    async with AsyncAnthropic(base_url=server.origin, api_key=server.key, max_retries=0) as client:
        with pytest.raises(Exception, match="token counts") as caught:
            await client.messages.count_tokens(model=MODEL, messages=HI)  # type: ignore[arg-type]
    assert caught.value.status_code == 400  # type: ignore[attr-defined]
