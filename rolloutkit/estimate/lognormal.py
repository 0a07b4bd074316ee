"""Log-normal total work on a grid of group means: survival and residual mean, by bins of work.

Arrays run over the grid of `mu`, the mean of the logarithm of a group's work. A column holds what
the grid says of one bin of work; columns are made when a bin is first seen and then shared by all
samples.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rolloutkit.estimate.work import Population

Array = npt.NDArray[np.float64]

NUM_MEANS = 31  # and three deviations to each side: policy.md, section 2.1
NUM_DEVIATIONS = 3.0
BINS_PER_MEDIAN = 60  # the same
MAX_COLUMNS = 16_384  # kept, 1 KiB each; 60 medians of work need 3,600
FAR_TAIL = 25.0  # deviations beyond which erfc nears the smallest float


class Column(NamedTuple):
    """What the grid says of a sample that has done a bin's work and is not finished."""

    log_survival: Array
    moments: Array  # two rows: expected remaining work, and ones, for one product with a posterior


class LogNormalGrid:
    """Totals of group g: `ln X ~ N(mu_g, s_w^2)`, `mu_g ~ N(mu_0, s_b^2)`, with half of the
    population's variance each.
    """

    def __init__(self, population: Population) -> None:
        self.mu, self.sigma = population.mu, population.sigma
        self.within_variance = self.sigma * self.sigma / 2
        self._within = math.sqrt(self.within_variance)
        spread = NUM_DEVIATIONS * self._within
        self.means: Array = np.linspace(self.mu - spread, self.mu + spread, NUM_MEANS)
        self.log_prior: Array = -((self.means - self.mu) ** 2) / (2 * self.within_variance)
        self._bin_width = math.exp(self.mu) / BINS_PER_MEDIAN
        self.column_of_bin = lru_cache(MAX_COLUMNS)(self._column_of_bin)

    def column(self, work: float) -> Column:
        """The column of the bin nearest to `work`."""
        return self.column_of_bin(int(work / self._bin_width + 0.5))

    def log_likelihood(self, num_finished: float, sum_ln: float) -> Array:
        """Of finished samples, up to a constant: for a log-normal their count and the sum of the
        logarithms say everything, so no table is needed. Earlier rollouts enter in the same way.
        """
        means = self.means
        return (means * sum_ln - 0.5 * num_finished * means * means) / self.within_variance

    def _column_of_bin(self, index: int) -> Column:
        moments = np.ones((2, NUM_MEANS))
        if index == 0:
            np.exp(self.means + self.within_variance / 2, out=moments[0])
            return Column(np.zeros(NUM_MEANS), moments)
        work = index * self._bin_width
        log_survival = np.empty(NUM_MEANS)
        for m, mu in enumerate(self.means.tolist()):
            z = (math.log(work) - mu) / self._within
            log_survival[m] = log_s = log_upper_tail(z)
            log_mean = mu + self.within_variance / 2
            beyond = math.exp(log_mean + log_upper_tail(z - self._within) - log_s)
            moments[0, m] = max(beyond - work, 0.0)
        return Column(log_survival, moments)


def log_upper_tail(z: float) -> float:
    """Logarithm of the standard normal's upper tail; finite however far out `z` is."""
    if z < FAR_TAIL:
        return math.log(0.5 * math.erfc(z * _SQRT_HALF))
    square = z * z
    series = 1 - 1 / square + 3 / square**2 - 15 / square**3
    return -square / 2 - math.log(z) - _HALF_LOG_TAU + math.log(series)


_SQRT_HALF = math.sqrt(0.5)
_HALF_LOG_TAU = 0.5 * math.log(math.tau)
