"""The flags of recording and replaying, through the settings to an engine."""

from pathlib import Path

import pytest

from pocketserver.assembly import make_engine, prepare_model
from pocketserver.chat import GenerationRequest
from pocketserver.engines.recording import RecordingEngine
from pocketserver.engines.replay import ReplayEngine
from pocketserver.errors import StartupError, UsageError
from pocketserver.settings import Settings, load
from tests.tools import POCKETSERVER, run


def settings(home: Path, **flags: object) -> Settings:
    return load(flags={"home": str(home), "speed": "max", **flags}, environment={}).settings


async def test_what_was_recorded_is_replayed_whatever_engine_the_profile_names(tmp_path: Path) -> None:
    folder = tmp_path / "tape"
    recording = make_engine(settings(tmp_path, engine="sim", record=str(folder)), None)
    assert isinstance(recording, RecordingEngine)
    with pytest.raises(StartupError, match="cannot be read"):
        make_engine(settings(tmp_path, replay=str(folder)), None)

    await recording.start()
    async with recording.generate(GenerationRequest(id="1", model="sim-1b", prompt="hi")) as stream:
        assert [batch async for batch in stream]

    wanted = settings(tmp_path, replay=str(folder))
    assert await prepare_model(wanted, lambda *_: None) is None
    assert isinstance(make_engine(wanted, None), ReplayEngine)


def test_recording_and_replaying_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="together"):
        make_engine(settings(tmp_path, record="a", replay="b"), None)


def test_the_flags_exist(tmp_path: Path) -> None:
    said = run([str(POCKETSERVER), "sim", "serve", "--help"], tmp_path, COLUMNS="200")

    assert all(flag in said for flag in ("--record", "--replay", "--replay-fallback"))
