"""The way of each token through the model follows from the prompt alone, whatever was cached."""

from hypothesis import given
from hypothesis import strategies as some

from pocketserver.engines.llama.reading import (
    LEAST_BATCH,
    LEAST_STRETCH,
    ReadingPlan,
    batches,
    is_marked,
    token_of,
    whole_batch,
)

END, START, ASSISTANT, LINE = 2, 1, 520, 198
OPENING = [END, LINE, START, ASSISTANT, LINE]
PLAN = ReadingPlan(blas=True, opening=OPENING, end_tokens={END})
LONG = [1000 + number for number in range(LEAST_STRETCH)]
SHORT = [2000 + number for number in range(10)]
ANSWER = [3000 + number for number in range(200)]


def marks(prompt: list[int]) -> list[bool]:
    return [is_marked(token) for token in PLAN.marked(prompt)]


def test_long_questions_are_marked_and_answers_are_not() -> None:
    prompt = [*LONG, *OPENING, *ANSWER, END, *LONG, *OPENING]
    question = len(LONG) + len(OPENING)
    assert marks(prompt) == [True] * question + [False] * len(ANSWER) + [True] * (question + 1)


def test_short_questions_are_read_as_answers_are() -> None:
    assert not any(marks([*SHORT, *OPENING, *ANSWER, END, *SHORT, *OPENING]))


def test_an_answer_that_becomes_history_leaves_the_marks_before_it_as_they_were() -> None:
    first = [*LONG, *OPENING]
    later = [*first, *ANSWER, END, *SHORT, *OPENING]
    assert PLAN.marked(later)[: len(first)] == PLAN.marked(first)


def test_marks_change_no_token() -> None:
    prompt = [*LONG, *OPENING, *ANSWER]
    assert [token_of(token) for token in PLAN.marked(prompt)] == prompt


def test_nothing_is_marked_without_blas_or_where_the_template_shows_no_opening() -> None:
    for blas, opening in ((False, OPENING), (True, [])):
        plan = ReadingPlan(blas=blas, opening=opening, end_tokens={END})
        assert plan.marked(LONG) == LONG
    assert all(map(is_marked, ReadingPlan(blas=True, opening=[], end_tokens=()).marked(LONG, raw=True)))


@given(some.lists(some.tuples(some.booleans(), some.integers(LEAST_STRETCH, 700)), max_size=5), some.integers(64, 512))
def test_batches_hold_every_token_once_and_are_large_enough_for_blas(
    stretches: list[tuple[bool, int]], most: int
) -> None:
    tokens = [7 + (is_long << 30) for is_long, length in stretches for _ in range(length)]
    found = list(batches(tokens, most, blas=True))
    assert [token for batch in found for token in batch] == tokens
    for batch in found:
        assert len(batch) <= most
        assert len({is_marked(token) for token in batch}) == 1
        assert (len(batch) >= LEAST_BATCH) == is_marked(batch[0])


def test_without_blas_batches_are_as_large_as_they_may_be() -> None:
    assert [len(batch) for batch in batches(list(range(600)), 256, blas=False)] == [200, 200, 200]


def test_what_is_kept_leaves_a_batch_for_blas() -> None:
    prompt = PLAN.marked([*LONG, *OPENING, *ANSWER])
    question = len(LONG) + len(OPENING)
    assert whole_batch(question - 3, prompt) == question - LEAST_BATCH
    assert whole_batch(10, prompt) == 10
    assert whole_batch(question + 5, prompt) == question + 5
    assert whole_batch(len(prompt), prompt) == len(prompt)
