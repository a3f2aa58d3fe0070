"""How a room and a server are put together: a room on the host's door, an engine on the guest's link."""

import secrets
import socket
import time
from collections.abc import Callable

from pocketserver.answering import CLIENT_GONE, Exchange
from pocketserver.engines.room import RoomEngine, RoomLimits
from pocketserver.errors import UsageError
from pocketserver.gate.limits import WrongKeyThrottle
from pocketserver.room import protocol
from pocketserver.room.code import checked_code, own_code
from pocketserver.room.finding import at, by_mdns, checked_url
from pocketserver.room.guest import GuestLink, LinkOptions
from pocketserver.room.handshake import digest_of
from pocketserver.room.host import RoomHost
from pocketserver.room.seat import GuestRequest, House, announcement_of
from pocketserver.server import Server
from pocketserver.settings import Settings
from pocketserver.wire.openai_errors import SHAPES

OWN = "auto"
"""The word for this home folder's own code."""


def open_room(server: Server, record: Callable[[Exchange], None]) -> RoomHost:
    """The room that the settings ask for. `record` is told of every guest's request. Raises UsageError."""
    settings = server.effective.settings
    assert settings.room is not None
    if server.keys is None:
        raise UsageError("A room needs keys, by which guests are known. Leave --auth on, or leave --room out.")
    code = own_code(settings.home_folder) if settings.room == OWN else checked_code(settings.room)
    house = House(
        door=server.door,
        announce=lambda: announcement_of(server.door, server.model_id),
        new_id=server.new_id,
        log=server.log.logger,
        began=lambda asked: server.activity.began(asked.request_id, asked.key_name, asked.peer, asked.answer),
        ended=lambda asked: record(_exchange(asked)),
        instance=server.instance,
    )
    throttle = WrongKeyThrottle(settings.wrong_keys_a_minute)
    return RoomHost(code=code, name=_own_name(settings), house=house, keys=server.keys, throttle=throttle)


def room_engine(settings: Settings) -> RoomEngine:
    """A guest of the room that the settings name. Raises UsageError."""
    if settings.room is None or settings.room_key is None:
        raise UsageError(
            "A room is joined by `pocketserver join CODE`, with a key of its host in POCKETSERVER_ROOM_KEY."
        )
    code = checked_code(settings.room)
    finders = [] if settings.room_url is None else [at(checked_url(settings.room_url))]
    if settings.mdns:
        finders.append(by_mdns(code))
    if not finders:
        raise UsageError("Without mDNS the host is not found by itself. Give its address with --url.")
    link = GuestLink(LinkOptions(code=code, digest=digest_of(settings.room_key), name=_own_name(settings)), finders)
    limits = RoomLimits(
        wait=settings.wait,
        stall=settings.stall_seconds,
        queue=settings.queue_seconds or RoomLimits().queue,
    )
    return RoomEngine(link, limits, instance=secrets.token_hex(8))


def _own_name(settings: Settings) -> str:
    return (settings.name or socket.gethostname().split(".")[0])[:64] or "pocketserver"


def _exchange(asked: GuestRequest) -> Exchange:
    """A guest's request as the log and the metrics know requests."""
    status = 200 if asked.refusal is None else SHAPES[asked.refusal][0]
    return Exchange(
        route=protocol.PATH,
        method="ASK",
        path=protocol.PATH,
        peer=asked.peer,
        request_id=asked.request_id,
        key_name=asked.key_name,
        status=CLIENT_GONE if asked.cancelled else status,
        error=asked.refusal,
        seconds=time.monotonic() - asked.answer.arrived,
        answer=asked.answer,
    )
