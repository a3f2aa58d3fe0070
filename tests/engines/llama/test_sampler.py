"""Drawing tokens: filters keep what they promise, and the same seed draws the same."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketserver.chat import Sampling
from pocketserver.engines.llama.sampler import Sampler, log_probability, most_probable, nucleus

LOGITS = np.log(np.array([0.5, 0.25, 0.15, 0.07, 0.03], dtype=np.float32))


def drawn(sampling: Sampling, logits: np.ndarray = LOGITS, times: int = 400) -> set[int]:
    sampler = Sampler(sampling)
    return {sampler.choose(logits) for _ in range(times)}


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(temperature=0), {0}),
        (Sampling(temperature=1e-30, seed=1), {0}),
        (Sampling(temperature=1, top_p=1, seed=1), {0, 1, 2, 3, 4}),
        (Sampling(temperature=1, top_p=1, top_k=2, seed=1), {0, 1}),
        (Sampling(temperature=1, top_p=0.8, seed=1), {0, 1, 2}),
        (Sampling(temperature=1, top_p=0.0, seed=1), {0}),
        (Sampling(temperature=1, top_p=1, min_p=0.25, seed=1), {0, 1, 2}),
        (Sampling(temperature=2, top_p=1, min_p=1.0, seed=1), {0}),
        (Sampling(temperature=1, top_p=1, top_k=99, seed=1), {0, 1, 2, 3, 4}),
    ],
)
def test_filters_keep_what_they_promise(sampling: Sampling, expected: set[int]) -> None:
    assert drawn(sampling) == expected


def test_typical_sampling_prefers_the_expected_surprise() -> None:
    logits = np.log(np.array([0.02, 0.49, 0.49], dtype=np.float32))
    assert drawn(Sampling(temperature=1, top_p=1, typical_p=0.9, seed=1), logits) == {1, 2}


def test_shares_follow_the_probabilities() -> None:
    sampler = Sampler(Sampling(temperature=1, top_p=1, seed=7))
    counts = np.bincount([sampler.choose(LOGITS) for _ in range(8000)], minlength=5) / 8000
    assert np.abs(counts - np.exp(LOGITS)).max() < 0.03


def test_a_seed_draws_the_same_and_none_draws_differently() -> None:
    flat = np.zeros(1000, dtype=np.float32)

    def series(seed: int | None) -> list[int]:
        sampler = Sampler(Sampling(temperature=1, top_p=1, seed=seed))
        return [sampler.choose(flat) for _ in range(20)]

    assert series(5) == series(5)
    assert series(-5) == series(-5)
    assert series(None) != series(None)


def test_masked_tokens_are_never_drawn() -> None:
    masked = np.full(5, -np.inf, dtype=np.float32)
    masked[3] = -40.0
    assert drawn(Sampling(temperature=2, top_p=1, seed=1), masked) == {3}


def test_penalties_and_bias_leave_the_logits_as_they_are() -> None:
    before = LOGITS.copy()
    sampling = Sampling(temperature=0, presence_penalty=2, frequency_penalty=1, repeat_penalty=1.5)
    sampler = Sampler(sampling, prompt=[0, 0, 1])
    assert sampler.choose(LOGITS) == 2
    assert Sampler(Sampling(temperature=0, logit_bias=((4, 100.0), (99, 5.0)))).choose(LOGITS) == 4
    assert np.array_equal(LOGITS, before)


def test_dry_breaks_a_repeated_passage() -> None:
    sampling = Sampling(temperature=0, dry_multiplier=10, dry_allowed_length=2)
    assert Sampler(sampling, prompt=[3, 4, 0, 2, 3, 4]).choose(LOGITS) == 1  # 0 would lengthen "3 4"
    assert Sampler(sampling, prompt=[4, 0, 2, 3, 4]).choose(LOGITS) == 0  # a copy of one token is allowed


def test_a_penalty_beyond_all_numbers_is_only_a_large_one() -> None:
    sampling = Sampling(temperature=0, dry_multiplier=100, dry_base=10)
    assert Sampler(sampling, prompt=[0, 1] * 60).choose(LOGITS) == 1


@given(st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=600), st.floats(0, 1))
def test_the_nucleus_is_the_smallest_set_that_reaches_its_share(values: list[float], top_p: float) -> None:
    weights = np.exp(np.array(values))
    probabilities = weights / weights.sum()
    kept = nucleus(probabilities, top_p)
    assert len(kept) >= 1
    assert probabilities[kept].sum() >= min(top_p, 1.0) - 1e-9
    assert len(kept) == 1 or probabilities[kept[:-1]].sum() < top_p + 1e-9
    assert probabilities[kept].min() >= np.delete(probabilities, kept).max(initial=0.0)


def test_a_flat_distribution_is_cut_as_exactly_as_a_steep_one() -> None:
    flat = np.linspace(0.0, 1.0, 50_000, dtype=np.float32)
    probabilities = np.exp(flat) / np.exp(flat).sum()
    kept = nucleus(probabilities, 0.5)
    assert np.array_equal(np.sort(kept), np.arange(50_000 - len(kept), 50_000))
    assert abs(probabilities[kept].sum() - 0.5) < 1e-4


def test_logits_without_a_finite_number_are_named_by_their_first_token() -> None:
    sampler = Sampler(Sampling(temperature=1, seed=1))
    assert sampler.choose(np.full(5, -np.inf, dtype=np.float32)) == 0
    assert sampler.choose(np.full(5, np.nan, dtype=np.float32)) == 0


def test_scores_are_log_probabilities() -> None:
    assert np.allclose(np.exp(log_probability(LOGITS, [0, 4])), [0.5, 0.03], atol=1e-6)
    assert most_probable(LOGITS, 3) == [0, 1, 2]
    assert most_probable(LOGITS, 0) == []
    masked = np.array([-np.inf, 0.0], dtype=np.float32)
    assert np.isfinite(log_probability(masked, [0, 1])).all()
