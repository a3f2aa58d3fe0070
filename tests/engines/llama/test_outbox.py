"""Events wait for the next choice only where tokens come fast, and none is lost or late at the end."""

from collections.abc import Sequence

import pytest

from pocketserver.chat import Event, TextDelta
from pocketserver.engines.llama.outbox import Outbox


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def texts(sent: Sequence[Sequence[Event]]) -> list[list[str]]:
    return [[event.text for event in events if isinstance(event, TextDelta)] for events in sent]


def stepped(step_seconds: float) -> list[list[list[str]]]:
    """What was out at each moment: behind each put, and behind a flush at the end."""
    sent: list[Sequence[Event]] = []
    clock = Clock()
    outbox = Outbox(sent.append, clock)
    seen = []
    for word in "abcd":
        outbox.step()
        outbox.put([TextDelta(text=word)])
        seen.append(texts(sent))
        clock.seconds += step_seconds
    outbox.flush()
    return [*seen, texts(sent)]


def test_the_first_event_goes_out_at_once_and_quick_ones_with_the_next_step() -> None:
    assert stepped(0.01) == [
        [["a"]],
        [["a"]],
        [["a"], ["b"]],
        [["a"], ["b"], ["c"]],
        [["a"], ["b"], ["c"], ["d"]],
    ]


@pytest.mark.parametrize("step_seconds", [0.05, 3.0])
def test_events_of_slow_steps_never_wait(step_seconds: float) -> None:
    assert [len(sent) for sent in stepped(step_seconds)] == [1, 2, 3, 4, 4]


def test_nothing_is_sent_where_there_is_nothing() -> None:
    sent: list[Sequence[Event]] = []
    outbox = Outbox(sent.append)
    outbox.put([])
    outbox.step()
    outbox.flush()
    assert sent == []
