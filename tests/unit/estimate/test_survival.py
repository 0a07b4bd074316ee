"""Kaplan-Meier against its definition, and what it says of lengths that grow or wear out."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutkit.estimate import SurvivalCurve, residual_grows

works = st.lists(st.integers(1, 12).map(float), min_size=1, max_size=12)


def by_definition(finished, running, at):
    share = 1.0
    for time in sorted(set(finished)):
        if time <= at:
            at_risk = sum(work >= time for work in [*finished, *running])
            share *= 1 - finished.count(time) / at_risk
    return share


@given(finished=works, running=st.lists(st.integers(1, 12).map(float), max_size=12))
def test_it_is_the_product_over_the_endings(finished, running):
    curve = SurvivalCurve(finished, running)

    for at in (0.0, 0.5, *range(1, int(max(finished)) + 1)):
        assert curve.share_beyond(at) == pytest.approx(by_definition(finished, running, at))


@given(finished=works, at=st.integers(0, 13))
def test_without_running_samples_the_rest_is_the_mean_excess(finished, at):
    curve = SurvivalCurve(finished)
    excess = [work - at for work in finished if work > at]

    expected = sum(excess) / len(excess) if excess else sum(finished) / len(finished)
    assert curve.residual(at) == pytest.approx(expected)


def test_quantiles_end_where_nothing_was_seen_yet():
    curve = SurvivalCurve([1.0, 2.0], [3.0, 3.0, 3.0, 3.0])

    assert curve.quantile(0.3) == 2.0
    assert curve.quantile(0.5) is None


@pytest.mark.parametrize(("sigma", "grows"), [(0.3, False), (0.67, False), (1.3, True)])
def test_residual_work_grows_with_progress_for_heavy_tails_only(sigma, grows):
    rng = random.Random(3)
    finished = [math.exp(rng.gauss(0, sigma)) for _ in range(400)]

    assert residual_grows(SurvivalCurve(finished)) is grows


@pytest.mark.parametrize(
    "running",
    [
        [1.0] * 9,  # nobody got further than the one that ended
        [0.1] * 9,  # only that one did, and it would decide alone
    ],
)
def test_with_few_endings_nothing_is_said(running):
    assert residual_grows(SurvivalCurve([1.0], running)) is None


def test_nothing_ended_is_refused():
    with pytest.raises(ValueError, match="needs a finished sample"):
        SurvivalCurve([], [1.0])
