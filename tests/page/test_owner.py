"""The owner's way in: a token that is good once and soon, a session that ends by itself."""

import pytest

from pocketserver.errors import Code, Refusal
from pocketserver.gate.limits import WrongKeyThrottle
from pocketserver.page.owner import IDLE_SECONDS, LONGEST_SECONDS, TOKEN_SECONDS, OwnerSessions
from tests.page.clock import Clock

PEER = "127.0.0.1"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def owners(clock: Clock) -> OwnerSessions:
    return OwnerSessions(WrongKeyThrottle(3, clock=clock), clock=clock)


def refusal(owners: OwnerSessions, token: str) -> Code:
    with pytest.raises(Refusal) as caught:
        owners.exchange(token, PEER)
    return caught.value.code


def test_a_token_becomes_a_session_once(owners: OwnerSessions) -> None:
    token = owners.new_token()

    session = owners.exchange(token, PEER)

    assert owners.holds(session)
    assert not owners.holds(token)
    assert refusal(owners, token) is Code.INSUFFICIENT_SCOPE


def test_a_token_is_good_for_five_minutes(owners: OwnerSessions, clock: Clock) -> None:
    token = owners.new_token()
    clock.now += TOKEN_SECONDS

    assert refusal(owners, token) is Code.INSUFFICIENT_SCOPE


def test_guessing_tokens_is_slowed_down(owners: OwnerSessions) -> None:
    codes = [refusal(owners, f"guess {number}") for number in range(4)]

    assert codes == [Code.INSUFFICIENT_SCOPE] * 3 + [Code.TOO_MANY_ATTEMPTS]
    assert owners.exchange(owners.new_token(), PEER)


def test_a_session_ends_when_it_is_not_used(owners: OwnerSessions, clock: Clock) -> None:
    session = owners.exchange(owners.new_token(), PEER)
    clock.now += IDLE_SECONDS - 1
    assert owners.holds(session)
    clock.now += IDLE_SECONDS

    assert not owners.holds(session)


def test_a_session_ends_after_half_a_day_however_it_is_used(owners: OwnerSessions, clock: Clock) -> None:
    session = owners.exchange(owners.new_token(), PEER)
    ends = clock.now + LONGEST_SECONDS
    while clock.now < ends - 1000:
        clock.now += 1000
        assert owners.holds(session)
    clock.now = ends

    assert not owners.holds(session)


@pytest.mark.parametrize("session", [None, "", "guess", "\udcff"])
def test_nobody_is_the_owner_without_a_session(owners: OwnerSessions, session: str | None) -> None:
    with pytest.raises(Refusal) as caught:
        owners.require(session)

    assert caught.value.code is Code.INSUFFICIENT_SCOPE
    assert "pocketserver page" in caught.value.message


def test_an_ended_session_is_none(owners: OwnerSessions) -> None:
    session = owners.exchange(owners.new_token(), PEER)
    owners.end(session)

    assert not owners.holds(session)
