"""Kaplan-Meier: how long samples go on, from those that ended and those that still run.

Assumes no shape, so it tells whether long samples really have more left than fresh ones, which is
the one thing that ordering by progress needs (policy.md, section 2.1, `km`).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable


class SurvivalCurve:
    """Share of samples that need more than a given work; finished ones are events, running ones are
    censored at what they have done. Beyond the last event the tail is exponential with the overall
    rate of endings. O(n log n) to make, O(log n) to ask.

    `is_settled` says that at least as many ended as still run: before that the curve's far end
    rests on the few that happened to run ahead.
    """

    def __init__(self, finished: Iterable[float], running: Iterable[float] = ()) -> None:
        events, bounds = sorted(finished), sorted(running)
        if not events:
            raise ValueError("a survival curve needs a finished sample")
        self.is_settled = len(events) >= len(bounds)
        self._tail_mean = (sum(events) + sum(bounds)) / len(events)
        self._times = [0.0, *events]
        self._survival = [survival := 1.0]
        num_censored = 0
        for num_before, work in enumerate(events):
            while num_censored < len(bounds) and bounds[num_censored] < work:
                num_censored += 1
            at_risk = len(events) + len(bounds) - num_before - num_censored
            self._survival.append(survival := survival * (1 - 1 / at_risk))
        self._rest = self._integrate()

    def share_beyond(self, work: float) -> float:
        """Share of samples that need more than `work`."""
        late = work - self._times[-1]
        if late < 0 or not self._tail_mean:
            return self._survival[self._index(work)]
        return self._survival[-1] * math.exp(-late / self._tail_mean)

    def residual(self, work: float) -> float:
        """Expected work that is left to a sample that has done `work`."""
        index = self._index(work)
        if work >= self._times[-1] or not self._survival[index]:
            return self._tail_mean
        return self._rest[index] / self._survival[index] - (work - self._times[index])

    def quantile(self, share: float) -> float | None:
        """The work that `share` of the samples do not exceed; None where nothing was seen yet."""
        index = bisect_left(self._survival, share - 1, key=lambda survival: -survival)
        return self._times[index] if index < len(self._times) else None

    def _index(self, work: float) -> int:
        return bisect_right(self._times, work) - 1

    def _integrate(self) -> list[float]:
        """The area under the curve to the right of each time."""
        rest = [self._survival[-1] * self._tail_mean]
        for index in range(len(self._times) - 1, 0, -1):
            width = self._times[index] - self._times[index - 1]
            rest.append(rest[-1] + self._survival[index - 1] * width)
        return rest[::-1]


def residual_grows(curve: SurvivalCurve) -> bool | None:
    """Whether a sample that has come far has at least as much left as a fresh one, as far as seen.

    Compares the expected rest at the quartiles of length with that at the start. None while fewer
    ended than still run, or less than half of the curve was seen. Log-normal lengths grow from
    about sigma 1 on: agents at a desk do (1.3), software engineering batches do not (0.67).
    """
    if not curve.is_settled:
        return None
    quartiles = [curve.quantile(share) for share in (0.25, 0.5, 0.75)]
    seen = [curve.residual(work) for work in quartiles if work is not None]
    if len(seen) < 2:  # the lower quartile alone says too little
        return None
    return sum(seen) / len(seen) >= curve.residual(0.0)
