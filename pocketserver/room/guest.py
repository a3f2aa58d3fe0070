"""The guest's end of a link: finds the host, proves the key, keeps the link up, and looks again when it breaks.

What is said over it is the engine's business (engines/room.py).
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeVar

import aiohttp

from pocketserver.errors import Code, Refusal, StartupError
from pocketserver.room import handshake, protocol
from pocketserver.room.finding import Find
from pocketserver.room.outbox import Outbox
from pocketserver.room.pace import USUAL, Pace
from pocketserver.room.protocol import (
    FINAL,
    Challenge,
    FromGuest,
    FromHost,
    Goodbye,
    Heartbeat,
    Hello,
    MalformedError,
    Proof,
    Reason,
    Welcome,
    encode,
)

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 3.0
CLOSING_SECONDS = 1.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.25, 5.0
SORRY_PAUSE_SECONDS = 30.0
"""After a host that does not know our key: it counts wrong ones."""
PROVES_GOOD_SECONDS = 10.0
"""A link that stood so long was no failure: the next pause is short again."""
_SORRY = frozenset({Reason.WRONG_KEY, Reason.TOO_MANY_ATTEMPTS, Reason.UNKNOWN_VERSION, *FINAL})
"""Reasons that a person must hear at the first try: waiting does not help."""
Message = TypeVar("Message")


class LinkState(Enum):
    LOOKING = "looking"
    LINKED = "linked"
    SENT_AWAY = "sent away"
    """The host's owner ended it: it is not looked for again."""


class Receiver(Protocol):
    """Who listens on the link."""

    def linked(self, host: str, url: str, you: str) -> None:
        """A link stands with this host, which calls us so; nothing of an earlier one holds any more."""
        ...

    def receive(self, message: FromHost, size: int) -> None:
        """A message of so many bytes. Raises MalformedError for one that cannot be; that ends the link."""
        ...

    def lost(self, refusal: Refusal) -> None:
        """The link is gone, and with it everything that was asked over it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkOptions:
    """The room's code, the SHA-256 of a key of its host, and what this guest calls itself."""

    code: str
    digest: bytes
    name: str
    pace: Pace = USUAL
    first_pause_seconds: float = FIRST_PAUSE_SECONDS
    longest_pause_seconds: float = LONGEST_PAUSE_SECONDS


class _Ended(Exception):  # noqa: N818 - links end, that is no error
    """The host said goodbye, before the welcome or after it."""

    def __init__(self, goodbye: Goodbye) -> None:
        super().__init__(goodbye.message)
        self.goodbye = goodbye


class _WrongHost(Exception):  # noqa: N818 - said of who answered
    """Who answered does not know the key either."""


class GuestLink:
    """Looks for the host from `start` until `close`, and whenever the link breaks; `finders` are asked in turn."""

    def __init__(self, options: LinkOptions, finders: Sequence[Find]) -> None:
        self.state = LinkState.LOOKING
        self.reason = (
            "The room's host has not been found yet, and is still looked for. Check the code, or give the host's "
            "address with --url."
        )
        """Why there is no link, as a sentence."""
        self.host = ""
        self._options = options
        self._finders = finders
        self._receiver: Receiver | None = None
        self._outbox: Outbox | None = None
        self._looking: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._last_good: str | None = None
        self._said: str | None = None
        """What a host said in this round that a person must hear."""
        self._sorry: str | None = None
        self._heard = 0.0

    def start(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._looking = asyncio.create_task(self._keep_linked(), name="room-link")

    @property
    def linked(self) -> bool:
        return self.state is LinkState.LINKED

    @property
    def sent_away(self) -> bool:
        return self.state is LinkState.SENT_AWAY

    async def wait_linked(self, seconds: float) -> bool:
        """Wait until a link stands, so long at most. Raises StartupError when the host does not want us."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.linked:
                    if self._sorry is not None:
                        raise StartupError(self._sorry)
                    self._changed.clear()
                    await self._changed.wait()
        return self.linked

    def send(self, message: FromGuest) -> None:
        """Send when everything before it has gone. Nothing happens without a link."""
        if self._outbox is not None:
            self._outbox.put(encode(message))

    async def close(self) -> None:
        """End the link and look no more. Safe to call twice."""
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    # Looking

    async def _keep_linked(self) -> None:
        pause = self._options.first_pause_seconds
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS)) as client:
            while not self.sent_away:
                self._said = None
                if await self._look(client) > PROVES_GOOD_SECONDS:
                    pause = self._options.first_pause_seconds
                if self._said is not None:
                    self._sorry = self._sorry or self._said
                    self._changed.set()
                    pause = max(pause, SORRY_PAUSE_SECONDS)
                if not self.sent_away:
                    # many guests of one host must not come back in step
                    await asyncio.sleep(pause * secrets.SystemRandom().uniform(0.5, 1.0))
                    pause = min(2 * pause, self._options.longest_pause_seconds)

    async def _look(self, client: aiohttp.ClientSession) -> float:
        """Try every address there is, until one has been a link; how many seconds it stood."""
        tried: set[str] = set()
        last_good = [] if self._last_good is None else [self._last_good]
        for find in (lambda: _known(last_good), *self._finders):
            for url in await find():
                if url in tried:
                    continue
                tried.add(url)
                stood = await self._try(client, url)
                if stood or self.sent_away:
                    return stood
        return 0.0

    async def _try(self, client: aiohttp.ClientSession, url: str) -> float:
        """Link with whoever answers there; returns when that is over, with the seconds for which it stood."""
        try:
            async with contextlib.AsyncExitStack() as stack:
                async with asyncio.timeout(CONNECT_SECONDS + protocol.HANDSHAKE_SECONDS):
                    socket = await stack.enter_async_context(_opened(client, url))
                    welcome = await self._handshake(socket)
                self._last_good = url
                return await self._stand(socket, welcome, url)
        except _Ended as ended:
            self._told(ended.goodbye)
        except MalformedError as error:
            self.reason = "Whoever answers for this room does not speak its protocol."
            logger.warning("room: %s does not speak the protocol: %s", url, error)
        except _WrongHost:
            self.reason = "Whoever answers for this room does not know the key."
            logger.warning("room: %s does not know the key of the room", url)
        except aiohttp.WSServerHandshakeError:
            self.reason = "There is no open room at the host's address."
        except (aiohttp.ClientError, OSError, TimeoutError):
            pass  # nobody there; `reason` says so already
        return 0.0

    async def _stand(self, socket: aiohttp.ClientWebSocketResponse, welcome: Welcome, url: str) -> float:
        """Serve the link until it ends; everybody is told before anything else happens."""
        began = time.monotonic()
        lost = _gone()
        self._set_linked(welcome, url)
        try:
            await self._serve(socket)
        except _Ended as ended:
            lost = self._told(ended.goodbye)
        except MalformedError as error:
            logger.warning("room: the host broke the protocol: %s", error)
            lost = Refusal(Code.GENERATION_FAILED, "The room's host broke the protocol. Send the request again.")
        except (aiohttp.ClientError, OSError):
            pass  # it went without a word
        finally:
            self._set_lost(lost)
        return max(time.monotonic() - began, 0.001)

    def _told(self, goodbye: Goodbye) -> Refusal:
        """What the host's last words mean to whoever waits for an answer."""
        self.reason = goodbye.message
        if goodbye.reason in _SORRY:
            self._said = f"The room's host refused: {goodbye.message}"
        if goodbye.reason not in FINAL:
            return _gone()
        self.state = LinkState.SENT_AWAY
        return Refusal(Code.DISCONNECTED_BY_HOST, goodbye.message, retry_after=5)

    def _set_linked(self, welcome: Welcome, url: str) -> None:
        self.state, self.host, self.reason = LinkState.LINKED, welcome.name, ""
        self._heard = time.monotonic()
        if self._receiver is not None:
            self._receiver.linked(welcome.name, url, welcome.you)
        self._changed.set()

    def _set_lost(self, refusal: Refusal) -> None:
        if not self.sent_away:
            self.state = LinkState.LOOKING
        self.reason = refusal.message
        self._outbox = None
        if self._receiver is not None:
            self._receiver.lost(refusal)
        self._changed.set()

    # One link

    async def _handshake(self, socket: aiohttp.ClientWebSocketResponse) -> Welcome:
        """Prove the key, and see the host prove it. Raises _Ended, _WrongHost, MalformedError or ConnectionError."""
        options = self._options
        secret = handshake.secret(options.digest, options.code)
        nonce = secrets.token_bytes(protocol.NONCE_BYTES)
        hello = encode(Hello(version=protocol.VERSION, room=options.code, name=options.name, nonce=nonce))
        await socket.send_bytes(hello)
        challenge_frame, _ = await _expect(socket, Challenge)
        await socket.send_bytes(encode(Proof(mac=handshake.guest_proof(secret, hello, challenge_frame))))
        _, welcome = await _expect(socket, Welcome)
        expected = handshake.host_proof(secret, hello, challenge_frame, welcome.name, welcome.you)
        if not handshake.same(welcome.mac, expected):
            raise _WrongHost
        return welcome

    async def _serve(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Until the link ends; raises what ended it, or returns when the host went without a word."""
        outbox = self._outbox = Outbox(socket.send_bytes)
        parts = [asyncio.create_task(part) for part in (self._read(socket), outbox.run(), self._beat(outbox))]
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for part in parts:
                part.cancel()
            results = await asyncio.gather(*parts, return_exceptions=True)
        # the reader's words first: they say why the others failed
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        assert self._receiver is not None, "started"
        while True:
            frame = await _next_frame(socket)
            self._heard = time.monotonic()
            message = protocol.from_host(frame)
            if isinstance(message, Goodbye):
                raise _Ended(message)
            if message is not None and not isinstance(message, Heartbeat):
                self._receiver.receive(message, len(frame))

    async def _beat(self, outbox: Outbox) -> None:
        """Show that we live, and end the link when the host does not."""
        pace = self._options.pace
        beaten = time.monotonic()
        while time.monotonic() - self._heard < pace.deadline:
            await asyncio.sleep(min(pace.look, pace.heartbeat))
            if time.monotonic() - beaten >= pace.heartbeat:
                beaten = time.monotonic()
                outbox.put(encode(Heartbeat()))


def _gone() -> Refusal:
    return Refusal(Code.HOST_GONE, "The room's host is gone. It is being looked for; try again.", retry_after=5)


@contextlib.asynccontextmanager
async def _opened(client: aiohttp.ClientSession, url: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """A WebSocket to the room of this origin. One that does not close in good order is cut off."""
    socket = await client.ws_connect(
        url + protocol.PATH,
        protocols=(protocol.SUBPROTOCOL,),
        max_msg_size=protocol.MAX_HOST_FRAME_BYTES + 1024,
        timeout=aiohttp.ClientWSTimeout(ws_close=CLOSING_SECONDS),
    )
    try:
        if socket.protocol != protocol.SUBPROTOCOL:
            raise MalformedError("it speaks another protocol")
        yield socket
    finally:
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(CLOSING_SECONDS):
                await socket.close()


async def _known(urls: Sequence[str]) -> Sequence[str]:
    return urls


async def _expect(socket: aiohttp.ClientWebSocketResponse, kind: type[Message]) -> tuple[bytes, Message]:
    """The next frame, which must be such a message; types that nobody knows are passed over."""
    while True:
        frame = await _next_frame(socket)
        message = protocol.from_host(frame)
        if isinstance(message, kind):
            return frame, message
        if isinstance(message, Goodbye):
            raise _Ended(message)
        if message is not None:
            raise MalformedError(f"not a {kind.__name__.lower()}")


async def _next_frame(socket: aiohttp.ClientWebSocketResponse) -> bytes:
    received = await socket.receive()
    if received.type is aiohttp.WSMsgType.TEXT:
        raise MalformedError("messages are binary frames")
    if received.type is not aiohttp.WSMsgType.BINARY:
        raise ConnectionError("the host has left")
    frame: bytes = received.data
    return frame
