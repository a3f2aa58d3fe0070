"""The simulator's routes on the control listener: the words of the interface as JSON."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from pocketserver.chat import JsonValue
from pocketserver.engines.sim.rules import NewRule
from pocketserver.errors import UsageError
from pocketserver.simulator.faults import FAULTS
from pocketserver.simulator.scenario import load_scenario, parse_scenario
from pocketserver.simulator.simulator import Simulator
from pocketserver.simulator.words import AnyWord, NewFault, StateChange

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Advance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Device time to let pass."""

    seconds: Annotated[float, Meta(ge=0, le=10_000_000)]


class NewScenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A shipped scenario's name, or a scenario's own TOML text."""

    name: str | None = None
    toml: str | None = None


@dataclass(frozen=True, slots=True)
class ControlRoutes:
    """Reads and sets one simulator."""

    simulator: Simulator

    def routes(self) -> list[web.RouteDef]:
        """Every route; wrong words are a 400 that names the field."""
        table: list[tuple[str, str, Handler]] = [
            ("GET", "/state", self._state),
            ("PATCH", "/state", self._set_state),
            ("GET", "/faults", self._faults),
            ("POST", "/faults", self._add_fault),
            ("DELETE", "/faults", self._remove_fault),
            ("DELETE", "/faults/{id}", self._remove_fault),
            ("GET", "/rules", self._rules),
            ("POST", "/rules", self._add_rule),
            ("DELETE", "/rules", self._remove_rule),
            ("DELETE", "/rules/{id}", self._remove_rule),
            ("GET", "/requests", self._requests),
            ("GET", "/verdict", self._verdict),
            ("POST", "/reset", self._reset),
            ("POST", "/advance", self._advance),
            ("POST", "/scenario", self._scenario),
            ("GET", "/events", self._events),
        ]
        return [web.route(method, path, _explained(handler)) for method, path, handler in table]

    async def _state(self, _request: web.Request) -> web.Response:
        return _json(self.simulator.state)

    async def _set_state(self, request: web.Request) -> web.Response:
        self.simulator.apply(await _word(request, StateChange))
        await self.simulator.settled()
        return _json(self.simulator.state)

    async def _faults(self, _request: web.Request) -> web.Response:
        kinds = {name: fault.summary for name, fault in FAULTS.items()}
        return _json({"faults": self.simulator.faults.shown(), "kinds": kinds})

    async def _add_fault(self, request: web.Request) -> web.Response:
        return _json({"id": self.simulator.arm(await _word(request, NewFault))})

    async def _remove_fault(self, request: web.Request) -> web.Response:
        return _removed(self.simulator.remove_fault(request.match_info.get("id")))

    async def _rules(self, _request: web.Request) -> web.Response:
        return _json({"rules": self.simulator.engine.rules.shown()})

    async def _add_rule(self, request: web.Request) -> web.Response:
        return _json({"id": self.simulator.follow(await _word(request, NewRule))})

    async def _remove_rule(self, request: web.Request) -> web.Response:
        return _removed(self.simulator.remove_rule(request.match_info.get("id")))

    async def _requests(self, request: web.Request) -> web.Response:
        last = request.query.get("last", "")
        found = self.simulator.requests
        if last:
            if not last.isdecimal():
                raise UsageError(f"last = {last[:40]!r} cannot be. Give a number.")
            found = found[-int(last) :] if int(last) else []
        return _json({"requests": [one.shown() for one in found]})

    async def _verdict(self, _request: web.Request) -> web.Response:
        return _json(self.simulator.verdict().shown())

    async def _reset(self, _request: web.Request) -> web.Response:
        self.simulator.reset()
        await self.simulator.settled()
        return _json({"reset": True})

    async def _advance(self, request: web.Request) -> web.Response:
        self.simulator.advance((await _word(request, Advance)).seconds)
        return _json(self.simulator.state)

    async def _scenario(self, request: web.Request) -> web.Response:
        wanted = await _word(request, NewScenario)
        if (wanted.name is None) == (wanted.toml is None):
            raise UsageError("Give one of name and toml.")
        if wanted.toml is not None:
            scenario = parse_scenario(wanted.toml, "sent", "the scenario")
        else:
            scenario = load_scenario(wanted.name or "")
        self.simulator.play(scenario)
        await self.simulator.settled()
        return _json({"scenario": scenario.name})

    async def _events(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(request)
        async for event in self.simulator.follow_events():
            await response.write(b"data: " + msgspec.json.encode(event.shown()) + b"\n\n")
        return response


def _explained(handler: Handler) -> Handler:
    async def answered(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except UsageError as error:
            return _json({"error": str(error)}, status=400)

    return answered


async def _word(request: web.Request, kind: type[AnyWord]) -> AnyWord:
    try:
        return msgspec.json.decode(await request.read() or b"{}", type=kind)
    except msgspec.DecodeError as error:
        raise UsageError(f"The body cannot be: {error}.") from error


def _removed(removed: bool) -> web.Response:
    return _json({"removed": removed}, status=200 if removed else 404)


def _json(value: JsonValue, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")
