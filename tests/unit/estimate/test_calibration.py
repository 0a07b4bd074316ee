"""What predictions were worth: their error, and whether the long tail was foreseen."""

import math
import random

import pytest

from rolloutkit.estimate import Calibration, Recall, tail_recall
from rolloutkit.types import SampleId


def test_a_prediction_that_knows_half_of_the_variance_explains_half():
    rng = random.Random(1)
    calibration = Calibration()
    for _ in range(20_000):
        known = rng.gauss(0, 1)
        calibration.add(known, math.exp(known + rng.gauss(0, 1)))

    accuracy = calibration.accuracy

    assert accuracy is not None
    assert accuracy.explained == pytest.approx(0.5, abs=0.02)
    assert accuracy.bias == pytest.approx(0, abs=0.03)
    assert accuracy.deviation == pytest.approx(1, abs=0.03)


def test_few_samples_or_equal_ones_have_no_accuracy():
    few, equal = Calibration(), Calibration()
    for index in range(3):
        few.add(0.0, 1.0 + index)
    for _ in range(20):
        equal.add(0.0, 1.0)

    assert few.accuracy is None
    assert equal.accuracy is None


def works_of(group_means, *, spread=0.0, num_samples=8, seed=0):
    rng = random.Random(seed)
    return {
        SampleId(f"t{group}", index): math.exp(rng.gauss(mean, spread))
        for group, mean in enumerate(group_means)
        for index in range(num_samples)
    }


def test_long_groups_that_were_predicted_long_are_recalled():
    works = works_of([1.0] * 15 + [5.0], num_samples=8)
    predictions = {f"t{group}": float(group == 15) for group in range(16)}

    assert tail_recall(works, predictions) == Recall(6, 6, 128)


def test_long_samples_that_were_predicted_short_are_missed():
    works = works_of([1.0] * 15 + [5.0], num_samples=8)
    predictions = {f"t{group}": float(group < 8) for group in range(16)}

    assert tail_recall(works, predictions) == Recall(0, 6, 128)


def test_a_prediction_that_tells_nothing_apart_recalls_nothing():
    works = works_of([1.0] * 15 + [5.0])

    assert tail_recall(works, dict.fromkeys((f"t{group}" for group in range(16)), 1.0)) == Recall(
        0, 6, 128
    )


def test_without_predictions_siblings_speak_for_each_other():
    alike = works_of([float(group) for group in range(16)], spread=0.01)
    lone = {**works_of([1.0] * 16, spread=0.01), SampleId("t3", 0): 1_000.0}

    recalled, missed = tail_recall(alike), tail_recall(lone)

    assert recalled == Recall(6, 6, 128)
    assert missed is not None
    assert missed.num_foreseen < missed.num_tail


def test_chance_recalls_a_quarter():
    foreseen = tail = 0
    for seed in range(40):
        recall = tail_recall(works_of([1.0] * 32, spread=1.0, seed=seed))
        assert recall is not None
        foreseen += recall.num_foreseen
        tail += recall.num_tail

    assert foreseen / tail == pytest.approx(0.25, abs=0.08)


@pytest.mark.parametrize("works", [{}, works_of([1.0] * 3), works_of([1.0] * 20, num_samples=1)])
def test_too_few_groups_or_lone_samples_have_no_recall(works):
    assert tail_recall(works) is None
