"""Coming in: a key is proved without being sent, and whoever cannot prove it learns that here is a room, no more."""

import asyncio
import hmac
from pathlib import Path

import aiohttp
import msgspec
import pytest
from aiohttp import WSMsgType, web

from pocketserver.engines.room import RoomLimits
from pocketserver.errors import StartupError
from pocketserver.room import handshake, protocol
from pocketserver.room.finding import at
from pocketserver.room.handshake import digest_of
from pocketserver.room.protocol import Goodbye, Reason, Welcome
from tests.room.rooming import CODE, hosting, joining, linked, stranger
from tests.room.scripted_host import KEY, READY, scripted_host
from tests.waiting import until


def test_the_secret_is_hkdf_as_rfc_5869_has_it() -> None:
    """Test case 1 of the RFC, through the same two steps with its own inputs."""
    ikm, salt = b"\x0b" * 22, bytes(range(13))
    extracted = hmac.digest(salt, ikm, "sha256")
    assert extracted.hex() == "077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5"
    expected = hmac.digest(
        hmac.digest(CODE.encode(), digest_of("key"), "sha256"), b"pocketserver.room.v1 link\x01", "sha256"
    )
    assert handshake.secret(digest_of("key"), CODE) == expected


def test_every_part_of_the_handshake_is_in_the_proof() -> None:
    secret = handshake.secret(digest_of("key"), CODE)
    proofs = {
        handshake.guest_proof(secret, b"hello", b"challenge"),
        handshake.guest_proof(secret, b"hello2", b"challenge"),
        handshake.guest_proof(secret, b"hello", b"challenge2"),
        handshake.guest_proof(secret, b"hellochall", b"enge"),
        handshake.host_proof(secret, b"hello", b"challenge", "host", "you"),
        handshake.host_proof(secret, b"hello", b"challenge", "hos", "tyou"),
        handshake.guest_proof(handshake.secret(digest_of("other"), CODE), b"hello", b"challenge"),
        handshake.guest_proof(handshake.secret(digest_of("key"), "222222"), b"hello", b"challenge"),
    }
    assert len(proofs) == 8


async def test_whoever_has_no_key_learns_only_that_here_is_a_room(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host, stranger(host.url) as link:
        hello = await link.send(protocol.Hello(version=1, room=CODE, name="eve", nonce=bytes(32)))
        received = [await link.socket.receive()]
        secret = handshake.secret(digest_of("sk-guessed-wrongly"), CODE)
        await link.send(protocol.Proof(mac=handshake.guest_proof(secret, hello, received[0].data)))
        async with asyncio.timeout(10):
            while received[-1].type is WSMsgType.BINARY:
                received.append(await link.socket.receive())

        challenge, goodbye, closing = received
        assert set(msgspec.msgpack.decode(challenge.data)) == {"type", "version", "nonce"}
        assert msgspec.msgpack.decode(goodbye.data)["reason"] == Reason.WRONG_KEY
        assert closing.data == aiohttp.WSCloseCode.POLICY_VIOLATION
        assert not host.room.guests()
        everything = b"".join(frame.data for frame in received[:2]) + (closing.extra or "").encode()
        for private in (b"sim-1b", b"8192", host.room._name.encode(), host.key.encode()):
            assert private not in everything


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 400),
        ({"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Protocol": "chat"}, 400),
        ({"Origin": "http://evil.example", "Sec-WebSocket-Protocol": protocol.SUBPROTOCOL}, 403),
        ({"Host": "evil.example"}, 403),
    ],
)
async def test_other_programs_get_no_further(tmp_path: Path, headers: dict[str, str], status: int) -> None:
    async with hosting(tmp_path) as host, aiohttp.ClientSession() as client:
        async with client.get(f"{host.url}/room", headers=headers) as response:
            assert response.status == status
            assert "sim-1b" not in await response.text()


async def test_a_server_without_a_room_has_no_such_path(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host, aiohttp.ClientSession() as client:
        host.room.close()
        async with client.get(f"{host.url}/room") as response:
            assert response.status == 404


async def test_a_recorded_handshake_that_is_replayed_is_refused(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        async with stranger(host.url) as link:
            hello = await link.send(protocol.Hello(version=1, room=CODE, name="laptop", nonce=bytes(range(32))))
            challenge = await link.socket.receive()
            secret = handshake.secret(digest_of(host.key), CODE)
            proof = await link.send(protocol.Proof(mac=handshake.guest_proof(secret, hello, challenge.data)))
            assert (await link.next(Welcome)).you == "laptop"

        async with stranger(host.url) as replayed:
            await replayed.socket.send_bytes(hello)
            await replayed.socket.send_bytes(proof)
            assert (await replayed.next(Goodbye)).reason == Reason.WRONG_KEY


async def test_a_host_that_sends_our_own_proof_back_is_no_host(tmp_path: Path) -> None:
    """Nor is one that makes up a proof: the guest says nothing more to it."""
    seen: list[bytes] = []

    async def link(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=(protocol.SUBPROTOCOL,))
        await socket.prepare(request)
        await socket.receive()
        await socket.send_bytes(protocol.encode(protocol.Challenge(version=1, nonce=bytes(32))))
        proof = msgspec.msgpack.decode((await socket.receive()).data)
        await socket.send_bytes(protocol.encode(Welcome(mac=proof["mac"], name="host", you="laptop")))
        seen.append(b"welcomed")
        after = await socket.receive()
        seen.append(after.data if after.type is WSMsgType.BINARY else b"closed")
        return socket

    app = web.Application()
    app.router.add_get("/room", link)
    runner = web.AppRunner(app, shutdown_timeout=0.2)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with joining(tmp_path, at(url), KEY, limits=RoomLimits(wait=0.1)) as guest:
            await until(lambda: len(seen) >= 2)
            assert seen[1] == b"closed"
            assert not guest.status.connected
            assert "does not know the key" in (guest.status.problem or "")
    finally:
        await runner.cleanup()


async def test_joining_with_a_wrong_key_ends_the_command_with_one_sentence(tmp_path: Path) -> None:
    async with hosting(tmp_path / "host") as host:
        with pytest.raises(StartupError, match="That key is not good"):
            async with joining(tmp_path / "guest", at(host.url), "sk-not-the-right-one"):
                pytest.fail("joined")


async def test_joining_another_room_says_so(tmp_path: Path) -> None:
    async with hosting(tmp_path, room="222222") as host, stranger(host.url) as link:
        await link.send(protocol.Hello(version=1, room=CODE, name="x", nonce=bytes(32)))
        assert (await link.next(Goodbye)).reason == Reason.WRONG_ROOM


async def test_wrong_keys_are_slowed_down_and_the_right_one_is_not(tmp_path: Path) -> None:
    async with hosting(tmp_path, wrong_keys_a_minute=2) as host:
        reasons = []
        for _ in range(4):
            async with stranger(host.url) as link:
                await link.prove("sk-not-the-right-one")
                reasons.append((await link.next(Goodbye)).reason)
        async with stranger(host.url) as link:
            await link.prove(host.key)
            assert (await link.next(Welcome)).you == "stranger"

    assert reasons == [Reason.WRONG_KEY, Reason.WRONG_KEY, Reason.TOO_MANY_ATTEMPTS, Reason.TOO_MANY_ATTEMPTS]


async def test_a_named_key_with_the_scope_chat_is_as_good_and_one_without_is_not(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        assert host.running.server.keys is not None
        phone = await asyncio.to_thread(host.running.server.keys.new, "phone")
        scraper = await asyncio.to_thread(host.running.server.keys.new, "scraper", ("metrics",))
        async with stranger(host.url) as link:
            await link.prove(phone)
            await link.next(Welcome)
            assert [guest.key for guest in host.room.guests()] == ["phone"]
        async with stranger(host.url) as link:
            await link.prove(scraper)
            assert (await link.next(Goodbye)).reason == Reason.WRONG_KEY


async def test_guests_of_one_name_are_told_apart(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host, stranger(host.url) as one, stranger(host.url) as two:
        await one.prove(host.key, name="vm")
        await one.next(Welcome)
        await two.prove(host.key, name="vm")
        assert (await two.next(Welcome)).you == "vm-2"


async def test_a_scripted_host_and_a_guest_agree(tmp_path: Path) -> None:
    async def script(socket: web.WebSocketResponse) -> None:
        await socket.send_bytes(protocol.encode(READY))
        await socket.receive()

    async with scripted_host(script) as url, joining(tmp_path, at(url), KEY) as guest:
        await linked(guest)
        assert guest.status.model == "far-away"
