"""Pairing codes: once, soon, few tries, and a key of the device's own."""

import asyncio
from pathlib import Path

import pytest

from pocketserver.errors import Code, Refusal, UsageError
from pocketserver.gate.keys import KeyStore
from pocketserver.gate.limits import WrongKeyThrottle
from pocketserver.page.pairing import LIFETIME_SECONDS, OfferShown, OfferState, PairingDesk, key_name
from tests.page.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def keys(tmp_path: Path) -> KeyStore:
    return KeyStore(tmp_path)


@pytest.fixture
def desk(keys: KeyStore, clock: Clock) -> PairingDesk:
    return PairingDesk(keys, WrongKeyThrottle(100, clock=clock), clock=clock)


async def refusal(desk: PairingDesk, code: str, peer: str = "192.168.1.9") -> Code:
    with pytest.raises(Refusal) as caught:
        await desk.exchange(code, "phone", peer)
    return caught.value.code


def shown(desk: PairingDesk) -> OfferShown:
    offer = desk.shown()
    assert offer is not None
    return offer


def wrong(code: str) -> str:
    return f"{(int(code) + 1) % 1_000_000:06d}"


async def test_a_code_becomes_a_named_chat_key_once(desk: PairingDesk, keys: KeyStore) -> None:
    code = desk.offer()

    key, name = await desk.exchange(code, "Anna's phone", "192.168.1.9")

    assert name == "Anna-s-phone"
    assert keys.authenticate([f"Bearer {key}"]).scopes == {"chat"}
    assert shown(desk).state is OfferState.USED
    assert shown(desk).name == name
    assert await refusal(desk, code) is Code.INVALID_PAIRING_CODE


async def test_two_devices_of_one_name_get_two_keys(desk: PairingDesk) -> None:
    names = [(await desk.exchange(desk.offer(), "phone", "192.168.1.9"))[1] for _ in range(3)]

    assert names == ["phone", "phone-2", "phone-3"]


async def test_two_exchanges_in_the_same_moment_give_one_key(desk: PairingDesk, keys: KeyStore) -> None:
    code = desk.offer()

    got = await asyncio.gather(*(desk.exchange(code, "phone", "p") for _ in range(4)), return_exceptions=True)

    assert sum(isinstance(one, tuple) for one in got) == 1
    assert [key.name for key in keys.list()] == ["phone"]


async def test_a_code_lives_two_minutes(desk: PairingDesk, clock: Clock) -> None:
    first = desk.offer()
    clock.now += LIFETIME_SECONDS
    assert await refusal(desk, first) is Code.INVALID_PAIRING_CODE

    second = desk.offer()
    clock.now += LIFETIME_SECONDS - 1
    assert await desk.exchange(second, "phone", "p")


async def test_five_wrong_tries_from_anywhere_void_a_code(desk: PairingDesk) -> None:
    code = desk.offer()
    for number in range(5):
        assert await refusal(desk, wrong(code), f"192.168.1.{number}") is Code.INVALID_PAIRING_CODE

    assert await refusal(desk, code) is Code.INVALID_PAIRING_CODE
    assert shown(desk).state is OfferState.VOID


async def test_four_wrong_tries_do_not(desk: PairingDesk) -> None:
    code = desk.offer()
    for _ in range(4):
        await refusal(desk, wrong(code))

    assert await desk.exchange(f"{code[:3]} {code[3:]}", "phone", "p")


async def test_a_new_code_voids_the_one_before(desk: PairingDesk) -> None:
    first, second = desk.offer(), desk.offer()
    if first != second:
        assert await refusal(desk, first) is Code.INVALID_PAIRING_CODE

    assert await desk.exchange(second, "phone", "p")


async def test_an_address_that_guesses_on_is_told_to_wait(keys: KeyStore, clock: Clock) -> None:
    desk = PairingDesk(keys, WrongKeyThrottle(3, clock=clock), clock=clock)

    codes = [await refusal(desk, "000000", "192.168.1.66") for _ in range(5)]

    assert codes == [Code.INVALID_PAIRING_CODE] * 3 + [Code.TOO_MANY_ATTEMPTS] * 2
    assert await desk.exchange(desk.offer(), "phone", "192.168.1.9")


async def test_without_a_code_nothing_pairs(desk: PairingDesk) -> None:
    assert await refusal(desk, "") is Code.INVALID_PAIRING_CODE
    assert await refusal(desk, "\udcff١٢٣٤٥٦") is Code.INVALID_PAIRING_CODE
    assert desk.shown() is None


def test_a_server_that_asks_for_no_key_has_nothing_to_pair(clock: Clock) -> None:
    with pytest.raises(UsageError, match="no key"):
        PairingDesk(None, WrongKeyThrottle(3, clock=clock), clock=clock).offer()


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        ("iPhone", "iPhone"),
        ("  Müllers Gerät  ", "M-llers-Ger-t"),
        ("../../etc/passwd", "etc-passwd"),
        ("电话", "device"),
        ("", "device"),
        ("x" * 500, "x" * 28),
        ("main", "main"),
    ],
)
def test_a_devices_own_words_become_a_name(wanted: str, name: str) -> None:
    assert key_name(wanted) == name


async def test_no_device_becomes_the_main_key(desk: PairingDesk) -> None:
    assert (await desk.exchange(desk.offer(), "main", "p"))[1] == "main-2"
