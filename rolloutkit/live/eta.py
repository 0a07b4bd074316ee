"""How long a batch still takes, its tail included.

The estimate rests on the durations of finished samples, D (from admission to end):

- a sample that has lived for `age` is expected to go on for the mean of `d - age` over the d in D
  that are longer; one that outlived all of D, for another half of its age (long ones tend to be
  much longer);
- the work left is the sum of these, and the mean of D for each sample in the queue; at the present
  concurrency it takes work / alive;
- the batch cannot end before its last sample does: not before the longest expected residual of a
  living sample, and, while there is a queue, not before the queue has drained and a long sample
  (the 90th percentile of D) has run after it.

The largest of these is the estimate. It is biased towards too long while samples share an engine,
since those that are left run faster as others end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

_LONG = 0.9  # percentile of a long sample
_MIN_FINISHED = 3  # before so many ended nothing is said


def seconds_left(
    durations: Sequence[float], ages: Sequence[float], num_queued: int
) -> float | None:
    """The estimate, or None while too little is known. `durations` must be sorted.

    O((durations + ages) log durations).
    """
    if len(durations) < _MIN_FINISHED or not (ages or num_queued):
        return None
    from_end = [0.0, *accumulate(reversed(durations))]  # sums of the k longest
    residuals = [_residual(durations, from_end, age) for age in ages]
    mean = from_end[-1] / len(durations)
    concurrency = max(len(ages), 1)
    estimate = max((sum(residuals) + num_queued * mean) / concurrency, *residuals, 0.0)
    if num_queued:
        long = durations[int(_LONG * (len(durations) - 1))]
        estimate = max(estimate, num_queued * mean / concurrency + long)
    return estimate


def _residual(durations: Sequence[float], from_end: Sequence[float], age: float) -> float:
    num_longer = len(durations) - bisect_right(durations, age)
    if num_longer == 0:
        return age / 2
    return from_end[num_longer] / num_longer - age
