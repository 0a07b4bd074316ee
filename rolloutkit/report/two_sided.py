"""The two-sided bound: a pool can work on nothing before its operations are due, nor after them.

What must come before an operation in its own chain is its head, what must come after it its tail.
Operations with a head of at least x and a tail of at least y all fall between x and y before
the end, so that the end is at least x + their service / capacity + y. The best x and y are sought
on a grid of quantiles: a coarser grid gives a smaller bound, never a wrong one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

NUM_QUANTILES = 48  # per side, as in the policy study, section 3


class Operations(NamedTuple):
    """Operations of one pool as parallel arrays, in seconds."""

    heads: NDArray[np.float64]
    services: NDArray[np.float64]
    tails: NDArray[np.float64]


def two_sided_bound(operations: Operations, capacity: int) -> float:
    """Seconds that no schedule can beat; 0 without operations. O(n log n) in the operations."""
    if not len(operations.services):
        return 0.0
    heads, tails = _grid(operations.heads), _grid(operations.tails)
    work = np.zeros((len(heads), len(tails)))
    rows = np.searchsorted(heads, operations.heads, side="right") - 1
    columns = np.searchsorted(tails, operations.tails, side="right") - 1
    np.add.at(work, (rows, columns), operations.services)
    work = work[::-1, ::-1].cumsum(axis=0).cumsum(axis=1)[::-1, ::-1]  # of those beyond x and y
    bounds = heads[:, None] + work / capacity + tails[None, :]
    return float(np.max(bounds, where=work > 0, initial=0.0))


def _grid(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Quantiles from the least to the greatest, rising; the least is included exactly."""
    return np.unique(np.append(np.quantile(values, np.linspace(0, 1, NUM_QUANTILES)), values.min()))
