"""One simulated device behind one server: its state, rules and faults, what its clients sent, and its scenario."""

import itertools
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from msgspec import UNSET

from pocketserver.chat import JsonValue
from pocketserver.engines.sim.engine import SimEngine
from pocketserver.engines.sim.rules import NewRule
from pocketserver.engines.sim.state import App, Network, thermal_of
from pocketserver.errors import UsageError
from pocketserver.simulator.captured import CapturedRequest, CapturedRequests
from pocketserver.simulator.events import EventLog, SimEvent
from pocketserver.simulator.fault_book import ArmedFault, FaultBook
from pocketserver.simulator.injection import Injection
from pocketserver.simulator.network import DeviceNetwork, Listeners, Reach, is_ours, reach
from pocketserver.simulator.scenario import Play, Scenario
from pocketserver.simulator.verdict import Verdict, judge
from pocketserver.simulator.words import NewFault, StateChange, read

SECONDS_BETWEEN_REQUESTS = 1.0
"""Virtual time that passes with each request (POST): clients think, too. Real time passes by itself."""


class Simulator:
    """What tests, control routes and scenarios call. Only in the server's own loop and thread.

    Words are those of `simulator/words.py` and `engines/sim/rules.py`; a wrong one raises UsageError. `rotate_key` puts
    a new main key in place of the old one.
    """

    def __init__(
        self,
        engine: SimEngine,
        *,
        scenario: Scenario | None = None,
        rotate_key: Callable[[], None] = lambda: None,
    ) -> None:
        self.engine = engine
        self.faults = FaultBook(engine.options.seed)
        self.injection = Injection(self)
        self._requests = CapturedRequests()
        self._events = EventLog(now=engine.device.clock.now)
        self._rotate_key = rotate_key
        self._network: DeviceNetwork | None = None
        self._scenario = scenario
        self._play: Play | None = None
        self._grace_seconds: float | None = None
        self._began = time.perf_counter()
        self._ids = itertools.count(1)
        self._id_begin = f"{engine.options.seed & 0xFFFFFFFFFFFF:012x}"
        self._running: dict[str, CapturedRequest] = {}

    # Asked from outside

    @property
    def state(self) -> dict[str, JsonValue]:
        """The device as it is now."""
        clock = self.engine.device.clock
        return {
            **self.engine.device.shown(),
            "speed": "max" if clock.speed is None else clock.speed,
            "seconds": round(clock.now(), 6),
            "scenario": None if self._play is None else self._play.scenario.name,
            "faults": self.faults.shown(),
            "rules": self.engine.rules.shown(),
        }

    def set_state(self, **changes: JsonValue) -> None:
        """Change the device, by the words of `StateChange`."""
        self.apply(read(StateChange, changes, "The state"))

    def add_fault(self, fault: str, **words: JsonValue) -> str:
        """Let a fault strike, by the words of `NewFault`; returns its id."""
        return self.arm(read(NewFault, {"fault": fault, **words}, "The fault"))

    def add_rule(
        self, reply: Mapping[str, JsonValue], match: Mapping[str, JsonValue] | None = None, times: int | None = None
    ) -> str:
        """Answer requests that match with this reply; returns the rule's id."""
        return self.follow(read(NewRule, {"reply": reply, "match": match or {}, "times": times}, "The rule"))

    def remove_fault(self, fault_id: str | None = None) -> bool:
        """Take one fault away, or all; False when there was none of that id."""
        if fault_id is not None:
            return self.faults.remove(fault_id)
        self.faults.clear()
        return True

    def remove_rule(self, rule_id: str | None = None) -> bool:
        """Take one rule away, or all; False when there was none of that id."""
        if rule_id is not None:
            return self.engine.rules.remove(rule_id)
        self.engine.rules.clear()
        return True

    @property
    def requests(self) -> list[CapturedRequest]:
        """The latest requests, oldest first."""
        return self._requests.all()

    def events(self) -> list[SimEvent]:
        """The latest events, oldest first."""
        return self._events.past()

    def follow_events(self) -> AsyncIterator[SimEvent]:
        """Past events, then each new one."""
        return self._events.follow()

    def verdict(self) -> Verdict:
        """What clients did wrong with the faults they met."""
        return judge(self.requests)

    def advance(self, seconds: float) -> None:
        """Let device time pass at once."""
        self.engine.device.clock.advance(seconds)
        self.engine.device.rest()

    def play(self, scenario: Scenario) -> None:
        """Begin a scenario, in place of the one that is being played."""
        if self._play is not None:
            self._play.end()
        self._play = Play(scenario, self, self.engine.device.clock)
        self._play.begin()

    async def settled(self) -> None:
        """Wait until the network is in the state that was asked for."""
        if self._network is not None:
            await self._network.settled()

    def reset(self) -> None:
        """The device as it was when the server began: no rules, faults, requests or events, time and ids at 1."""
        if self._play is not None:
            self._play.end()
            self._play = None
        self.remove_fault()
        self.remove_rule()
        self._requests.clear()
        self._grace_seconds = None
        self._ids = itertools.count(1)
        self.engine.reset()
        self._reach()
        self._events.clear()
        if self._scenario is not None:
            self.play(self._scenario)

    @property
    def says_goodbye(self) -> bool:
        """Whether mDNS has to withdraw the device: it left the network, or its app ended, in good order."""
        device = self.engine.device
        return device.goodbye and reach(device.app, device.network) is Reach.CLOSED

    # Words that are checked already

    def apply(self, change: StateChange) -> None:
        """Change the device. Raises UsageError for a model that it does not have, before anything has changed."""
        device = self.engine.device
        if isinstance(change.model, str) and device.preset.model(change.model) is None:
            known = ", ".join(model.id for model in device.preset.models)
            raise UsageError(f"This device has no model {change.model!r}. It has: {known}.")
        if isinstance(change.address, str) and not is_ours(change.address):
            raise UsageError(f"This machine has no address {change.address!r}; on Linux, 127.0.0.2 and the like are.")
        if change.thermal is not UNSET:
            device.heat.pinned = thermal_of(change.thermal)
        if change.speed is not UNSET:
            device.clock.set_speed(None if change.speed == "max" else float(change.speed))
        if change.grace_seconds is not UNSET:
            self._grace_seconds = change.grace_seconds
        for name in ("low_power", "battery", "address", "goodbye", "memory_limit_bytes", "context_size"):
            value = getattr(change, name)
            if value is not UNSET:
                setattr(device, name, value)
        self._apply_model(change)
        self._apply_reach(change)
        if change.key is not UNSET:
            self._rotate_key()
        self.tell("state", **change.given())

    def arm(self, fault: NewFault) -> str:
        return self.faults.add(fault)

    def follow(self, rule: NewRule) -> str:
        try:
            return self.engine.rules.add(rule)
        except ValueError as error:
            raise UsageError(f"The rule cannot be: {error}.") from error

    def tell(self, kind: str, **fields: JsonValue) -> None:
        self._events.add(kind, fields)

    # Called by the server

    @asynccontextmanager
    async def on_air(self, listeners: Listeners) -> AsyncIterator[None]:
        """Rule the server's listeners until the block is left; the scenario begins."""
        self._network = DeviceNetwork(listeners)
        if self._scenario is not None:
            self.play(self._scenario)
        try:
            yield
        finally:
            if self._play is not None:
                self._play.end()
            await self._network.close()
            self._network = None

    def new_id(self) -> str:
        """Ids of requests are the same in every run."""
        return f"{self._id_begin}{next(self._ids):012x}"

    def unix_time(self) -> float:
        """The time that answers carry."""
        return self.engine.device.clock.unix_time()

    def arrived(self, method: str, path: str, headers: Mapping[str, str], request_id: str) -> CapturedRequest:
        """Note a request as it comes in."""
        clock = self.engine.device.clock
        if method == "POST":
            if clock.virtual:
                clock.advance(SECONDS_BETWEEN_REQUESTS)
            if self._play is not None:
                self._play.note_arrival()
        request = CapturedRequest(
            id=request_id,
            method=method,
            path=path,
            raw_headers=headers,
            arrived=time.perf_counter() - self._began,
            at=clock.now(),
        )
        self._requests.add(request)
        self._running[request_id] = request
        return request

    def keep_body(self, request: CapturedRequest, body: bytes) -> None:
        self._requests.keep_body(request, body)

    def ended(self, request_id: str, status: int, error: str | None, seconds: float) -> None:
        """Note what became of a request."""
        request = self._running.pop(request_id, None)
        if request is None:
            return
        request.status, request.error, request.seconds = status, error, seconds
        if request.method == "POST" and self._play is not None:
            self._play.note_end()
        self._events.add(
            "request",
            {"id": request.id, "method": request.method, "path": request.path, "status": status, "error": error,
             "fault": request.fault},
        )  # fmt: skip

    def struck(self, fault: ArmedFault, request_id: str) -> None:
        """Note that a fault meets a request that is being answered."""
        request = self._running[request_id]
        request.fault = fault.asked.fault
        self.tell("fault", id=fault.id, fault=fault.asked.fault, request=request.id)

    def _apply_model(self, change: StateChange) -> None:
        device = self.engine.device
        if change.model is not UNSET:
            self.engine.load(change.model)
        elif change.memory_limit_bytes is not UNSET or change.context_size is not UNSET:
            self.engine.check_memory()
        if change.app is App.KILLED:
            self.engine.load(None)
        device.changed()

    def _apply_reach(self, change: StateChange) -> None:
        device = self.engine.device
        if change.app is not UNSET:
            device.app = change.app
        if change.network is not UNSET:
            device.network = change.network
        if any(word is not UNSET for word in (change.app, change.network, change.address)):
            self._reach()

    def _reach(self) -> None:
        """Let the network follow the app and the radio."""
        device = self.engine.device
        grace: float | None = 0.0
        if device.network is Network.SILENT:
            grace = None
        elif device.network is Network.UP and device.app in (App.BACKGROUND, App.LOCKED):
            grace = self._real_grace()
        if self._network is not None:
            wanted = reach(device.app, device.network)
            self._network.enter(wanted, grace_seconds=grace, defunct=device.app is not App.FOREGROUND)
            self._network.move(device.address)

    def _real_grace(self) -> float:
        """How long connections live on: real seconds when given, device seconds of the preset otherwise."""
        if self._grace_seconds is not None:
            return self._grace_seconds
        speed = self.engine.device.clock.speed
        return 0.0 if speed is None else self.engine.device.preset.background_grace_seconds / speed


def shown(value: Any) -> JsonValue:
    """Anything of the simulator's as plain JSON values."""
    return msgspec.to_builtins(value)
