"""Calibrating our own simulator gives its device back, within the error that is stated."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from pocketserver.bench.calibration import Calibration, Measurements, as_toml, fit, measure
from pocketserver.bench.client import chat_client
from pocketserver.bench.prompts import calibrated
from pocketserver.engines.sim.device import DevicePreset, SimModel
from pocketserver.engines.sim.engine import SimEngine, SimOptions
from pocketserver.errors import StartupError
from pocketserver.simulator.presets import load_preset
from tests.serving import running

KNOWN = DevicePreset(
    name="known",
    summary="a device whose rates are known",
    first_token_seconds=0.06,
    slowing_tokens=3000,
    jitter=0.05,
    models=(SimModel(id="sim-1b", prompt_tokens_per_second=5000, tokens_per_second=250),),
)
SLACK = 0.15
"""Beside the stated error: this machine's own delays, which are no fault of the fit."""


def nearly(value: float, stated: float) -> object:
    return pytest.approx(value, rel=stated + SLACK)


async def test_a_known_device_is_found_again(tmp_path: Path) -> None:
    engine = SimEngine(SimOptions(preset=KNOWN, context_size=8192))
    async with running(tmp_path, engine) as served, chat_client(served.origin, key=served.key) as client:
        found = fit(await measure(client, await calibrated(client, 1), rounds=3, say=lambda _what: None))

    assert found.prompt_tokens_per_second == nearly(5000, found.errors["prompt"])
    assert found.tokens_per_second == nearly(250, found.errors["decode"])
    assert found.first_token_seconds == pytest.approx(0.06, abs=0.05)
    assert found.slowing_tokens is not None
    assert found.slowing_tokens == pytest.approx(3000, rel=0.6)
    assert 0 < found.jitter < 0.5
    assert found.cached_share == 0.0


def test_exact_measurements_are_fitted_exactly() -> None:
    seen = Measurements(
        prompts=[(tokens, 0.1 + 0.02 + tokens / 400) for tokens in (50, 300, 1000)],
        decoding=[(depth, (1 + depth / 2000) / 50) for depth in (30, 500, 2000)],
        gaps=[1.0] * 100,
    )

    found = fit(seen)

    assert found.prompt_tokens_per_second == pytest.approx(400)
    assert found.tokens_per_second == pytest.approx(50)
    assert found.slowing_tokens == pytest.approx(2000)
    assert found.first_token_seconds == pytest.approx(0.1)
    assert max(found.errors.values()) < 1e-9


def test_a_device_that_does_not_slow_down_says_so() -> None:
    found = fit(Measurements(prompts=[(10, 0.2), (100, 0.4)], decoding=[(10, 0.02), (1000, 0.02), (2000, 0.019)]))

    assert found.slowing_tokens is None
    assert found.tokens_per_second == pytest.approx(50, rel=0.05)


def test_what_cannot_be_calibrated_is_explained() -> None:
    with pytest.raises(StartupError, match="no longer"):
        fit(Measurements(prompts=[(10, 0.2), (100, 0.2)], decoding=[(10, 0.02)]))


def test_the_file_is_a_device_of_the_simulator(tmp_path: Path) -> None:
    found = Calibration(
        prompt_tokens_per_second=312.5,
        tokens_per_second=41.25,
        first_token_seconds=0.07,
        slowing_tokens=None,
        jitter=0.02,
        load_seconds=1.5,
        cached_share=0.9,
        cached_seconds=0.1,
        errors={"prompt": 0.03, "decode": 0.01},
    )
    path = tmp_path / "mine.toml"
    path.write_text(as_toml(found, model='odd "name"\n', source="http://127.0.0.1:1"), encoding="utf-8")

    preset = load_preset(str(path))

    assert preset.models[0].id == 'odd "name"?'
    assert preset.models[0].tokens_per_second == 41.25
    assert preset.load_base_seconds == 1.5
    assert "3.0%" in path.read_text(encoding="utf-8")


async def test_the_command_writes_the_file_and_prints_json(tmp_path: Path) -> None:
    quick = SimOptions(preset=KNOWN, context_size=8192, speed=5.0)
    out = tmp_path / "out.toml"
    async with running(tmp_path / "home", SimEngine(quick)) as served:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "pocketserver.cli.main", "calibrate", served.origin,
            "--out", str(out), "--rounds", "1", "--json",
            env={"POCKETSERVER_API_KEY": served.key, "POCKETSERVER_HOME": str(tmp_path / "mine")},
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        said, _ = await process.communicate()

    assert process.returncode == 0
    assert json.loads(said)["model"] == "sim-1b"
    assert load_preset(str(out)).models[0].id == "sim-1b"
