"""The incremental estimator against the formula of policy.md, section 2.1, written out in full."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolloutkit.estimate import Population, TaskHistory
from rolloutkit.estimate.estimator import FIRST_FIT, WorkEstimator
from rolloutkit.estimate.lognormal import LogNormalGrid, log_upper_tail
from rolloutkit.types import SampleId


class Reference:
    """`P(mu) ~ prior(mu) prod f(X_j | mu) prod S(w_j | mu)`; `E = sum P(mu) E[X - w | X > w]`."""

    def __init__(self, population, past):
        self.within = math.sqrt(population.sigma**2 / 2)
        self.bin = math.exp(population.mu) / 60
        self.means = [population.mu + self.within * 3 * (i - 15) / 15 for i in range(31)]
        self.prior = [self.normal(mu, population.mu, self.within) for mu in self.means]
        if past is not None:
            deviation = self.within / math.sqrt(past.count)
            self.prior = [
                p * self.normal(mu, past.mean_ln, deviation)
                for p, mu in zip(self.prior, self.means, strict=True)
            ]

    def expected(self, work, finished, lower_bounds):
        posterior = np.array(self.prior)
        for total in finished:
            posterior = posterior * [
                self.normal(math.log(total), mu, self.within) for mu in self.means
            ]
            posterior /= posterior.max()
        for bound in lower_bounds:
            posterior = posterior * [self.survival(self.binned(bound), mu) for mu in self.means]
            posterior /= posterior.max()
        rest = [self.rest(self.binned(work), mu) for mu in self.means]
        return float(posterior @ rest / posterior.sum())

    def binned(self, work):
        return math.floor(work / self.bin + 0.5) * self.bin

    def survival(self, work, mu):
        return 1.0 if work == 0 else upper((math.log(work) - mu) / self.within)

    def rest(self, work, mu):
        mean = math.exp(mu + self.within**2 / 2)
        if work == 0:
            return mean
        z = (math.log(work) - mu) / self.within
        return mean * upper(z - self.within) / upper(z) - work

    @staticmethod
    def normal(x, mean, deviation):
        return math.exp(-(((x - mean) / deviation) ** 2) / 2)


def upper(z):
    return 0.5 * math.erfc(z / math.sqrt(2))


POPULATIONS = st.builds(Population, st.floats(0, 8), st.floats(0.3, 1.5))
PASTS = st.none() | st.builds(
    TaskHistory, mean_ln=st.floats(0, 8), count=st.sampled_from([1.0, 4.0, 8.0, 16.0])
)
STEPS = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.sampled_from(["turn", "turn", "turn", "finish", "break", "restart"]),
        st.floats(0.01, 2),  # medians of work
    ),
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(population=POPULATIONS, past=PASTS, steps=STEPS)
def test_estimates_equal_the_formula_after_every_step(  # noqa: C901 - the model, step by step
    population, past, steps
):
    past = past and TaskHistory(
        mean_ln=population.mu + (past.mean_ln - 4) * population.sigma / 4, count=past.count
    )
    estimator = WorkEstimator(population, {} if past is None else {"t": past})
    reference = Reference(population, past)
    works, finished, broken, expected = {}, [], [], {}
    for index in range(5):
        estimator.admitted(SampleId("t", index))
        works[index] = 0.0
        expected[index] = reference.expected(0.0, [], [])

    for index, what, medians in steps:
        if index not in works:
            continue
        sample_id = SampleId("t", index)
        if what == "turn":
            works[index] += medians * math.exp(population.mu)
            estimator.turn_ended(sample_id, medians * math.exp(population.mu))
            refreshed = [index]
        elif what == "restart":
            works[index] = 0.0
            estimator.restarted(sample_id)
            refreshed = [index]
        else:
            total = works.pop(index)
            if what == "finish" and total > 0:
                finished.append(total)
                changed = estimator.ended(sample_id)
                assert set(changed) == {SampleId("t", other) for other in works}
                refreshed = list(works)
            else:
                broken.append(total)
                assert not list(estimator.ended(sample_id, is_finished=False))
                refreshed = []
        for other in refreshed:
            expected[other] = reference.expected(works[other], finished, [*works.values(), *broken])
        for other in works:
            estimate = estimator.remaining(SampleId("t", other))
            assert estimate == pytest.approx(expected[other], rel=1e-6), (other, what)


def test_a_task_that_was_long_before_is_expected_to_be_long():
    population = Population(5.0, 1.0)
    tasks = {"long": TaskHistory(mean_ln=6.5, count=8), "short": TaskHistory(mean_ln=4.0, count=8)}
    estimator = WorkEstimator(population, tasks)

    assert estimator.total("long") > estimator.total("new") > estimator.total("short")


def test_a_long_sibling_raises_what_the_others_are_expected_to_need():
    estimator = WorkEstimator(Population(5.0, 1.0))
    for index in range(3):
        estimator.admitted(SampleId("t", index))
    before = estimator.remaining(SampleId("t", 1))

    estimator.turn_ended(SampleId("t", 0), 2_000.0)
    while_running = estimator.total("t")
    changed = estimator.ended(SampleId("t", 0))

    assert set(changed) == {SampleId("t", 1), SampleId("t", 2)}
    assert while_running > before
    assert estimator.remaining(SampleId("t", 1)) > before


def test_without_a_population_nothing_is_estimated_until_samples_have_ended():
    estimator = WorkEstimator()
    ids = [SampleId(f"t{index % 4}", index) for index in range(FIRST_FIT + 8)]
    for sample_id in ids:
        estimator.admitted(sample_id)
        estimator.turn_ended(sample_id, 10.0 * (1 + sample_id.sample_index % 4))
    assert not estimator.is_informed
    assert estimator.remaining(ids[-1]) == 0

    changed = [list(estimator.ended(sample_id)) for sample_id in ids[:FIRST_FIT]][-1]

    assert estimator.is_informed
    assert set(changed) == set(ids[FIRST_FIT:])
    assert all(estimator.remaining(sample_id) > 0 for sample_id in changed)


def test_a_task_that_is_over_is_forgotten():
    estimator = WorkEstimator(Population(5.0, 1.0))
    fresh = estimator.total("t")
    estimator.admitted(SampleId("t", 0))
    estimator.turn_ended(SampleId("t", 0), 2_000.0)
    estimator.ended(SampleId("t", 0))
    assert estimator.total("t") > fresh

    estimator.forget("t")

    assert estimator.total("t") == fresh
    assert estimator.remaining(SampleId("t", 0)) == 0


@pytest.mark.parametrize("z", [-30.0, -3.0, 0.0, 3.0, 24.999, 25.001, 37.0])
def test_the_log_tail_is_exact_on_both_sides_of_its_switch(z):
    assert log_upper_tail(z) == pytest.approx(math.log(upper(z)), rel=1e-8, abs=1e-300)


def test_a_sample_far_beyond_what_was_expected_still_has_a_finite_estimate():
    grid = LogNormalGrid(Population(0.0, 0.05))

    column = grid.column(1e6)

    assert np.isfinite(column.log_survival).all()
    assert np.isfinite(column.moments).all()
    assert (column.moments >= 0).all()
