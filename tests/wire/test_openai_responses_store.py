"""Stored responses are few, small, short-lived and each owner's own."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketserver.errors import Code, Refusal
from pocketserver.wire.openai_responses_store import Kept, ResponseStore, Stored, kept


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def stored(name: str, *, before: tuple[Kept, ...] = (), size: int = 10, status: str = "completed") -> Stored:
    own = kept([{"id": f"in_{name}", "text": "x" * size}])
    answer = kept([{"id": f"out_{name}"}])
    return Stored(id=name, status=status, document=b"{}", input=(*before, *own), output=answer)


def has(store: ResponseStore, name: str, owner: str | None = None) -> bool:
    try:
        store.get(owner, name)
    except Refusal as refusal:
        return refusal.code is not Code.RESPONSE_NOT_FOUND
    return True


def test_a_response_is_dropped_an_hour_after_its_last_use() -> None:
    clock = Clock()
    store = ResponseStore(clock=clock)
    store.put(None, stored("a"))
    store.put(None, stored("b"))
    clock.now = 3000
    assert has(store, "a")
    clock.now = 3600
    assert not has(store, "b")
    clock.now = 6599
    assert has(store, "a")
    clock.now = 6599 + 3600
    assert len(store) == 0
    assert store.size_bytes == 0


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(Refusal) as caught:
        ResponseStore(clock=Clock()).get(None, "resp_x")

    assert caught.value.code is Code.RESPONSE_NOT_FOUND
    assert caught.value.message == "Response with id 'resp_x' not found."


def test_the_257th_response_drops_the_one_that_was_used_least_recently() -> None:
    store = ResponseStore(clock=Clock())
    for number in range(256):
        store.put(None, stored(f"r{number}"))
    assert has(store, "r0")
    store.put(None, stored("one more"))

    assert len(store) == 256
    assert has(store, "r0")
    assert not has(store, "r1")


def test_more_bytes_than_allowed_drop_the_oldest() -> None:
    store = ResponseStore(clock=Clock(), most_bytes=10_000)
    for name in "abc":
        store.put(None, stored(name, size=3000))

    assert [name for name in "abc" if has(store, name)] == ["b", "c"]
    assert store.size_bytes <= 10_000


def test_one_that_is_larger_than_everything_is_not_kept_and_nothing_breaks() -> None:
    store = ResponseStore(clock=Clock(), most_bytes=10_000)
    store.put(None, stored("a", size=20_000))

    assert not has(store, "a")
    assert store.size_bytes == 0


def test_a_conversation_costs_each_item_once() -> None:
    store = ResponseStore(clock=Clock())
    before: tuple[Kept, ...] = ()
    for number in range(50):
        turn = stored(f"r{number}", before=before, size=10_000)
        store.put(None, turn)
        before = turn.context

    assert store.size_bytes < 50 * 11_000


def test_deleting_a_parent_leaves_its_children_whole() -> None:
    store = ResponseStore(clock=Clock())
    parent = stored("parent")
    store.put(None, parent)
    store.put(None, stored("child", before=parent.context))
    store.delete(None, "parent")

    assert [one.id for one in store.get(None, "child").context] == ["in_parent", "out_parent", "in_child", "out_child"]
    with pytest.raises(Refusal):
        store.delete(None, "parent")


def test_another_key_finds_nothing() -> None:
    store = ResponseStore(clock=Clock())
    store.put("ann", stored("a"))

    assert has(store, "a", "ann")
    assert not has(store, "a", "bob")
    assert not has(store, "a")
    assert store.item("bob", "in_a") is None
    assert store.item("ann", "in_a") == {"id": "in_a", "text": "x" * 10}
    with pytest.raises(Refusal):
        store.delete("bob", "a")


def test_an_item_that_is_referred_to_is_a_use_of_its_response() -> None:
    clock = Clock()
    store = ResponseStore(clock=clock)
    store.put(None, stored("a"))
    clock.now = 3000
    assert store.item(None, "out_a") == {"id": "out_a"}
    clock.now = 6000

    assert has(store, "a")


def test_a_later_state_takes_the_place_of_an_earlier_one() -> None:
    store = ResponseStore(clock=Clock())
    store.put(None, stored("a", status="in_progress"))
    store.put(None, stored("a"))
    store.discard_unfinished(None, "a")

    assert store.get(None, "a").status == "completed"
    store.put(None, stored("b", status="in_progress"))
    store.discard_unfinished(None, "b")
    assert not has(store, "b")


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.booleans(), st.integers(0, 2000))))
def test_the_size_is_always_that_of_what_is_held(steps: list[tuple[int, int, bool, int]]) -> None:
    clock = Clock()
    store = ResponseStore(clock=clock, most_responses=4, most_bytes=6000)
    for name, parent, drop, seconds in steps:
        clock.now += seconds
        if drop:
            store.discard(None, str(name))
            continue
        before = store.get(None, str(parent)).context if has(store, str(parent)) else ()
        store.put(None, stored(str(name), before=before, size=seconds))
        assert len(store) <= 4
        assert store.size_bytes <= 6000
    for name in range(6):
        store.discard(None, str(name))
    assert store.size_bytes == 0
