"""Ray Serve, really started: two replicas on this machine behind our server; `make test-ray`."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest
from openai import AsyncOpenAI
from ray import serve

from pocketserver.chat import GenerationRequest, Message, Role
from pocketserver.engines.ray_serve.engine import RayEngine
from pocketserver.engines.ray_serve.messages import Piece, conversation_of
from tests.apps.ray.conftest import START_SECONDS, Application, application
from tests.engines.upstream.processes import process
from tests.waiting import until

pytestmark = pytest.mark.timeout(280)
TWO = {"ray_engine": "sim", "ray_replicas": 2}


async def test_answers_come_token_by_token_from_both_replicas_at_once(tmp_path: Path) -> None:
    async with application(tmp_path, "both", tokens_per_second=10.0, **TWO) as app:
        assert app.replicas == 2
        asking = [asyncio.create_task(app.ask(f"question {number}", max_tokens=20)) for number in range(2)]
        await until(lambda: app.served.server.door.taken == 2)
        answers = await asyncio.gather(*asking)
        for answer in answers:
            assert (answer.status, answer.whole) == (200, True)
            assert len(answer.times) >= 15
            gaps = [later - earlier for earlier, later in zip(answer.times, answer.times[1:], strict=False)]
            assert sum(gap > 0.03 for gap in gaps) > len(gaps) / 2, "not all at the end"
        one, other = (answer.times for answer in answers)
        assert min(one[-1], other[-1]) > max(one[0], other[0]), "neither waited for the other"


async def test_more_requests_than_replicas_wait_in_our_line(tmp_path: Path) -> None:
    async with application(tmp_path, "line", tokens_per_second=200.0, **TWO) as app:
        answers = [asyncio.create_task(app.ask(f"question {number}")) for number in range(12)]
        await until(lambda: app.served.server.door.taken == 2 and app.served.server.door.waiting > 5)
        assert all(answer.whole for answer in await asyncio.gather(*answers))
        assert not app.served.server.door.busy


@pytest.mark.parametrize("tokens", [0, 1])
async def test_a_client_that_leaves_frees_its_replica(tmp_path: Path, tokens: int) -> None:
    """An answer takes 400 seconds, so that a replica which is not freed is noticed."""
    rate = 0.1 if tokens == 0 else 1.0
    async with application(tmp_path, f"leave{tokens}", tokens_per_second=rate, **TWO) as app:
        for _ in range(2):
            async with app.served.session() as session:
                body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
                answers = [await session.post("/v1/chat/completions", json=body) for _ in range(2)]
                for answer in answers:
                    assert answer.status == 200, "accepted: two replicas are free"
                    while tokens and b'"content":"' not in await answer.content.readline():
                        pass
                for answer in answers:
                    answer.close()
            await until(lambda: not app.served.server.door.busy)


async def test_a_replica_that_is_killed_is_replaced_and_only_its_own_answer_breaks_off(tmp_path: Path) -> None:
    async with application(tmp_path, "killed", tokens_per_second=10.0, **TWO) as app:
        before = app.pids()
        assert len(before) == 2
        asking = [asyncio.create_task(app.ask(f"question {number}", max_tokens=20)) for number in range(6)]
        await until(lambda: app.served.server.door.taken == 2)
        await asyncio.sleep(0.5)  # in the middle of the first two answers
        os.kill(min(before), signal.SIGKILL)
        answers = await asyncio.gather(*asking)
        assert sum(not answer.whole for answer in answers) <= 1
        assert {answer.error for answer in answers} <= {None, "worker_lost"}
        await until(lambda: len(app.pids() - before) == 1 and app.replicas == 2, START_SECONDS)
        both = await asyncio.gather(app.ask("a", max_tokens=5), app.ask("b", max_tokens=5))
        assert all(answer.whole for answer in both)


async def where(app: Application, text: str) -> str:
    """The replica that takes a conversation."""
    engine = app.served.server.engine
    assert isinstance(engine, RayEngine)
    request = GenerationRequest(id="1", model="sim-1b", messages=(Message(role=Role.USER, content=text),), max_tokens=2)
    assert engine._cluster is not None
    pieces = engine._cluster.generate(msgspec.msgpack.encode(request), conversation_of(request))
    return "".join([msgspec.msgpack.decode(packed, type=Piece).replica async for packed in pieces])


async def test_a_conversation_comes_back_to_its_replica_unless_that_is_busy(tmp_path: Path) -> None:
    async with application(tmp_path, "home", tokens_per_second=20.0, **TWO) as app:
        homes = {text: await where(app, text) for text in map(str, range(8))}
        assert len(set(homes.values())) == 2, "conversations are spread"
        for text, home in homes.items():
            assert [await where(app, text) for _ in range(3)] == [home] * 3
        text, home = next(iter(homes.items()))
        busy = asyncio.create_task(app.ask(text))
        await until(lambda: app.served.server.door.running is not None)
        await until(lambda: app.served.server.door.running.stream is not None)  # type: ignore[union-attr]
        assert await asyncio.wait_for(where(app, text), 20) != home
        await busy


async def test_counts_vectors_and_refusals_are_those_of_the_replica(tmp_path: Path) -> None:
    async with application(tmp_path, "words", tokens_per_second=500.0, **TWO) as app, app.served.session() as session:
        async with session.post("/v1/embeddings", json={"input": ["a", "b"]}) as answer:
            assert len((await answer.json())["data"]) == 2
        messages = [{"role": "user", "content": "hello there"}]
        body = {"model": "sim-1b", "messages": messages}
        async with session.post("/v1/messages/count_tokens", json=body) as answer:
            assert (await answer.json())["input_tokens"] > 2
        body = {"messages": [{"role": "user", "content": "long " * 20_000}]}
        async with session.post("/v1/chat/completions", json=body) as answer:
            document = await answer.json()
            assert (answer.status, document["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.real_model
async def test_a_replica_with_a_real_model_answers_streams_and_leaves_nothing_behind(
    tmp_path: Path, default_model_path: Path
) -> None:
    settings = {"ray_engine": "llama", "model": str(default_model_path), "context": 512, "tuning": "off"}
    async with application(tmp_path, "real", **settings) as app:
        assert app.served.server.engine.status.context_size == 512
        (pid,) = app.pids()
        workers = psutil.Process(pid).children(recursive=True)
        assert workers, "the model lives in a process of its own there too"
        answer = await app.ask("Say hello.", max_tokens=8, temperature=0)
        assert answer.whole
        assert len(answer.times) > 3
        again = await app.ask("Say hello.", max_tokens=8, temperature=0)
        assert again.text == answer.text

        os.kill(pid, signal.SIGKILL)
        await until(lambda: not any(worker.is_running() for worker in workers))
        engine = app.served.server.engine
        await until(lambda: engine.status.model is None)
        await until(lambda: engine.status.model is not None, START_SECONDS)
        assert (await app.ask("Say hello.", max_tokens=8, temperature=0)).text == answer.text
        (pid,) = app.pids()
    await until(lambda: not psutil.pid_exists(pid))


def command(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pocketserver.cli.main", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_the_commands_deploy_serve_and_remove(tmp_path: Path, cluster: str) -> None:
    at = ["--ray-address", cluster]
    own = ["--ray-engine", "sim", "--ray-replicas", "2", "--ray-cpus", "0.1", "--ray-app", "told"]
    said = await asyncio.to_thread(command, "cluster", "deploy", *at, *own)
    assert said == "told: 2 replicas of sim are running.\n"

    words = ["-m", "pocketserver.cli.main", "serve", "--engine", "ray", *at, "--profile", "hub", "--port", "0"]
    words += ["--host", "127.0.0.1", "--no-mdns", "--home", str(tmp_path), "--ready-json", "-", "--exit-on-stdin-close"]
    with process(*words, POCKETSERVER_RAY_APP="told") as served:
        async with AsyncOpenAI(base_url=served.base_url, api_key=served.ready["api_key"], max_retries=5) as client:
            answer = await client.chat.completions.create(
                model="default", messages=[{"role": "user", "content": "hi"}], max_tokens=5
            )
            assert answer.choices[0].message.content
    assert "told" in serve.status().applications, "it outlives the server that used it"

    assert await asyncio.to_thread(command, "cluster", "remove", *at, "--ray-app", "told") == "told was removed.\n"
    assert "told" not in serve.status().applications
