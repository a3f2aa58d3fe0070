"""Scenarios: shipped ones are valid and repeat byte for byte, broken ones name the line."""

from pathlib import Path

import pytest

from pocketserver.errors import UsageError
from pocketserver.simulator.presets import load_preset
from pocketserver.simulator.scenario import load_scenario, parse_scenario, scenario_names
from tests.simulator.driving import device

SHIPPED = {
    "overheating",
    "memory-pressure",
    "backgrounded-mid-stream",
    "flaky-wifi",
    "busy-neighbour",
    "model-swap",
    "key-rotated",
}


def test_the_seven_stories_are_shipped_and_their_devices_exist() -> None:
    assert set(scenario_names()) >= SHIPPED
    for name in scenario_names():
        scenario = load_scenario(name)
        assert scenario.summary
        assert scenario.device is None or load_preset(scenario.device).name == scenario.device


@pytest.mark.parametrize("name", sorted(SHIPPED))
async def test_a_story_runs_twice_with_the_same_bytes(tmp_path: Path, name: str) -> None:
    runs = []
    for number in range(2):
        async with device(tmp_path / str(number), scenario=name) as phone:
            runs.append([await _answer(phone, number) for number in range(12)])

    assert runs[0] == runs[1]
    assert len(set(runs[0])) > 1


async def test_a_reset_begins_the_story_anew(tmp_path: Path) -> None:
    async with device(tmp_path, scenario="busy-neighbour") as phone:
        first = [await _answer(phone, number) for number in range(8)]
        await phone.control("POST", "/reset")

        assert [await _answer(phone, number) for number in range(8)] == first


async def test_a_busy_neighbour_is_busy_three_times(tmp_path: Path) -> None:
    async with device(tmp_path, scenario="busy-neighbour") as phone:
        assert [(await phone.ask())[0] for _ in range(4)] == [429, 429, 429, 200]


async def test_a_swapped_model_is_refused_while_loading_and_then_found_under_its_own_name(tmp_path: Path) -> None:
    async with device(tmp_path, scenario="model-swap") as phone:
        answers = [await phone.ask(model="sim-1b") for _ in range(4)]

    codes = [document.get("error", {}).get("code") for _, document in answers]
    assert codes[0] is None
    assert codes[1] == "model_not_loaded"
    assert codes[-1] == "model_not_found"


async def test_memory_pressure_goes_from_context_to_weights_to_nothing(tmp_path: Path) -> None:
    async with device(tmp_path, scenario="memory-pressure") as phone:
        codes = [(await phone.ask())[1].get("error", {}).get("code") for _ in range(3)]

    assert codes == [None, "context_allocation_failed", "insufficient_memory"]


async def test_a_story_can_be_sent_and_begins_at_once(tmp_path: Path) -> None:
    async with device(tmp_path) as phone:
        toml = '[[step]]\nafter_requests = 0\nset = { thermal = "critical" }\n'
        await phone.control("POST", "/scenario", {"toml": f'summary = "hot"\n{toml}'})

        assert (await phone.control("GET", "/state"))["thermal"] == "critical"


@pytest.mark.parametrize(
    ("text", "line", "hint"),
    [
        ('summary = "x"\n[[step]]\nat_seconds = -1\n', 3, "at_seconds"),
        ('summary = "x"\n[[step]]\nat_seconds = 1\nset = { thermal = "hot" }\n', 4, "hot"),
        ('summary = "x"\n\n[[step]]\nat_seconds = 1\n', 3, "set, fault or rule"),
        ('summary = "x"\n[[step]]\nset = { app = "locked" }\n', 2, "at_seconds and after_requests"),
        (
            'summary = "x"\n[[step]]\nat_seconds = 1\nset = { app = "locked" }\n[[step]]\nafter_requests = 1\nfualt = {}\n',
            7,
            "fualt",
        ),
        ('summary = "x"\n[[step]]\nat_seconds = 1\nfault = { fault = "no_such" }\n', 2, "no_such"),
        ('summary = "x"\n[[step]]\nat_seconds = 1\nfault = { fault = "stall", secnds = 1 }\n', 4, "secnds"),
        ('summary = "x"\n[[step]\n', 2, "TOML"),
        ('summary = "x"\n', 1, "step"),
    ],
)
def test_a_broken_story_names_the_line(text: str, line: int, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_scenario(text, "broken", "broken.toml")

    assert f"line {line}" in str(caught.value)
    assert hint in str(caught.value)


def test_a_story_that_is_none_lists_those_that_are() -> None:
    with pytest.raises(UsageError, match="overheating"):
        load_scenario("no-such")


async def _answer(phone: object, number: int) -> bytes:
    """Everything that a client gets, without the header that tells the time of day."""
    from tests.simulator.driving import Device

    assert isinstance(phone, Device)
    try:
        received = await phone.raw(stream=number % 2 == 1, max_tokens=400)
    except ConnectionRefusedError:
        received = b"REFUSED"
    await phone.simulator.settled()
    return b"\n".join(line for line in received.split(b"\n") if not line.startswith(b"Date:"))
