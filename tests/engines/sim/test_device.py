"""The simulated device: virtual time, heat, memory by arithmetic, rates, and what loading takes."""

from pathlib import Path

import msgspec
import pytest

from pocketserver.chat import EngineState
from pocketserver.engines.sim.clock import EPOCH, DeviceClock
from pocketserver.engines.sim.device import DevicePreset, SimModel
from pocketserver.engines.sim.engine import SimEngine, SimOptions
from pocketserver.engines.sim.heat import PINNED_FACTORS, Thermal
from pocketserver.engines.sim.state import Device
from pocketserver.errors import UsageError
from pocketserver.simulator.presets import load_preset, preset_names, with_file
from tests.engines.sim.test_sim_engine import answer, question
from tests.models.gguf_builder import write_model

SMALL = SimModel(id="small", size_bytes=1000, kv_bytes_per_token=10, tokens_per_second=10, prompt_tokens_per_second=100)
PRESET = DevicePreset(
    name="test",
    summary="round numbers",
    memory_limit_bytes=100_000,
    app_bytes=100,
    compute_bytes=100,
    first_token_seconds=0.5,
    load_base_seconds=1.0,
    load_bytes_per_second=500.0,
    heat_seconds=30.0,
    cool_seconds=100.0,
    models=(SMALL, msgspec.structs.replace(SMALL, id="large", size_bytes=99_000)),
)


def virtual(**fields: object) -> Device:
    return Device(msgspec.structs.replace(PRESET, **fields), DeviceClock(None), context_size=1000)


# Time


def test_virtual_time_moves_only_when_it_is_moved() -> None:
    clock = DeviceClock(None)
    assert clock.now() == 0.0
    clock.advance(2.5)
    assert (clock.now(), clock.unix_time(), clock.real_seconds(100.0)) == (2.5, EPOCH + 2.5, 0.0)


def test_timers_fire_in_order_and_at_their_own_time() -> None:
    clock = DeviceClock(None)
    seen: list[tuple[str, float]] = []
    clock.call_at(3.0, lambda: seen.append(("late", clock.now())))
    clock.call_at(1.0, lambda: seen.append(("early", clock.now())))
    clock.call_at(2.0, lambda: seen.append(("never", clock.now()))).cancel()
    clock.advance(10.0)

    assert seen == [("early", 1.0), ("late", 3.0)]
    assert clock.now() == 10.0


async def test_a_timer_of_scaled_time_comes_sooner() -> None:
    import asyncio

    clock = DeviceClock(1000.0)
    fired = asyncio.Event()
    clock.call_at(20.0, fired.set)
    async with asyncio.timeout(10):
        await fired.wait()
    assert clock.now() >= 20.0


def test_changing_the_speed_keeps_the_time() -> None:
    clock = DeviceClock(None)
    clock.advance(7.0)
    clock.set_speed(0.000001)
    assert clock.now() == pytest.approx(7.0, abs=0.01)
    clock.set_speed(None)
    assert clock.now() == pytest.approx(7.0, abs=0.01)


# Heat


def test_work_heats_and_rest_cools() -> None:
    device = virtual()
    device.work(30.0)
    assert device.heat.level == pytest.approx(1 - 0.3679, abs=0.001)
    assert device.heat.thermal is Thermal.SERIOUS
    device.clock.advance(100.0)
    device.rest()
    assert device.heat.level == pytest.approx((1 - 0.3679) * 0.3679, abs=0.001)


def test_an_idle_device_is_seen_to_cool_down() -> None:
    device = virtual()
    device.work(30.0)
    assert (device.status().device or {})["thermal"] == "serious"
    device.clock.advance(1000.0)
    assert (device.status().device or {})["thermal"] == "nominal"


def test_a_hot_device_has_lost_its_share_and_low_power_takes_more() -> None:
    device = virtual()
    cold = device.token_seconds(0)
    device.work(10_000.0)
    assert cold / device.token_seconds(0) == pytest.approx(0.42, abs=0.001)
    device.low_power = True
    assert cold / device.token_seconds(0) == pytest.approx(0.42 * 0.6, abs=0.001)


@pytest.mark.parametrize("thermal", Thermal)
def test_a_pinned_state_sets_the_rate(thermal: Thermal) -> None:
    device = virtual()
    device.heat.pinned = thermal
    device.work(1000.0)
    assert device.token_seconds(0) == pytest.approx(0.1 / PINNED_FACTORS[thermal])


def test_decoding_slows_down_with_depth() -> None:
    device = virtual(slowing_tokens=500.0)
    assert device.token_seconds(500) == pytest.approx(2 * device.token_seconds(0))


# Memory and loading


@pytest.mark.parametrize(
    ("limit", "code"),
    [
        (11_200, None),
        (11_199, "context_allocation_failed"),
        (1_200, "context_allocation_failed"),
        (1_199, "insufficient_memory"),
    ],
)
def test_what_fits_is_arithmetic(limit: int, code: str | None) -> None:
    device = virtual(load_base_seconds=0.0, load_bytes_per_second=None)
    device.memory_limit_bytes = limit
    device.load("small")

    assert device.problem_code == code
    assert device.state is (EngineState.READY if code is None else EngineState.NO_MODEL)
    if code is None:
        assert device.available_memory_bytes == 0
    else:
        assert f"{limit:,}" in (device.problem or "")


def test_loading_takes_its_time_and_shows_how_far_it_is() -> None:
    device = virtual()
    device.load("small")
    assert device.status().state is EngineState.LOADING
    device.clock.advance(1.5)
    assert device.status().load_progress == pytest.approx(0.5)
    device.clock.advance(1.5)
    assert device.status().state is EngineState.READY


def test_a_model_that_is_swapped_while_it_loads_never_becomes_ready() -> None:
    device = virtual()
    device.load("small")
    device.unload()
    device.clock.advance(100.0)
    assert device.state is EngineState.NO_MODEL


def test_a_model_that_the_device_does_not_have_is_refused_with_those_it_has() -> None:
    with pytest.raises(UsageError, match="small, large"):
        SimEngine(SimOptions(preset=PRESET, speed=None)).load("huge")


# Timing of answers


async def test_an_answer_takes_prompt_and_tokens_in_device_time() -> None:
    engine = SimEngine(
        SimOptions(preset=msgspec.structs.replace(PRESET, heat_seconds=None), speed=None, context_size=1000)
    )
    await engine.start()
    _, finished = await answer(engine, question(max_tokens=20))

    prompt = 0.5 + finished.usage.prompt_tokens / 100
    assert finished.timings.prompt_seconds == pytest.approx(prompt)
    assert finished.timings.generation_seconds == pytest.approx(2.0)
    assert engine.device.clock.now() == pytest.approx(3.0 + prompt + 2.0)


async def test_jitter_is_the_same_in_every_run() -> None:
    seconds = []
    for _ in range(2):
        engine = SimEngine(
            SimOptions(preset=msgspec.structs.replace(PRESET, jitter=0.2), speed=None, context_size=1000)
        )
        await engine.start()
        await answer(engine, question())
        seconds.append(engine.device.clock.now())

    assert seconds[0] == seconds[1]


# Presets


def test_the_presets_are_valid_and_say_where_each_figure_comes_from() -> None:
    from pocketserver.settings_files import shipped_settings

    assert len(preset_names()) >= 12
    for name in preset_names():
        preset = load_preset(name)
        assert preset.model("sim-1b") is not None
        for line in (shipped_settings() / "devices" / f"{name}.toml").read_text().splitlines():
            if " = " in line and not line.startswith(("id", "summary", "#", "parameters")):
                assert "#" in line, line


def test_the_oldest_phone_has_no_room_for_the_larger_model() -> None:
    engine = SimEngine(SimOptions(preset=load_preset("iphone-12"), speed=None))
    engine.load("sim-3b")
    assert engine.problem_code == "insufficient_memory"


def test_a_gguf_file_gives_its_sizes_to_the_device(tmp_path: Path) -> None:
    path = write_model(tmp_path / "own.gguf")
    preset = with_file(PRESET, path)

    assert preset.models[0].id == "own"
    assert preset.models[0].size_bytes > 0
    assert preset.models[1].id == "small"


def test_a_device_that_is_none_lists_those_that_are() -> None:
    with pytest.raises(UsageError, match="iphone-15-pro"):
        load_preset("nokia-3310")
