"""The simulated device as a test holds it: replies, faults, state, requests, verdict. Callable from any thread."""

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from pocketserver.assembly import assemble, make_engine
from pocketserver.chat import JsonValue
from pocketserver.server import Server
from pocketserver.serving import serving
from pocketserver.settings import load
from pocketserver.telemetry import logs

if TYPE_CHECKING:
    from pocketserver.simulator.captured import CapturedRequest
    from pocketserver.simulator.simulator import Simulator
    from pocketserver.simulator.verdict import Verdict
    from pocketserver.testing.background import Background

Result = TypeVar("Result")

API_KEY = "sk-simulator-key-0123456789"
"""The key of a simulator made by a fixture; it opens nothing else."""


@dataclass
class SimulatedServer:
    """One running simulator. `base_url` and `api_key` are what a client is configured with."""

    base_url: str
    api_key: str
    control_url: str
    control_token: str
    _background: "Background"
    _server: Server
    _stack: AsyncExitStack

    @classmethod
    def start(cls, background: "Background", home: Path, settings: Mapping[str, object]) -> Self:
        """Serve in the background's loop. Raises UsageError for a setting that cannot be."""
        server, stack = background.run(_start(home, settings))
        return cls(
            base_url=server.local_url,
            api_key=API_KEY,
            control_url=server.control_url,
            control_token=server.control_token,
            _background=background,
            _server=server,
            _stack=stack,
        )

    def close(self) -> None:
        self._background.run(self._stack.aclose())

    @property
    def device(self) -> "Device":
        """The device's state, to read and to set: `server.device.thermal = "serious"`."""
        return Device(self)

    @property
    def model(self) -> str:
        """The id of the model in memory (or the first of the device), as clients write it."""
        prefix = self._server.effective.profile.model_prefix
        return prefix + self._call(lambda simulator: simulator.engine.device.model.id)

    @property
    def requests(self) -> "list[CapturedRequest]":
        """What clients have sent, oldest first: `.json`, `.headers` (keys hidden), `.status`, `.seconds`, …"""
        return self._call(lambda simulator: simulator.requests)

    def reply(
        self,
        text: str | None = None,
        *,
        tokens: Sequence[str | bytes] | None = None,
        tool_calls: Sequence[tuple[str, Mapping[str, JsonValue]]] = (),
        reasoning: str | None = None,
        refusal: str | None = None,
        finish_reason: str | None = None,
        match: Mapping[str, JsonValue] | None = None,
        times: int | None = None,
    ) -> str:
        """Answer (requests that match) with this; the latest rule that fits wins. Returns the rule's id."""
        given: dict[str, JsonValue] = {
            "text": text,
            "tokens": None if tokens is None else [_token(token) for token in tokens],
            "tool_calls": [{"name": name, "arguments": dict(arguments)} for name, arguments in tool_calls] or None,
            "reasoning": reasoning,
            "refusal": refusal,
            "finish_reason": finish_reason,
        }
        reply = {key: value for key, value in given.items() if value is not None}
        return self._call(lambda simulator: simulator.add_rule(reply, match, times))

    def fail_next(self, fault: str, **words: JsonValue) -> str:
        """Let the next request meet a fault: any error code (`model_busy`), or a name of `pocketserver sim faults`.

        Words: `code`, `after_tokens`, `seconds`, `retry_after`, `when` (`{"every": 3}`, `{"probability": 0.1}`).
        """
        return self._call(lambda simulator: simulator.add_fault(fault, **words))

    def advance(self, seconds: float) -> None:
        """Let device time pass at once: heat, scenarios."""
        self._call(lambda simulator: simulator.advance(seconds))

    def reset(self) -> None:
        """The device as it was when the test began."""
        self._call(lambda simulator: simulator.reset())

    def verdict(self) -> "Verdict":
        """What clients did wrong with the faults they met."""
        return self._call(lambda simulator: simulator.verdict())

    def assert_resilient(self) -> None:
        """Fail the test with every mistake that was seen."""
        verdict = self.verdict()
        assert verdict.resilient, "\n".join(finding.sentence for finding in verdict.findings)

    def _call(self, work: "Callable[[Simulator], Result]") -> Result:
        simulator = self._server.simulator
        assert simulator is not None, "the engine is sim"
        return self._background.call(lambda: work(simulator))

    def _set(self, word: str, value: JsonValue) -> None:
        self._background.run(self._change(word, value))

    async def _change(self, word: str, value: JsonValue) -> None:
        simulator = self._server.simulator
        assert simulator is not None, "the engine is sim"
        simulator.set_state(**{word: value})
        await simulator.settled()


class Device:
    """The state of a simulated device. Attributes are the control's words: `thermal`, `app`, `network`, `battery`, …"""

    def __init__(self, server: SimulatedServer) -> None:
        object.__setattr__(self, "_server", server)

    def __getattr__(self, word: str) -> JsonValue:
        state: dict[str, JsonValue] = self._server._call(lambda simulator: simulator.state)  # noqa: SLF001
        if word not in state:
            raise AttributeError(f"A device has no {word!r}; it has {', '.join(sorted(state))}.")
        return state[word]

    def __setattr__(self, word: str, value: JsonValue) -> None:
        self._server._set(word, value)  # noqa: SLF001


async def _start(home: Path, settings: Mapping[str, object]) -> tuple[Server, AsyncExitStack]:
    flags = {"home": str(home), "engine": "sim", "host": "127.0.0.1", "port": 0, "speed": "max", "mdns": False}
    effective = load(
        flags={**flags, "shutdown_grace_seconds": 0.0, **settings}, environment={"POCKETSERVER_API_KEY": API_KEY}
    )
    async with AsyncExitStack() as stack:
        log = stack.enter_context(logs.configure(stream=io.StringIO(), level="warning"))
        server = assemble(effective, make_engine(effective.settings, None), log)
        await server.engine.start()
        await stack.enter_async_context(serving(server))
        return server, stack.pop_all()


def _token(token: str | bytes) -> JsonValue:
    return token if isinstance(token, str) else {"base64": base64.b64encode(token).decode()}
