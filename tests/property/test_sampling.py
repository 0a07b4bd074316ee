"""Drawn batches keep the recording's distribution of lengths, and groups are as alike as asked."""

import random
from statistics import fmean, pvariance

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolloutkit.estimate import ReferenceRates
from rolloutkit.record.lives import Act, Attempt, Life
from rolloutkit.sim.sampling import draw_batch
from rolloutkit.types import SampleId

RATES = ReferenceRates()


def lives_of(works):
    return [
        Life(SampleId(f"task-{index}", 0), "", (Attempt(((Act("tool", work),),)),))
        for index, work in enumerate(works)
    ]


def draw(lives, seed=0, **options):
    how = {"num_groups": 4, "group_size": 8, "icc": 0.64, "num_earlier": 0, **options}
    return draw_batch(lives, rates=RATES, rng=random.Random(seed), **how)


@settings(max_examples=50, deadline=None)
@given(
    works=st.lists(st.floats(0.001, 1e6), min_size=1, max_size=20),
    icc=st.floats(0, 1),
    seed=st.integers(0, 1000),
)
def test_every_sample_lives_a_recorded_life_and_the_same_seed_draws_the_same(works, icc, seed):
    lives = lives_of(works)

    batch = draw(lives, seed, icc=icc)

    assert len(batch.lives) == 32
    assert set(batch.lives.values()) <= set(lives)
    assert batch == draw(lives, seed, icc=icc)


def test_earlier_rollouts_do_not_change_the_batch():
    lives = lives_of(range(1, 50))

    with_earlier = draw(lives, num_earlier=8)

    assert with_earlier.lives == draw(lives).lives
    assert len(with_earlier.earlier_works) == 32


@pytest.mark.parametrize("icc", [0.0, 0.3, 0.64, 1.0])
def test_groups_share_the_asked_part_of_the_variance_of_ranks(icc):
    lives = lives_of(range(1, 201))
    batch = draw(lives, num_groups=2000, icc=icc)
    ranks = [life.attempts[0].acts[0].seconds for life in batch.lives.values()]
    groups = [ranks[start : start + 8] for start in range(0, len(ranks), 8)]

    within = fmean(pvariance(group) * 8 / 7 for group in groups)

    assert 1 - within / pvariance(ranks) == pytest.approx(icc, abs=0.06)
    assert fmean(ranks) == pytest.approx(100.5, rel=0.05)
