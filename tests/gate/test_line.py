"""The line: what it tells of places is what it does, whoever comes and goes."""

import asyncio
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from pocketserver.gate.line import Line


@dataclass(eq=False)
class Member:
    owner: str | None
    waiter: "asyncio.Future[None] | None" = None


STEPS = st.lists(st.one_of(st.sampled_from(["a", "b", "c", None]), st.just("serve"), st.just("leave")), max_size=60)


@given(STEPS)
def test_the_order_told_is_the_order_served(steps: list[str | None]) -> None:
    line: Line[Member] = Line()
    for step in steps:
        if step == "serve":
            member = line.next()
            if member is not None:
                line.served(member.owner)
        elif step == "leave":
            members = list(line)
            if members:
                line.remove(members[len(members) // 2])
        else:
            line.add(Member(step))

    told = list(line)
    assert [line.ahead_of(member) for member in told] == list(range(len(line)))
    served = []
    while (member := line.next()) is not None:
        line.served(member.owner)
        served.append(member)
    assert [id(member) for member in told] == [id(member) for member in served]
    assert len(line) == 0


@given(STEPS)
def test_nobody_waits_behind_two_turns_of_another(steps: list[str | None]) -> None:
    """Between one owner's waiting and being served, no other owner has more than one turn for each place before it."""
    line: Line[Member] = Line()
    turns_of_others: dict[str | None, dict[str | None, int]] = {}
    for step in steps:
        if step == "serve":
            member = line.next()
            if member is None:
                continue
            line.served(member.owner)
            turns_of_others.pop(member.owner, None)
            for owner, turns in turns_of_others.items():
                turns[member.owner] = turns.get(member.owner, 0) + 1
                assert turns[member.owner] <= 1, f"{owner} waited for two turns of {member.owner}"
        elif step != "leave":
            line.add(Member(step))
        waiting = {member.owner for member in line}
        turns_of_others = {owner: turns_of_others.get(owner, {}) for owner in waiting}
