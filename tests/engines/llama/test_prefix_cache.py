"""Which state is chosen, what is parked, and what is given up: the prefix cache's decisions over a context of numbers."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pocketserver.engines.llama.cache_disk import SLACK_TOKENS, DiskCache, State
from pocketserver.engines.llama.prefix_cache import PrefixCache

BYTES_EACH = 10
SYSTEM = list(range(9000, 9100))


class NumberContext:
    """A context whose state spells its tokens, so that a wrong restore shows. Copies and their bytes are counted."""

    def __init__(self, *, can_be_cut: bool = True, takes_states: bool = True) -> None:
        self.tokens: list[int] = []
        self.can_be_cut = can_be_cut
        self.takes_states = takes_states
        self.saves = 0
        self.saved_bytes = 0

    def reuse(self, prompt: Sequence[int]) -> int:
        pairs = zip(self.tokens, prompt[:-1], strict=False)
        same = next((index for index, (left, right) in enumerate(pairs) if left != right), None)
        kept = min(len(self.tokens), len(prompt) - 1) if same is None else same
        if kept < len(self.tokens) and not self.can_be_cut:
            kept = 0
        self.tokens = self.tokens[:kept]
        return kept

    def state_bytes(self) -> int:
        return len(self.tokens) * BYTES_EACH

    def save(self) -> State | None:
        self.saves += 1
        self.saved_bytes += self.state_bytes()
        written = np.zeros((len(self.tokens), BYTES_EACH), np.uint8)
        written[:, :8] = np.asarray(self.tokens, "<i8").view(np.uint8).reshape(-1, 8)
        return written.reshape(-1)

    def restore(self, tokens: Sequence[int], state: State) -> bool:
        self.tokens = []
        if self.takes_states:
            self.tokens = state.reshape(-1, BYTES_EACH)[:, :8].copy().view("<i8").reshape(-1).tolist()
            assert self.tokens == list(tokens)
        return self.takes_states

    def answer(self, cache: PrefixCache, prompt: Sequence[int], length: int = 20) -> int:
        """Read a prompt and write an answer; how many tokens came from the cache."""
        cached = cache.prepare(prompt)
        assert self.tokens == list(prompt[:cached])
        assert cached < len(prompt)
        answer = [max(prompt) + 1 + number for number in range(length)]
        self.tokens = [*prompt, *answer]
        cache.answered()
        return cached


def talk(number: int, length: int = 200) -> list[int]:
    return list(range(number * 1000, number * 1000 + length))


def test_a_conversation_comes_back_after_another_one() -> None:
    live = NumberContext()
    cache = PrefixCache(live, 1_000_000)
    assert live.answer(cache, talk(1)) == 0
    assert live.answer(cache, talk(2)) == 0
    assert live.answer(cache, talk(1)) == 199
    assert live.answer(cache, talk(2)) == 199


def test_the_next_turn_of_the_live_conversation_copies_nothing() -> None:
    live = NumberContext()
    cache = PrefixCache(live, 1_000_000)
    live.answer(cache, talk(1))
    for _ in range(5):
        held = len(live.tokens)
        assert live.answer(cache, [*live.tokens, *talk(7, 30)]) == held
    assert live.saves == 0


def test_a_shared_beginning_is_found_in_a_parked_conversation() -> None:
    live = NumberContext()
    cache = PrefixCache(live, 1_000_000)
    live.answer(cache, SYSTEM + talk(1))
    live.answer(cache, talk(2))
    assert live.answer(cache, SYSTEM + talk(3)) == len(SYSTEM)
    assert live.answer(cache, SYSTEM + talk(1)) == len(SYSTEM) + 199  # it stayed parked, whole


def test_the_longest_shared_beginning_wins() -> None:
    live = NumberContext()
    cache = PrefixCache(live, 1_000_000)
    live.answer(cache, SYSTEM + talk(1))
    live.answer(cache, SYSTEM + talk(1)[:100] + talk(2))
    live.answer(cache, talk(3))
    assert live.answer(cache, SYSTEM + talk(1)[:150] + talk(4)) == len(SYSTEM) + 150


def test_a_fork_of_the_live_conversation_keeps_both() -> None:
    live = NumberContext()
    cache = PrefixCache(live, 1_000_000)
    live.answer(cache, SYSTEM + talk(1))
    assert live.answer(cache, SYSTEM + talk(2)) == len(SYSTEM)
    assert live.answer(cache, SYSTEM + talk(1)) == len(SYSTEM) + 199


def test_memory_is_bounded_and_the_oldest_goes_first() -> None:
    live = NumberContext()
    cache = PrefixCache(live, 3 * 220 * BYTES_EACH)
    for number in range(1, 7):
        live.answer(cache, talk(number))
        assert cache.parked_bytes <= 3 * 220 * BYTES_EACH
    assert live.answer(cache, talk(5)) == 199
    assert live.answer(cache, talk(1)) == 0


def test_a_state_over_the_budget_is_never_copied() -> None:
    live = NumberContext()
    cache = PrefixCache(live, 100)
    for number in (1, 2, 1):
        assert live.answer(cache, talk(number)) == 0
    assert live.saves == 0


def test_a_state_that_is_not_taken_leaves_an_empty_context_and_is_forgotten() -> None:
    live = NumberContext()
    cache = PrefixCache(live, 1_000_000)
    live.answer(cache, talk(1))
    live.answer(cache, talk(2))
    live.takes_states = False
    assert live.answer(cache, talk(1)) == 0
    live.takes_states = True
    assert live.answer(cache, talk(2)) == 199


def test_a_memory_that_cannot_be_cut_takes_only_states_that_the_prompt_continues() -> None:
    live = NumberContext(can_be_cut=False)
    cache = PrefixCache(live, 1_000_000)
    live.answer(cache, talk(1))
    first = list(live.tokens)
    live.answer(cache, talk(2))
    assert live.answer(cache, [*first, *talk(5, 40)]) == len(first)
    assert live.answer(cache, first[:-1]) == 0
    assert live.answer(cache, [*first[:100], *talk(6, 100)]) == 0


def test_a_rest_brings_the_conversation_to_the_disk_once(tmp_path: Path) -> None:
    live, disk = NumberContext(), DiskCache(tmp_path, {}, "tiny", 1_000_000)
    cache = PrefixCache(live, 0, disk)
    live.answer(cache, talk(1))
    cache.checkpoint()
    cache.checkpoint()
    assert live.saves == 1
    cache.close(30)
    assert live.saves == 1
    other = NumberContext()
    again = PrefixCache(other, 0, DiskCache(tmp_path, {}, "tiny", 1_000_000))
    assert other.answer(again, talk(1)) == 199


def grown(live: NumberContext, cache: PrefixCache, turns: int) -> list[int]:
    """A conversation of so many turns with a rest after each."""
    for turn in range(turns):
        live.answer(cache, [*live.tokens, *talk(100 + turn, 40)])
        cache.checkpoint()
    return list(live.tokens)


def test_a_growing_conversation_is_written_a_few_times_and_not_at_each_turn(tmp_path: Path) -> None:
    live, disk = NumberContext(), DiskCache(tmp_path, {}, "tiny", 1_000_000)
    whole = grown(live, PrefixCache(live, 0, disk), 60)
    disk.flush(30)
    assert live.saved_bytes <= 8 * len(whole) * BYTES_EACH  # once at each turn would be 30 times
    assert len(disk.states()) == 1  # the older states of the conversation have made room


def test_after_a_crash_little_of_a_conversation_is_read_anew_and_after_a_clean_end_nothing(tmp_path: Path) -> None:
    live, disk = NumberContext(), DiskCache(tmp_path, {}, "tiny", 1_000_000)
    cache = PrefixCache(live, 0, disk)
    whole = grown(live, cache, 60)
    disk.flush(30)

    def cached_after_a_restart() -> int:
        other = NumberContext()
        return other.answer(PrefixCache(other, 0, DiskCache(tmp_path, {}, "tiny", 1_000_000)), whole)

    assert len(whole) * 7 / 8 <= cached_after_a_restart() < len(whole) - 40
    cache.close(30)
    assert cached_after_a_restart() == len(whole) - 1


def test_conversations_that_alternate_are_not_written_at_each_turn(tmp_path: Path) -> None:
    live, disk = NumberContext(), DiskCache(tmp_path, {}, "tiny", 1_000_000)
    cache = PrefixCache(live, 1_000_000, disk)
    held: dict[int, list[int]] = {1: talk(1, 400), 2: talk(2, 400)}
    written = set[str]()
    for turn in range(12):
        for number, tokens in list(held.items()):
            live.answer(cache, tokens, 3)
            held[number] = [*live.tokens, *talk(50 + turn, 3)]
            disk.flush(30)
            written |= {state.file.path.name for state in disk.states()}
    assert len(written) <= 4
    cache.close(30)
    for tokens in held.values():
        other = NumberContext()
        again = PrefixCache(other, 0, DiskCache(tmp_path, {}, "tiny", 1_000_000))
        assert other.answer(again, tokens) >= len(tokens) - 4 - SLACK_TOKENS


def test_a_conversation_that_was_replaced_before_a_rest_reaches_the_disk_too(tmp_path: Path) -> None:
    live = NumberContext()
    cache = PrefixCache(live, 1_000_000, DiskCache(tmp_path, {}, "tiny", 1_000_000))
    live.answer(cache, talk(1))
    live.answer(cache, talk(2))
    cache.close(30)
    other = NumberContext()
    again = PrefixCache(other, 0, DiskCache(tmp_path, {}, "tiny", 1_000_000))
    assert other.answer(again, talk(1)) == 199
    assert other.answer(again, talk(2)) == 199


def test_a_damaged_state_on_disk_gives_way_to_the_next_best(tmp_path: Path) -> None:
    live, disk = NumberContext(), DiskCache(tmp_path, {}, "tiny", 1_000_000)
    cache = PrefixCache(live, 0, disk)
    for conversation in (SYSTEM + talk(1), SYSTEM + talk(1)[:100] + talk(2), talk(3)):
        live.answer(cache, conversation)
        cache.checkpoint()
        disk.flush(30)
    longest = next(state for state in disk.states() if state.tokens.tolist()[:300] == SYSTEM + talk(1))
    whole = bytearray(longest.file.path.read_bytes())
    whole[-1] ^= 1
    longest.file.path.write_bytes(whole)
    assert live.answer(cache, SYSTEM + talk(1)) == len(SYSTEM) + 100
