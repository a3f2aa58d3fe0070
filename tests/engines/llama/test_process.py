"""The model process may crash, hang or be killed; the engine stays, tells the reader, and serves the next request."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from pocketserver.chat import EngineState
from pocketserver.engines.llama.process import LlamaEngine
from pocketserver.engines.llama.supervisor import IDLE_CRASHES
from pocketserver.errors import Code, Refusal
from tests.engines.llama.asking import answered, asking, completing
from tests.engines.llama.conftest import MakeEngine

pytestmark = pytest.mark.real_model

LONG = {"max_tokens": 900}


async def loaded(engine: LlamaEngine) -> LlamaEngine:
    await engine.start()
    assert engine.status.state is EngineState.LOADING
    await engine.loaded()
    assert engine.status.state is EngineState.READY
    return engine


def pid_of(engine: LlamaEngine) -> int:
    found = engine.status.worker_pid
    assert found is not None
    return found


async def begun(engine: LlamaEngine, then: Callable[[], None]) -> None:
    """Begin a long answer, do something at its first event, and read on."""
    async with engine.generate(asking("Count.", **LONG)) as stream:
        await anext(stream)
        then()
        async for _ in stream:
            pass


async def test_a_killed_worker_ends_the_stream_and_the_next_request_is_served(make_engine: MakeEngine) -> None:
    engine = await loaded(make_engine())
    with pytest.raises(Refusal) as caught:
        await begun(engine, lambda: os.kill(pid_of(engine), signal.SIGKILL))
    assert caught.value.code is Code.WORKER_LOST
    assert engine.status.state is EngineState.READY
    answer = await answered(engine, asking("Count.", max_tokens=3))
    assert answer.finished.usage.completion_tokens == 3
    assert engine.status.worker_restarts == 1


async def test_a_hanging_worker_is_replaced_when_its_reader_leaves(make_engine: MakeEngine) -> None:
    engine = await loaded(make_engine(cancel_seconds=1.5))
    first = pid_of(engine)
    async with engine.generate(asking("Count.", **LONG)) as stream:
        await anext(stream)
        os.kill(first, signal.SIGSTOP)
    answer = await answered(engine, asking("Count.", max_tokens=3))
    assert answer.finished.usage.completion_tokens == 3
    assert pid_of(engine) != first


async def test_a_worker_that_hangs_before_it_accepts_is_replaced(make_engine: MakeEngine) -> None:
    engine = await loaded(make_engine(prepare_seconds=0.5))
    os.kill(pid_of(engine), signal.SIGSTOP)
    with pytest.raises(Refusal) as caught:
        async with engine.generate(asking("Count.")):
            pass
    assert caught.value.code is Code.GENERATION_STALLED
    assert (await answered(engine, asking("Count.", max_tokens=3))).deltas


async def test_a_restart_ends_the_running_request_and_serves_the_next(make_engine: MakeEngine) -> None:
    engine = await loaded(make_engine())
    with pytest.raises(Refusal) as caught:
        await begun(engine, engine.restart)
    assert caught.value.code is Code.WORKER_LOST
    assert (await answered(engine, asking("Count.", max_tokens=3))).deltas


async def test_leaving_the_stream_frees_the_same_worker_for_the_next(make_engine: MakeEngine) -> None:
    engine = await loaded(make_engine())
    worker = pid_of(engine)
    for _ in range(5):
        async with engine.generate(asking("Count.", **LONG)) as stream:
            await anext(stream)
    assert (await answered(engine, asking("Count.", max_tokens=3))).deltas
    assert pid_of(engine) == worker


async def test_a_reader_that_is_cancelled_twice_still_frees_the_model(make_engine: MakeEngine) -> None:
    engine = await loaded(make_engine())
    reading = asyncio.create_task(answered(engine, asking("Count.", **LONG)))
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert (await answered(engine, asking("Count.", max_tokens=3))).deltas


async def test_closing_ends_the_worker(make_engine: MakeEngine) -> None:
    engine = await loaded(make_engine())
    worker = psutil.Process(pid_of(engine))
    await engine.close()
    await engine.close()
    assert not worker.is_running()
    assert engine.status.state is EngineState.NO_MODEL
    with pytest.raises(Refusal):
        await answered(engine, asking("Anybody there?"))


async def test_closing_while_loading_leaves_no_process(make_engine: MakeEngine) -> None:
    engine = make_engine()
    before = {child.pid for child in psutil.Process().children()}
    await engine.start()
    await engine.close()
    assert {child.pid for child in psutil.Process().children()} <= before


async def test_no_worker_outlives_a_killed_server(default_model_path: Path, tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import asyncio, sys
        from pathlib import Path
        from pocketserver.engines.llama.process import LlamaEngine, LlamaOptions

        async def main() -> None:
            path, folder = map(Path, sys.argv[1:])
            engine = LlamaEngine(LlamaOptions(model_id="m", path=path, state_folder=folder, context=512))
            await engine.start()
            await engine.loaded()
            print(engine.status.worker_pid, flush=True)
            await asyncio.sleep(600)

        asyncio.run(main())
    """)
    command = [sys.executable, "-c", program, str(default_model_path), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:  # noqa: ASYNC220 - starts in no time
        assert server.stdout is not None
        worker = psutil.Process(int(await asyncio.to_thread(server.stdout.readline)))
        server.kill()
        await until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)


async def test_a_crash_in_the_probe_leads_to_safe_mode_and_is_remembered(make_engine: MakeEngine) -> None:
    engine = await loaded(make_engine(abort_in_probe_with_extra_buffers=True))
    assert engine.status.safe_mode
    assert engine.status.worker_restarts == 0
    assert (await answered(engine, asking("Count.", max_tokens=3))).deltas
    await engine.close()
    again = await loaded(make_engine())  # would not crash, but the folder knows better
    assert again.status.safe_mode


async def test_a_model_that_does_not_fit_is_refused_before_it_is_loaded(make_engine: MakeEngine) -> None:
    engine = make_engine(memory_limit_bytes=50 * 1024 * 1024)
    await engine.start()
    with pytest.raises(Refusal, match=r"needs about \d+ MiB of memory, and \d+ MiB are available") as caught:
        await engine.loaded()
    assert caught.value.code is Code.INSUFFICIENT_MEMORY
    assert engine.status.state is EngineState.NO_MODEL
    assert engine.status.problem_code == Code.INSUFFICIENT_MEMORY
    assert engine.status.worker_pid is None


async def test_a_broken_file_is_a_problem_and_no_crash(make_engine: MakeEngine, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF\x03\x00\x00\x00")
    engine = make_engine(path=broken)
    await engine.start()
    with pytest.raises(Refusal, match=r"broken\.gguf"):
        await engine.loaded()
    assert engine.status.problem is not None
    assert str(tmp_path) not in engine.status.problem


async def test_a_template_without_an_end_is_refused_and_the_engine_lives(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    template = tmp_path / "endless.jinja"
    nested = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    template.write_text("{% if messages[0]['content'] == 'loop' %}" + nested + "{% endif %}ok")
    engine = await loaded(make_engine(chat_template=template, prepare_seconds=3.0))
    with pytest.raises(Refusal) as caught:
        await answered(engine, asking("loop"))
    # on a machine where others have most of the processor nobody can tell whose fault it is
    assert caught.value.code in {Code.TEMPLATE_UNSUPPORTED, Code.GENERATION_STALLED}
    assert (await answered(engine, asking("go on", max_tokens=3))).deltas


@pytest.mark.parametrize(("room", "expected"), [(2, 2), (1, 1), (0, None), (-1, None)])
async def test_the_edge_of_the_context(room: int, expected: int | None, small_engine: LlamaEngine) -> None:
    size = small_engine.status.context_size
    assert size is not None
    request = completing(" word" * (size - room), max_tokens=50)
    assert await small_engine.count(request) == size - room
    if expected is None:
        with pytest.raises(Refusal) as caught:
            await answered(small_engine, request)
        assert caught.value.code is Code.CONTEXT_LENGTH_EXCEEDED
        return
    finished = (await answered(small_engine, request)).finished
    assert finished.usage.completion_tokens == expected
    assert finished.reason == "length"


@pytest.fixture
async def small_engine(make_engine: MakeEngine) -> LlamaEngine:
    return await loaded(make_engine(context=256))


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        await asyncio.sleep(0.02)


async def test_replacing_hanging_workers_is_no_reason_to_give_the_model_up(make_engine: MakeEngine) -> None:
    engine = await loaded(make_engine(prepare_seconds=0.5))
    for number in range(IDLE_CRASHES):
        os.kill(pid_of(engine), signal.SIGSTOP)
        with pytest.raises(Refusal):
            await answered(engine, asking("Hi.", max_tokens=1))
        await engine.loaded()
        assert engine.status.worker_restarts == number + 1

    assert engine.status.state is EngineState.READY


async def test_a_model_that_has_served_is_tried_again_after_its_reload_failed(make_engine: MakeEngine) -> None:
    engine = await loaded(make_engine(retry_seconds=0.2))
    children = psutil.Process().children
    known = {child.pid for child in children()}  # the worker of the engine that tests share is among them
    os.kill(pid_of(engine), signal.SIGKILL)

    def next_workers() -> list[psutil.Process]:
        return [child for child in children() if child.pid not in known and is_worker(child)]

    await until(lambda: bool(next_workers()))
    for worker in next_workers():
        worker.kill()
    await until(lambda: engine.status.state is EngineState.NO_MODEL)
    assert engine.status.problem is not None
    await until(lambda: engine.status.state is EngineState.READY and engine.status.worker_pid is not None)
    answer = await answered(engine, asking("Count.", max_tokens=3))

    assert answer.finished.usage.completion_tokens == 3


def is_worker(process: psutil.Process) -> bool:
    try:
        return any("llama.worker" in argument for argument in process.cmdline())
    except psutil.Error:
        return False
