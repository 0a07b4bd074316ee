"""The production scheduler reproduces the policy study; `make bench-policy` replays all of it."""

import pytest

from tests.benchmarks.policy.reference import BOUNDS, MAKESPANS
from tests.benchmarks.policy.scenarios import SEEDS, bound, replay


@pytest.mark.parametrize("policy", ["coupled", "fifo", "caas", "clairvoyant"])
def test_uncontended_batches_end_when_the_study_says(policy):
    expected = MAKESPANS["X1 fixed-mini"][policy][2]

    sink = replay("X1 fixed-mini", "102", policy)

    assert sink.makespan_seconds == pytest.approx(expected, rel=0.001)


def test_a_contended_batch_with_parking_ends_about_when_the_study_says():
    expected = MAKESPANS["S3 mini-mem"]["fifo"][0]

    sink = replay("S3 mini-mem", "100", "fifo")

    assert sink.makespan_seconds == pytest.approx(expected, rel=0.01)


def test_the_bounds_are_those_of_the_study():
    bounds = [bound("S3 mini-mem", seed).seconds for seed in SEEDS]

    assert bounds == pytest.approx(BOUNDS["S3 mini-mem"], rel=0.01)


def test_no_policy_beats_the_bound():
    least = bound("S2 mini-bal", "102").seconds

    assert replay("S2 mini-bal", "102", "clairvoyant").makespan_seconds >= least
