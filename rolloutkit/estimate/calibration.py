"""How good the estimates were: error of predicted lengths, and whether the tail was foreseen.

A prediction is the one made before a sample ran. Correlation does not tell when an order by
estimate helps; the few long samples that were predicted short decide the makespan (policy.md,
section 6), so the tail is looked at by itself.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from rolloutkit.types import SampleId

TAIL_SHARE = 0.05  # of the samples, by true work
FORESEEN_SHARE = 0.25  # of the groups, by prediction; also what chance would recall
MIN_GROUPS = 4  # fewer have no top quarter
MIN_SAMPLES = 8  # fewer say nothing of an error
MIN_LN_WORK = math.log(1e-6)  # of a sample that did nothing


class Accuracy(NamedTuple):
    """Of predicted logarithms of work: mean error, its deviation, explained share of the variance.

    `explained` is negative where the mean would have been the better guess.
    """

    num_samples: int
    bias: float
    deviation: float
    explained: float


class Calibration:
    """Compares predictions with what came; O(1) a sample."""

    def __init__(self) -> None:
        self._num_samples = 0
        self._errors = self._square_errors = 0.0
        self._mean = self._squares = 0.0  # of the true logarithms (Welford)

    def add(self, predicted_ln: float, work: float) -> None:
        """One finished sample."""
        true_ln = ln_work(work)
        error = predicted_ln - true_ln
        self._num_samples += 1
        self._errors += error
        self._square_errors += error * error
        before = true_ln - self._mean
        self._mean += before / self._num_samples
        self._squares += before * (true_ln - self._mean)

    @property
    def accuracy(self) -> Accuracy | None:
        """None while too few samples finished, or all of them alike."""
        count = self._num_samples
        if count < MIN_SAMPLES or self._squares <= 0:
            return None
        bias = self._errors / count
        variance = max(self._square_errors / count - bias * bias, 0.0)
        explained = 1 - self._square_errors / self._squares
        return Accuracy(count, bias, math.sqrt(variance), explained)


class Recall(msgspec.Struct, frozen=True):
    """Of the longest samples of an epoch, those whose group had been expected to be long."""

    num_foreseen: int
    num_tail: int
    num_samples: int


def tail_recall(
    works: Mapping[SampleId, float], predictions: Mapping[str, float] | None = None
) -> Recall | None:
    """How many of the top 5 % by work came from the top 25 % of the groups by prediction.

    Without predictions each sample is judged by its siblings' mean, itself left out, which is what
    a history would have said of it. None where groups are too few, or have one sample each.
    """
    groups = group_lns(works)
    if predictions is not None:
        groups = {task_id: lns for task_id, lns in groups.items() if task_id in predictions}
        scores = {task_id: predictions[task_id] for task_id in groups}
    else:
        groups = {task_id: lns for task_id, lns in groups.items() if len(lns) > 1}
        scores = {task_id: sum(lns) / len(lns) for task_id, lns in groups.items()}
    if len(groups) < MIN_GROUPS:
        return None
    judged = sorted(
        ((work, sample_id) for sample_id, work in works.items() if sample_id.task_id in groups),
        key=lambda one: (-one[0], one[1]),
    )
    tail = judged[: max(1, round(TAIL_SHARE * len(judged)))]
    ranked = sorted(scores.values())
    num_foreseen = 0
    for work, sample_id in tail:
        score = scores[sample_id.task_id]
        if predictions is None:
            lns = groups[sample_id.task_id]
            score = (sum(lns) - ln_work(work)) / (len(lns) - 1)
        num_foreseen += _is_in_top_quarter(score, scores[sample_id.task_id], ranked)
    return Recall(num_foreseen, len(tail), len(judged))


def ln_work(work: float) -> float:
    """The logarithm of a sample's work, finite for one that did nothing."""
    return math.log(work) if work > 0 else MIN_LN_WORK


def group_lns(works: Mapping[SampleId, float]) -> dict[str, list[float]]:
    """Logarithms of work by task."""
    groups: dict[str, list[float]] = {}
    for sample_id, work in works.items():
        groups.setdefault(sample_id.task_id, []).append(ln_work(work))
    return groups


def _is_in_top_quarter(score: float, own: float, ranked: Sequence[float]) -> bool:
    """Groups of equal score share the places that they would fill: no prediction, no recall.

    `ranked` are the scores of all groups, sorted; `own` is the one of the sample's own group there.
    """
    num_below_or_equal = bisect_right(ranked, score)
    above = len(ranked) - num_below_or_equal - (own > score)
    equal = num_below_or_equal - bisect_left(ranked, score) - (own == score)
    return above + equal < FORESEEN_SHARE * len(ranked)
