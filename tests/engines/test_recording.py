"""Recording an engine and answering from its files: same text, same chunks, same times."""

import asyncio
import json
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pocketserver.chat import (
    Event,
    Finished,
    GenerationRequest,
    Message,
    Role,
    TextDelta,
    Tool,
    ToolCallDelta,
    ToolChoice,
    ToolMode,
)
from pocketserver.engines.engine import Engine
from pocketserver.engines.recording import Recording, RecordingEngine
from pocketserver.engines.replay import Library, ReplayEngine, load_recordings
from pocketserver.engines.sim.engine import SimEngine, SimOptions
from pocketserver.engines.sim.rules import NewRule, Reply
from pocketserver.errors import Code, Refusal, StartupError
from pocketserver.telemetry.log_lines import Redaction
from tests.clients.engines import ENGINES, make_engine
from tests.serving import FAST, Running, running
from tests.waiting import until

SECRET = "sk-recorded-nowhere"


def asking(text: str = "Hello", **fields: Any) -> GenerationRequest:
    return GenerationRequest(
        id="r1", model="sim-1b", messages=(Message(role=Role.USER, content=text),), **{"max_tokens": 8, **fields}
    )


async def read(engine: Engine, request: GenerationRequest) -> list[list[Event]]:
    async with engine.generate(request) as stream:
        return [[*batch] async for batch in stream]


def recorder(folder: Path, engine: Engine | None = None, warnings: list[str] | None = None) -> RecordingEngine:
    warn = ([] if warnings is None else warnings).append
    return RecordingEngine(engine or SimEngine(FAST), folder, redact=Redaction([SECRET]), warn=warn)


def replayer(folder: Path, *, fallback: bool = False, speed: float | None = None) -> ReplayEngine:
    return ReplayEngine(Library(load_recordings(folder), Redaction([SECRET])), fallback=fallback, speed=speed)


async def started(engine: Engine) -> Engine:
    await engine.start()
    return engine


def files(folder: Path) -> list[Path]:
    return [*folder.iterdir()]


def only(folder: Path) -> Recording:
    [(_, recording)] = load_recordings(folder)
    return recording


@pytest.mark.parametrize("kind", ENGINES)
async def test_a_replay_says_the_same_in_the_same_batches(
    tmp_path: Path, request: pytest.FixtureRequest, kind: str
) -> None:
    request.param = kind
    engine = await make_engine(request, tmp_path)
    recording = await started(recorder(tmp_path / "tape", engine))
    try:
        asked = msgspec.structs.replace(asking("Say hello."), model=engine.status.model)
        heard = await read(recording, asked)
    finally:
        await recording.close()

    again = await started(replayer(tmp_path / "tape"))

    assert again.status.model == asked.model
    assert await read(again, asked) == heard
    assert isinstance(heard[-1][-1], Finished)


async def test_chunk_times_are_kept_and_scaled_by_the_speed(tmp_path: Path) -> None:
    slow = SimOptions(tokens_per_second=50.0)
    recording = await started(recorder(tmp_path, SimEngine(slow)))
    await read(recording, asking(max_tokens=6))
    times = [batch.at for batch in only(tmp_path).batches]
    assert times == sorted(times)
    assert times[-1] >= 0.1

    loop = asyncio.get_running_loop()
    again = await started(replayer(tmp_path, speed=2.0))
    began = loop.time()
    await read(again, asking(max_tokens=6))
    passed = loop.time() - began

    assert times[-1] / 2 * 0.95 <= passed < 20
    virtual = await started(replayer(tmp_path))
    began = virtual.device.clock.now()
    await read(virtual, asking(max_tokens=6))
    assert virtual.device.clock.now() - began >= times[-1]


async def test_tool_calls_keep_their_pieces(tmp_path: Path) -> None:
    tool = Tool(name="weather", parameters={"type": "object", "properties": {"town": {"const": "Bern"}}})
    asked = asking(tools=(tool,), tool_choice=ToolChoice(mode=ToolMode.REQUIRED), max_tokens=64)
    heard = await read(await started(recorder(tmp_path)), asked)

    assert await read(await started(replayer(tmp_path)), asked) == heard
    assert any(isinstance(event, ToolCallDelta) for batch in heard for event in batch)


async def test_the_same_request_is_answered_in_the_order_of_recording_and_then_by_the_last(tmp_path: Path) -> None:
    engine = SimEngine(FAST)
    recording = await started(recorder(tmp_path, engine))
    for text in ("first", "second"):
        engine.rules.add(NewRule(reply=Reply(text=text), times=1))
        await read(recording, asking())
    again = await started(replayer(tmp_path))

    texts = [(await read(again, asking()))[0][0] for _ in range(3)]

    assert texts == [TextDelta(text="first"), TextDelta(text="second"), TextDelta(text="second")]


async def test_refusals_and_broken_answers_are_recorded(tmp_path: Path) -> None:
    engine = SimEngine(FAST)
    recording = await started(recorder(tmp_path, engine))
    with pytest.raises(Refusal, match="maximum context"):
        await read(recording, asking("word " * 20_000))
    again = await started(replayer(tmp_path))

    with pytest.raises(Refusal, match="maximum context") as caught:
        await read(again, asking("word " * 20_000))

    assert caught.value.code is Code.CONTEXT_LENGTH_EXCEEDED


async def test_an_answer_that_its_reader_left_is_not_recorded(tmp_path: Path) -> None:
    recording = await started(recorder(tmp_path, SimEngine(SimOptions(tokens_per_second=1000.0))))
    async with recording.generate(asking()) as stream:
        await anext(stream)

    assert not files(tmp_path)


async def test_an_unmatched_request_is_refused_with_the_nearest_recording_and_the_difference(tmp_path: Path) -> None:
    recording = await started(recorder(tmp_path))
    await read(recording, asking("What is the capital of France?"))
    await read(recording, asking("Name a fruit."))
    nearest = load_recordings(tmp_path)[0][0]
    again = await started(replayer(tmp_path))

    with pytest.raises(Refusal) as caught:
        await read(again, asking("What is the capital of Norway?"))

    refusal = caught.value
    assert refusal.param == "messages[0].content"
    assert nearest in refusal.message
    assert '"What is the capital of France?"' in refusal.message
    assert '"What is the capital of Norway?"' in refusal.message


async def test_rules_answer_the_rest_when_they_may(tmp_path: Path) -> None:
    heard = await read(await started(recorder(tmp_path)), asking("recorded"))
    again = await started(replayer(tmp_path, fallback=True))
    again.rules.add(NewRule(reply=Reply(text="by rule")))

    assert (await read(again, asking("unknown")))[0][0] == TextDelta(text="by")
    assert await read(again, asking("recorded")) == heard


async def test_secrets_are_taken_out_even_where_the_model_spells_them(tmp_path: Path) -> None:
    engine = SimEngine(FAST)
    recording = await started(recorder(tmp_path, engine))
    engine.rules.add(NewRule(reply=Reply(text=f"it is {SECRET}!")))
    await read(recording, asking(f"the key {SECRET}"))

    [path] = files(tmp_path)
    text = path.read_text()
    assert SECRET not in text
    assert SECRET not in "".join(
        event.text for batch in only(tmp_path).batches for event in batch.events if isinstance(event, TextDelta)
    )
    assert "[redacted]" in text
    again = await started(replayer(tmp_path))
    assert await read(again, asking(f"the key {SECRET}"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_servers_record_into_one_folder_side_by_side(tmp_path: Path) -> None:
    recorders = [await started(recorder(tmp_path)) for _ in range(4)]

    await asyncio.gather(*(read(one, asking(f"{number}")) for number in range(10) for one in recorders))

    assert len(load_recordings(tmp_path)) == 40
    assert all(path.suffix == ".json" for path in files(tmp_path))


async def test_an_answer_does_not_suffer_from_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    warnings: list[str] = []
    recording = await started(recorder(tmp_path / "file" / "tape", warnings=warnings))

    assert await read(recording, asking())

    assert len(warnings) == 1
    assert "could not be written" in warnings[0]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "is damaged"),
        (b'{"format": "pocketserver-recording-1", "reco', "is damaged"),
        (b'{"name": "package"}', "is no recording"),
        (b'{"format": "pocketserver-recording-9"}', "is no recording"),
        (b"[]", "is no recording"),
        (b"\xff\xfe", "is damaged"),
    ],
)
async def test_a_damaged_or_foreign_file_is_explained(tmp_path: Path, content: bytes, said: str) -> None:
    await read(await started(recorder(tmp_path)), asking())
    (tmp_path / "other.json").write_bytes(content)

    with pytest.raises(StartupError, match=said) as caught:
        load_recordings(tmp_path)

    assert "other.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_without_recordings_is_explained(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="No recordings are in"):
        load_recordings(tmp_path)
    with pytest.raises(StartupError, match="cannot be read"):
        load_recordings(tmp_path / "absent")


async def test_a_recording_is_readable(tmp_path: Path) -> None:
    await read(await started(recorder(tmp_path)), asking("Hello there"))

    [path] = files(tmp_path)
    document = json.loads(path.read_text())

    assert path.read_text().count("\n") > 20
    assert document["request"]["messages"] == [{"role": "user", "content": "Hello there"}]
    assert document["batches"][0]["events"][0]["type"] == "text"
    assert path.name.startswith(document["recorded"][:4])


# Over a socket


def served(home: Path, engine: Engine) -> AbstractAsyncContextManager[Running]:
    return running(home, engine, speed="max")


async def test_every_client_meets_the_recording_and_faults_strike_it(tmp_path: Path) -> None:
    create: dict[str, Any] = {"model": "default", "messages": [{"role": "user", "content": "hi"}]}
    async with served(tmp_path / "a", recorder(tmp_path / "tape")) as first, first.openai() as sdk:
        said = (await sdk.chat.completions.create(**create)).choices[0].message.content

    async with served(tmp_path / "b", replayer(tmp_path / "tape")) as second, second.openai() as sdk:
        assert second.server.simulator is not None
        whole = await sdk.chat.completions.create(**create)
        chunks = [chunk async for chunk in await sdk.chat.completions.create(**create, stream=True)]
        second.server.simulator.add_fault("error_chunk", after_tokens=0)
        broken = await sdk.chat.completions.create(**create, stream=True)
        with pytest.raises(Exception, match="wrong inside"):
            assert [chunk async for chunk in broken]

    assert whole.choices[0].message.content == said
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == said
    assert len(chunks) > 20


async def test_an_answer_is_kept_although_its_client_leaves_right_behind_its_end(tmp_path: Path) -> None:
    """The disk is busy when the client leaves: whoever waits for the file is cancelled, the file is not."""
    engine, busy = recorder(tmp_path), threading.Event()
    await engine.start()
    with ThreadPoolExecutor(1) as threads:
        asyncio.get_running_loop().set_default_executor(threads)
        holding = asyncio.get_running_loop().run_in_executor(None, busy.wait)
        client = asyncio.create_task(read(engine, asking()))
        await until(lambda: bool(engine._writing))
        client.cancel()
        await asyncio.gather(client, return_exceptions=True)
        assert client.cancelled()
        busy.set()
        await holding
        await engine.close()
    assert len(load_recordings(tmp_path)) == 1
