"""Lengths are fitted without the bias of looking only at what has ended."""

import math
import random

import pytest

from rolloutkit.estimate.fit import fit_population

RNG = random.Random(5)
WORKS = [math.exp(RNG.gauss(5.0, 1.2)) for _ in range(4_000)]


def test_with_everything_ended_it_is_mean_and_deviation():
    fitted = fit_population(WORKS)

    assert fitted is not None
    assert fitted.mu == pytest.approx(5.0, abs=0.06)
    assert fitted.sigma == pytest.approx(1.2, abs=0.05)


@pytest.mark.parametrize("share_running", [0.3, 0.6, 0.8])
def test_those_that_still_run_count_as_at_least_what_they_did(share_running):
    limit = sorted(WORKS)[round(len(WORKS) * (1 - share_running))]
    finished = [work for work in WORKS if work < limit]

    fitted = fit_population(finished, [limit] * (len(WORKS) - len(finished)))

    assert fitted is not None
    assert fitted.mu == pytest.approx(5.0, abs=0.1)
    assert fitted.sigma == pytest.approx(1.2, abs=0.1)


def test_without_a_finished_sample_there_is_no_fit():
    assert fit_population([], [1.0, 2.0]) is None


def test_equal_lengths_keep_a_spread():
    fitted = fit_population([10.0] * 8)

    assert fitted is not None
    assert fitted.sigma > 0
