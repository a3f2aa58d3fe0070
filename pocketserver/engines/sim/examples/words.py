"""Finds a text in a regular language."""

import random
from collections import deque

from pocketserver.engines.sim.examples.characters import BEGIN, END, Ranges, pick
from pocketserver.engines.sim.examples.effort import TooComplicated
from pocketserver.engines.sim.examples.regex import Algebra, Node

MAX_STATES = 6_000
_SOFT_STATES = 300


def word(algebra: Algebra, language: Node, chosen: random.Random, max_states: int = MAX_STATES) -> str | None:
    """A shortest text of a framed language, its characters by chance; None when the language is empty.

    Raises TooComplicated when more than `max_states` expressions had to be looked at.
    """
    start = algebra.derive(language, BEGIN)
    came_from: dict[Node, tuple[Node, Ranges] | None] = {start: None}
    waiting = deque([start])
    while waiting:
        state = waiting.popleft()
        if algebra.derive(state, END).nullable:
            return _spelled(came_from, state, chosen)
        for rest, ranges in algebra.steps(state).items():
            if rest not in came_from:
                came_from[rest] = (state, ranges)
                waiting.append(rest)
        if len(came_from) > max_states:
            raise TooComplicated
    return None


def fair_word(algebra: Algebra, language: Node, chosen: random.Random) -> str | None:
    """Like `word`, but of some length by chance where the language has such texts."""
    least = chosen.randint(3, 9)
    longer = algebra.both([language, algebra.whole(algebra.any_text(least, least + 8))])
    try:
        found = word(algebra, longer, chosen, _SOFT_STATES)
    except TooComplicated:
        found = None
    return word(algebra, language, chosen) if found is None else found


def _spelled(came_from: dict[Node, tuple[Node, Ranges] | None], state: Node, chosen: random.Random) -> str:
    letters: list[str] = []
    while step := came_from[state]:
        state, ranges = step
        letters.append(pick(ranges, chosen))
    return "".join(reversed(letters))
