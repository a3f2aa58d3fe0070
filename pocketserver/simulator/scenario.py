"""Scenarios: a timeline of state changes, faults and rules in a TOML file, checked on load with line numbers."""

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

from pocketserver.chat import JsonValue
from pocketserver.engines.sim.clock import DeviceClock, Timer
from pocketserver.engines.sim.rules import NewRule, check_rule
from pocketserver.errors import UsageError
from pocketserver.settings_files import shipped_settings
from pocketserver.simulator.fault_book import check_fault
from pocketserver.simulator.words import NewFault, StateChange

_PLACE = re.compile(r"`\$\.step\[(\d+)\](?:\.(\w+))?(?:\.(\w+))?")
_HEADER = re.compile(r"^\s*\[\[\s*step\s*\]\]")


class Step(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One moment: at a device time, or when so many requests (POST) have come; then everything in it happens."""

    at_seconds: Annotated[float, Meta(ge=0)] | None = None
    after_requests: Annotated[int, Meta(ge=0)] | None = None
    set: StateChange | None = None
    fault: NewFault | None = None
    rule: NewRule | None = None
    note: str = ""


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A story that a device goes through. `device` is the preset it is told of, unless another is asked for."""

    name: str
    summary: str
    step: Annotated[tuple[Step, ...], Meta(min_length=1)]
    device: str | None = None


def scenario_names() -> list[str]:
    return sorted(path.stem for path in (shipped_settings() / "scenarios").glob("*.toml"))


def load_scenario(name: str) -> Scenario:
    """A shipped scenario by name, or the TOML file at a path. Raises UsageError with the line at fault."""
    shipped = name in scenario_names()
    path = shipped_settings() / "scenarios" / f"{name}.toml" if shipped else Path(name)
    if not shipped and not path.is_file():
        allowed = ", ".join(scenario_names())
        raise UsageError(f"There is no scenario {name!r}. Allowed: {allowed}, or a TOML file's path.")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The scenario {path} cannot be read: {error}.") from error
    return parse_scenario(text, path.stem, str(path))


def parse_scenario(text: str, name: str, origin: str) -> Scenario:
    """Read and check a scenario. Raises UsageError: `FILE, line N: what is wrong`."""
    try:
        scenario = msgspec.convert({"name": name, **tomllib.loads(text)}, Scenario)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{origin}: no valid TOML: {error}.") from error
    except msgspec.ValidationError as error:
        raise UsageError(f"{origin}, line {_line_of(text, str(error))}: {error}.") from error
    for number, step in enumerate(scenario.step):
        fault = _fault_of(step)
        if fault is not None:
            raise UsageError(f"{origin}, line {_step_line(text, number)}: {fault}")
    return scenario


def _fault_of(step: Step) -> str | None:
    if (step.at_seconds is None) == (step.after_requests is None):
        return "A step needs one of at_seconds and after_requests."
    if step.set is None and step.fault is None and step.rule is None:
        return "A step needs set, fault or rule."
    try:
        if step.fault is not None:
            check_fault(step.fault)
        if step.rule is not None:
            check_rule(step.rule)
    except (UsageError, ValueError) as error:
        return str(error)
    return None


def _line_of(text: str, problem: str) -> int:
    """The line of the field that a message of msgspec points at (`$.step[1].fault.code`)."""
    place = _PLACE.search(problem)
    if place is None:
        return 1
    first = _step_line(text, int(place[1]))
    unknown = re.search(r"unknown field `(\w+)`", problem)
    words = [word for word in (unknown[1] if unknown else None, place[3], place[2]) if word]
    for number, line in enumerate(text.splitlines()[first:], start=first + 1):
        if _HEADER.match(line):
            break
        if any(re.search(rf"\b{word}\b", line) for word in words[:1]):
            return number
    return first


def _step_line(text: str, index: int) -> int:
    headers = [number for number, line in enumerate(text.splitlines(), start=1) if _HEADER.match(line)]
    return headers[index] if index < len(headers) else 1


class Stage(Protocol):
    """What a scenario plays on."""

    def apply(self, change: StateChange) -> None: ...

    def arm(self, fault: NewFault) -> str: ...

    def follow(self, rule: NewRule) -> str: ...

    def tell(self, kind: str, **fields: JsonValue) -> None: ...


@dataclass(slots=True)
class Play:
    """A scenario being played. Steps of one moment happen in the order of the file."""

    scenario: Scenario
    stage: Stage
    clock: DeviceClock
    _arrived: int = 0
    _finished: int = 0
    _timers: list[Timer] = field(default_factory=list)
    _waiting: list[Step] = field(default_factory=list)

    def begin(self) -> None:
        began = self.clock.now()
        self._waiting = [step for step in self.scenario.step if step.after_requests is not None]
        for step in self.scenario.step:
            if step.at_seconds is not None:
                self._timers.append(self.clock.call_at(began + step.at_seconds, lambda step=step: self._do(step)))  # type: ignore[misc]
        self.clock.advance(0.0)
        self._look(0)

    def note_arrival(self) -> None:
        """A request has come; it meets what follows from those before it."""
        self._look(self._arrived)
        self._arrived += 1

    def note_end(self) -> None:
        """A request is answered: what follows from it need not wait for the next one."""
        self._finished += 1
        self._look(self._finished)

    def end(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._waiting.clear()

    def _look(self, requests: int) -> None:
        due = [step for step in self._waiting if (step.after_requests or 0) <= requests]
        self._waiting = [step for step in self._waiting if step not in due]
        for step in due:
            self._do(step)

    def _do(self, step: Step) -> None:
        self.stage.tell("step", scenario=self.scenario.name, note=step.note)
        if step.set is not None:
            self.stage.apply(step.set)
        if step.rule is not None:
            self.stage.follow(step.rule)
        if step.fault is not None:
            self.stage.arm(step.fault)
