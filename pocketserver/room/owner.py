"""What `pocketserver room` asks of a running server, on its control listener."""

from dataclasses import asdict, dataclass
from typing import Any

import msgspec
from aiohttp import web

from pocketserver.room.host import RoomHost

NO_ROOM = "This server has no room. Start it with --room."


class _Kick(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    reason: str = ""


class _Close(msgspec.Struct, forbid_unknown_fields=True):
    reason: str = ""


class _Clients(msgspec.Struct, forbid_unknown_fields=True):
    allowed: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RoomControl:
    """`room` None is a server without one: it says so."""

    room: RoomHost | None

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/room", self._show),
            web.post("/room/kick", self._kick),
            web.post("/room/stop", self._stop),
            web.post("/room/close", self._close),
            web.post("/room/clients", self._clients),
        ]

    async def _show(self, _request: web.Request) -> web.Response:
        return _cannot(NO_ROOM) if self.room is None else _json(shown(self.room))

    async def _kick(self, request: web.Request) -> web.Response:
        if self.room is None:
            return _cannot(NO_ROOM)
        asked = msgspec.json.decode(await request.read(), type=_Kick)
        if not self.room.kick(asked.name, asked.reason):
            here = ", ".join(guest.name for guest in self.room.guests()) or "nobody"
            return _cannot(f"There is no guest named {asked.name[:64]!r}. Here is: {here}.")
        return _json({"kicked": asked.name})

    async def _stop(self, _request: web.Request) -> web.Response:
        return _cannot(NO_ROOM) if self.room is None else _json({"stopped": self.room.stop()})

    async def _close(self, request: web.Request) -> web.Response:
        if self.room is None:
            return _cannot(NO_ROOM)
        self.room.close(msgspec.json.decode(await request.read() or b"{}", type=_Close).reason)
        return _json({"closed": True})

    async def _clients(self, request: web.Request) -> web.Response:
        if self.room is None:
            return _cannot(NO_ROOM)
        asked = msgspec.json.decode(await request.read(), type=_Clients)
        self.room.allow_clients(allowed=asked.allowed, reason=asked.reason)
        return _json(shown(self.room))


def shown(room: RoomHost) -> dict[str, Any]:
    """The room for its owner."""
    return {
        "code": room.code,
        "open": room.open,
        "api_clients": room.api_clients,
        "guests": [asdict(guest) for guest in room.guests()],
    }


def _json(value: dict[str, Any]) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


def _cannot(sentence: str) -> web.Response:
    return web.Response(body=msgspec.json.encode({"error": sentence}), status=409, content_type="application/json")
