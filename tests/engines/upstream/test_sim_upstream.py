"""Our own simulator as the upstream, with its faults: what a device does is what clients of the door are told."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from openai import APIError, AsyncOpenAI, AsyncStream
from openai.types.chat import ChatCompletionChunk

from pocketserver.engines.replay import load_recordings
from tests.engines.upstream.gateway import HI, in_front_of
from tests.engines.upstream.processes import process, simulator
from tests.serving import Running, running

CHAT = "/v1/chat/completions"


@asynccontextmanager
async def door_to_a_device(home: Path, **settings: object) -> AsyncIterator[tuple[Running, Running]]:
    """The device that is simulated, and the server before it."""
    async with running(home / "device", profile="hub", mdns=False, auth="off", tokens_per_second=4000.0) as device:
        async with in_front_of(home / "door", f"{device.origin}/v1", **settings) as server:  # type: ignore[arg-type]
            yield device, server


FAULTS = {
    "model_busy": (429, "model_busy"),
    "queue_full": (429, "model_busy"),
    "worker_lost": (502, "upstream_failed"),
    "insufficient_memory": (503, "upstream_unreachable"),
}


@pytest.mark.parametrize("code", FAULTS)
async def test_a_refusal_of_the_device_is_told_in_our_words(tmp_path: Path, code: str) -> None:
    async with door_to_a_device(tmp_path) as (device, server), server.session() as session:
        assert device.server.simulator is not None
        device.server.simulator.add_fault(code, when={"next": 1})
        async with session.post(CHAT, json={"messages": HI}) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == FAULTS[code]
        async with session.post(CHAT, json={"messages": HI}) as answer:
            assert answer.status == 200, "the next one is answered"


async def test_the_verdict_on_the_door_as_a_client_is_clean(tmp_path: Path) -> None:
    async with door_to_a_device(tmp_path) as (device, server), server.openai() as client:
        for stream in (True, False):
            answer = await client.chat.completions.create(model="sim-1b", messages=HI, stream=stream)  # type: ignore[call-overload]
            if stream:
                assert len([chunk async for chunk in answer]) > 5
        assert device.server.simulator is not None
        verdict = device.server.simulator.verdict()
        assert verdict.resilient, verdict.shown()


async def test_a_stream_that_the_device_breaks_off_is_an_error_chunk(tmp_path: Path) -> None:
    async with door_to_a_device(tmp_path) as (device, server), server.openai() as client:
        assert device.server.simulator is not None
        device.server.simulator.add_fault("drop_after_tokens", after_tokens=3, when={"next": 1})
        stream = await client.chat.completions.create(model="sim-1b", messages=HI, stream=True)  # type: ignore[call-overload]
        text: list[str] = []
        with pytest.raises(APIError, match="engine behind this server"):
            await into(text, stream)
        assert "".join(text)


async def test_tools_schemas_and_thinking_pass_the_door(tmp_path: Path) -> None:
    async with door_to_a_device(tmp_path) as (_device, server), server.openai() as client:
        tool = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
        answer = await client.chat.completions.create(
            model="sim-1b", messages=HI, tools=[{"type": "function", "function": tool}], tool_choice="required"
        )  # type: ignore[call-overload]
        call = answer.choices[0].message.tool_calls[0]
        assert (call.function.name, answer.choices[0].finish_reason) == ("weather", "tool_calls")
        json.loads(call.function.arguments)

        schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
        answer = await client.chat.completions.create(model="sim-1b", messages=HI, response_format=wanted)  # type: ignore[call-overload]
        assert isinstance(json.loads(answer.choices[0].message.content)["n"], int)

        answer = await client.chat.completions.create(model="sim-1b", messages=HI, reasoning_effort="low")  # type: ignore[call-overload]
        assert answer.choices[0].message.content
        assert answer.choices[0].message.model_dump()["reasoning_content"]


async def into(text: list[str], stream: AsyncStream[ChatCompletionChunk]) -> None:
    async for chunk in stream:
        text += [chunk.choices[0].delta.content or ""]


async def ask(base_url: str, key: str, question: str) -> str:
    async with AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0) as client:
        stream = await client.chat.completions.create(
            model="sim-1b", messages=[{"role": "user", "content": question}], stream=True, seed=7
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


async def test_an_upstream_is_recorded_and_a_simulator_answers_in_its_place(tmp_path: Path) -> None:
    tape = tmp_path / "tape"
    serve = ["-m", "pocketserver.cli.main", "serve", "--profile", "hub", "--host", "127.0.0.1", "--port", "0"]
    serve += ["--no-mdns", "--ready-json", "-", "--exit-on-stdin-close", "--home", str(tmp_path / "home")]
    with simulator(tmp_path / "device", "--speed", "max", "--auth", "on") as device:
        key = device.ready["api_key"]
        words = [*serve, "--upstream", device.base_url, "--record", str(tape)]
        with process(*words, POCKETSERVER_UPSTREAM_KEY=key) as recorder:
            assert recorder.ready["engine"] == "upstream"
            said = await ask(recorder.base_url, recorder.ready["api_key"], "violet")
            assert said
            with pytest.raises(APIError):
                await ask(recorder.base_url, recorder.ready["api_key"], "long " * 20_000)
    assert len(load_recordings(tape)) == 2
    assert key not in "".join(path.read_text() for path in tape.iterdir())

    serve[2] = "sim"
    serve.insert(3, "serve")
    with process(*serve, "--replay", str(tape), "--speed", "max") as replayed:
        assert await ask(replayed.base_url, replayed.ready["api_key"], "violet") == said
        with pytest.raises(APIError, match="maximum context length"):
            await ask(replayed.base_url, replayed.ready["api_key"], "long " * 20_000)
