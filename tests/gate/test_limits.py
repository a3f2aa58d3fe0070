"""The slow-down for wrong keys."""

import pytest

from pocketserver.errors import Code, Refusal
from pocketserver.gate.limits import WrongKeyThrottle


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def wrong(throttle: WrongKeyThrottle, peer: str, times: int) -> list[Refusal]:
    refusals = []
    for _ in range(times):
        try:
            throttle.note_wrong(peer)
        except Refusal as refusal:
            refusals.append(refusal)
    return refusals


def test_the_eleventh_wrong_key_within_a_minute_is_told_to_wait() -> None:
    throttle = WrongKeyThrottle(10, clock=Clock())

    refusals = wrong(throttle, "192.168.1.7", 20)

    assert len(refusals) == 10
    assert {refusal.code for refusal in refusals} == {Code.TOO_MANY_ATTEMPTS}
    assert {refusal.retry_after for refusal in refusals} == {6}


def test_other_peers_are_not_affected() -> None:
    throttle = WrongKeyThrottle(3, clock=Clock())
    wrong(throttle, "192.168.1.7", 50)

    assert not wrong(throttle, "192.168.1.8", 3)


def test_waiting_as_long_as_told_helps() -> None:
    clock = Clock()
    throttle = WrongKeyThrottle(10, clock=clock)
    (refusal,) = wrong(throttle, "192.168.1.7", 11)
    assert refusal.retry_after is not None

    clock.now += refusal.retry_after

    assert not wrong(throttle, "192.168.1.7", 1)
    assert wrong(throttle, "192.168.1.7", 1)


def test_the_table_is_bounded_and_keeps_who_tried_last() -> None:
    throttle = WrongKeyThrottle(1, clock=Clock(), most_peers=100)
    wrong(throttle, "192.168.1.7", 1)
    for number in range(1000):
        wrong(throttle, f"10.0.{number // 250}.{number % 250}", 1)
        if number % 50 == 0:
            assert wrong(throttle, "192.168.1.7", 1)

    assert len(throttle) == 100


@pytest.mark.parametrize("limit", [1, 7, 60, 600])
def test_retry_after_is_a_whole_number_of_seconds_above_zero(limit: int) -> None:
    (refusal,) = wrong(WrongKeyThrottle(limit, clock=Clock()), "192.168.1.7", limit + 1)

    assert isinstance(refusal.retry_after, int)
    assert refusal.retry_after >= 1
