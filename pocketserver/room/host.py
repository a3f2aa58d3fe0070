"""A room on a running server: who may come in, who is there, and what its owner can do. `GET /room` leads here."""

import asyncio
import contextlib
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from aiohttp import WSCloseCode, WSMsgType, hdrs, web

from pocketserver.errors import Code, Refusal
from pocketserver.gate.keys import Identity, KeyStore
from pocketserver.gate.limits import WrongKeyThrottle
from pocketserver.room import handshake, protocol
from pocketserver.room.protocol import (
    ApiClients,
    Challenge,
    FromGuest,
    Goodbye,
    Hello,
    MalformedError,
    Proof,
    Reason,
    Welcome,
    encode,
)
from pocketserver.room.seat import House, Seat

MOST_GUESTS = 64
MOST_STRANGERS = 16
"""Links that have not proved a key yet."""
CLOSING_SECONDS = 2.0
SCOPE = "chat"
"""What a guest's key must be good for."""
_NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,64}")
_CODES = {Reason.MALFORMED: WSCloseCode.INVALID_TEXT, Reason.SHUTTING_DOWN: WSCloseCode.GOING_AWAY}
Message = TypeVar("Message")


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestInfo:
    """One guest as its host's owner sees it. `requests` wait or run; `seconds` is how long it has been here."""

    name: str
    key: str
    address: str
    seconds: float
    requests: int
    served: int


class _Unwelcome(Exception):  # noqa: N818 - it is an answer, not a fault
    """A link that ends before the guest is one."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.goodbye = Goodbye(reason=reason, message=message)


class RoomHost:
    """The room with this code. `throttle` slows down whoever tries wrong keys, by its address."""

    def __init__(self, *, code: str, name: str, house: House, keys: KeyStore, throttle: WrongKeyThrottle) -> None:
        self.code = code
        self.open = True
        self._name = name[:64] or "host"
        self.house = house
        self._keys = keys
        self._throttle = throttle
        self._seats: dict[str, Seat] = {}
        self._strangers = 0
        self._clients = ApiClients(allowed=True)
        self._left = asyncio.Event()

    def routes(self) -> list[web.RouteDef]:
        return [web.get(protocol.PATH, self.link)]

    # For the owner

    @property
    def api_clients(self) -> bool:
        """Whether the guests' API clients are answered."""
        return self._clients.allowed

    def guests(self) -> Sequence[GuestInfo]:
        return [
            GuestInfo(
                name=seat.name,
                key=seat.identity.name,
                address=seat.peer,
                seconds=round(time.monotonic() - seat.since, 1),
                requests=seat.requests,
                served=seat.served,
            )
            for seat in self._seats.values()
        ]

    def kick(self, name: str, reason: str = "") -> bool:
        """Disconnect a guest and tell it why; False when there is none of that name. Its key stays good."""
        seat = self._seats.get(name)
        if seat is not None:
            seat.end(Goodbye(reason=Reason.KICKED, message=reason or "The host disconnected this client."))
        return seat is not None

    def stop(self) -> int:
        """End every guest's requests, running and waiting; how many that were."""
        stopped = Refusal(Code.REQUEST_CANCELLED, "The room's host pressed Stop. Send the request again to retry.")
        return sum(seat.refuse_all(stopped) for seat in self._seats.values())

    def close(self, reason: str = "") -> None:
        """Disconnect every guest and let nobody in any more. Safe to call twice."""
        self.open = False
        self._end_all(Goodbye(reason=Reason.CLOSED, message=reason or "The host closed the room."))

    def allow_clients(self, *, allowed: bool, reason: str = "") -> None:
        """Let the guests' own API clients in, or keep them out while the guests stay."""
        said = "" if allowed else reason or "The host turned API clients off."
        self._clients = ApiClients(allowed=allowed, reason=said)
        for seat in self._seats.values():
            seat.allow_clients(self._clients)

    def key_revoked(self, identity: Identity) -> None:
        """Disconnect whoever came in with this key."""
        goodbye = Goodbye(reason=Reason.KEY_REVOKED, message="The key of this client was revoked at the host.")
        for seat in self._seats.values():
            if seat.identity.digest == identity.digest:
                seat.end(goodbye)

    async def shut_down(self, _app: web.Application) -> None:
        """The server ends: tell the guests, who look for it again. For `Application.on_shutdown`."""
        self._end_all(Goodbye(reason=Reason.SHUTTING_DOWN, message="The host is shutting down."))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSING_SECONDS):
                while self._seats:
                    self._left.clear()
                    await self._left.wait()

    def _end_all(self, goodbye: Goodbye) -> None:
        for seat in self._seats.values():
            seat.end(goodbye)

    # A link

    async def link(self, request: web.Request) -> web.StreamResponse:
        """One guest, from its first frame to its last. Before its proof it learns only that here is a room."""
        self._check_request(request)
        socket = web.WebSocketResponse(
            protocols=(protocol.SUBPROTOCOL,),
            max_msg_size=protocol.MAX_GUEST_FRAME_BYTES,
            timeout=CLOSING_SECONDS,
            compress=False,
        )
        if not socket.can_prepare(request):
            raise Refusal(Code.MALFORMED_REQUEST, "Here is a room. This is not a WebSocket's opening request.")
        await socket.prepare(request)
        goodbye: Goodbye | None = None
        try:
            seat = await self._admitted(socket, request.remote or "")
        except _Unwelcome as unwelcome:
            goodbye = unwelcome.goodbye
            with contextlib.suppress(ConnectionError):
                await socket.send_bytes(encode(goodbye))
        except (ConnectionError, TimeoutError):
            pass
        else:
            try:
                goodbye = await seat.run()
            finally:
                del self._seats[seat.name]
                self._left.set()
                self.house.log.info("room: %s left", seat.name)
        await self._close(request, socket, goodbye)
        return socket

    def _check_request(self, request: web.Request) -> None:
        if not self.open:
            raise Refusal(Code.UNKNOWN_ROUTE, "There is no open room here.")
        if hdrs.ORIGIN in request.headers:
            raise Refusal(Code.ORIGIN_NOT_ALLOWED, "A room takes no web pages.")
        offered = request.headers.get(hdrs.SEC_WEBSOCKET_PROTOCOL, "")
        if protocol.SUBPROTOCOL not in [word.strip() for word in offered.split(",")]:
            raise Refusal(
                Code.MALFORMED_REQUEST, f"Here is a room. Open a WebSocket with subprotocol {protocol.SUBPROTOCOL}."
            )
        if self._strangers >= MOST_STRANGERS:
            raise Refusal(Code.TOO_MANY_ATTEMPTS, "Too many are at the door of the room. Try again.", retry_after=5)

    async def _admitted(self, socket: web.WebSocketResponse, peer: str) -> Seat:
        """The guest, once it has proved a key. Raises _Unwelcome, ConnectionError or TimeoutError."""
        self._strangers += 1
        try:
            async with asyncio.timeout(protocol.HANDSHAKE_SECONDS):
                return await self._handshake(socket, peer)
        except MalformedError as error:
            raise _Unwelcome(Reason.MALFORMED, f"That was no message of a handshake: {error}"[:500]) from None
        finally:
            self._strangers -= 1

    async def _handshake(self, socket: web.WebSocketResponse, peer: str) -> Seat:
        hello_frame, hello = await self._expect(socket, Hello)
        self._check_hello(hello)
        challenge_frame = encode(Challenge(version=protocol.VERSION, nonce=secrets.token_bytes(protocol.NONCE_BYTES)))
        await socket.send_bytes(challenge_frame)
        _, proof = await self._expect(socket, Proof)

        def fits(digest: bytes) -> bool:
            secret = handshake.secret(digest, self.code)
            return handshake.same(proof.mac, handshake.guest_proof(secret, hello_frame, challenge_frame))

        identity = self._keys.find_by(fits, scope=SCOPE)
        if identity is None:
            self._note_wrong(peer)
            raise _Unwelcome(
                Reason.WRONG_KEY,
                "That key is not good for this room. Its host makes one with `pocketserver key new NAME`.",
            )
        if not self.open or len(self._seats) >= MOST_GUESTS:
            raise _Unwelcome(Reason.FULL, "The room is full or closed.")
        you = self._free_name(hello.name)
        secret = handshake.secret(identity.digest, self.code)
        mac = handshake.host_proof(secret, hello_frame, challenge_frame, self._name, you)
        seat = self._seats[you] = Seat(
            socket, self.house, name=you, identity=identity, peer=peer, clients=self._clients
        )
        try:
            await socket.send_bytes(encode(Welcome(mac=mac, name=self._name, you=you)))
        except BaseException:
            del self._seats[you]
            raise
        self.house.log.info("room: %s came in from %s with the key '%s'", you, peer, identity.name)
        return seat

    def _check_hello(self, hello: Hello) -> None:
        if hello.version != protocol.VERSION:
            raise _Unwelcome(Reason.UNKNOWN_VERSION, f"This host speaks version {protocol.VERSION} of the protocol.")
        if hello.room != self.code:
            raise _Unwelcome(Reason.WRONG_ROOM, "The room here has another code.")
        if not _NAME.fullmatch(hello.name) or not hello.name.isprintable():
            raise _Unwelcome(Reason.MALFORMED, "A guest's name is up to 64 printable characters.")

    def _note_wrong(self, peer: str) -> None:
        try:
            self._throttle.note_wrong(peer)
        except Refusal as refusal:
            raise _Unwelcome(Reason.TOO_MANY_ATTEMPTS, refusal.message) from None

    def _free_name(self, wanted: str) -> str:
        numbered = (f"{wanted[:60]}-{number}" for number in range(2, MOST_GUESTS + 3))
        return next(name for name in (wanted, *numbered) if name not in self._seats)

    async def _expect(self, socket: web.WebSocketResponse, kind: type[Message]) -> tuple[bytes, Message]:
        """The next frame, which must be such a message; types that nobody knows are passed over."""
        while True:
            received = await socket.receive()
            if received.type is WSMsgType.TEXT:
                raise MalformedError("messages are binary frames")
            if received.type is not WSMsgType.BINARY:
                raise ConnectionError("the guest has left")
            if len(received.data) > protocol.MAX_HANDSHAKE_BYTES:
                raise MalformedError(f"more than {protocol.MAX_HANDSHAKE_BYTES} bytes")
            message: FromGuest | None = protocol.from_guest(received.data)
            if isinstance(message, kind):
                return received.data, message
            if message is not None:
                raise MalformedError(f"not a {kind.__name__.lower()}")

    async def _close(self, request: web.Request, socket: web.WebSocketResponse, goodbye: Goodbye | None) -> None:
        """Close, whether the guest reads on or not."""
        code = WSCloseCode.OK if goodbye is None else _CODES.get(Reason(goodbye.reason), WSCloseCode.POLICY_VIOLATION)
        text = b"" if goodbye is None else protocol.closing_text(goodbye.message)
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(CLOSING_SECONDS):
                await socket.close(code=code, message=text)
                return
        if request.transport is not None:
            request.transport.abort()
