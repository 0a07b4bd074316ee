"""What a run looked like as numbers to plot: how many were at something over time, distributions.

Pure; O(n log n) in the intervals. Figures are rounded, so that equal runs give equal text.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from rolloutkit.report.spans import Intervals, Row, State

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NUM_BINS = 240  # of time: about three pixels each on a laptop
_MAX_BARS = 30
_STEPS = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)  # of a decade: the edges of a logarithmic histogram


class Histogram(msgspec.Struct, frozen=True, kw_only=True):
    """`counts[i]` values lie in [edges[i], edges[i + 1]); values of 0 count in the first bar."""

    edges: list[float]
    counts: list[int]
    median: float | None
    largest: float | None


def mean_open(intervals: Intervals, end: float) -> list[float]:
    """How many intervals were open on average in each of `NUM_BINS` parts of [0, end]."""
    import numpy as np

    return _mean_open(np.frombuffer(intervals.starts), np.frombuffer(intervals.ends), end)


def mean_in_state(rows: Sequence[Row], end: float) -> list[list[float]]:
    """How many samples were in each state on average, by state and part of [0, end]."""
    import numpy as np

    if not rows:
        return [[0.0] * NUM_BINS for _ in State]
    starts = np.concatenate([np.frombuffer(row.edges)[:-1] for row in rows])
    ends = np.concatenate([np.frombuffer(row.edges)[1:] for row in rows])
    states = np.concatenate([np.frombuffer(row.states, dtype=np.uint8) for row in rows])
    return [_mean_open(starts[states == it], ends[states == it], end) for it in State]


def num_ended(rows: Sequence[Row], end: float) -> list[int]:
    """How many rows had ended at the end of each part of [0, end]."""
    import numpy as np

    ends = np.sort(np.array([row.ended_at for row in rows]))
    edges = np.linspace(0.0, end, NUM_BINS + 1)[1:]
    return [int(it) for it in np.searchsorted(ends, edges + 1e-9 * end, side="right")]


def count_whole(values: array[int]) -> Histogram:
    """A histogram of whole numbers with bars of one width."""
    longest = max(values, default=0)
    width = next(it for it in _widths() if longest < it * _MAX_BARS)
    return _histogram(values, [float(it) for it in range(0, longest + width + 1, width)])


def count_spread(values: Sequence[float]) -> Histogram:
    """A histogram over decades, six bars each, for what differs by orders of magnitude."""
    positive = [it for it in values if it > 0]
    if not positive:
        return _histogram(values, [0.0, 1.0])
    smallest, largest = min(positive), max(positive)
    edges = [
        float(f"{step}e{decade}")
        for decade in range(_decade(largest) - 4, _decade(largest) + 2)
        for step in _STEPS
    ]
    first = max((i for i, edge in enumerate(edges) if edge <= smallest), default=0)
    last = next(i for i, edge in enumerate(edges) if edge > largest)
    return _histogram(values, edges[first : last + 1])


def _decade(value: float) -> int:
    return int(f"{value:e}".partition("e")[2])


def _widths() -> Sequence[int]:
    return [factor * 10**decade for decade in range(12) for factor in (1, 2, 5)]


def _histogram(values: Sequence[float], edges: list[float]) -> Histogram:
    import numpy as np

    numbers = np.sort(np.asarray(values, dtype=np.float64))
    inside = np.clip(numbers, edges[0], None)
    below = np.searchsorted(inside, edges, side="left")
    return Histogram(
        edges=edges,
        counts=[int(it) for it in np.diff(below)],
        median=round(float(numbers[len(numbers) // 2]), 3) if len(numbers) else None,
        largest=round(float(numbers[-1]), 3) if len(numbers) else None,
    )


def _mean_open(starts: NDArray[np.float64], ends: NDArray[np.float64], end: float) -> list[float]:
    import numpy as np

    edges = np.linspace(0.0, end, NUM_BINS + 1)
    open_seconds = _seconds_since(starts, edges) - _seconds_since(ends, edges)
    means = np.diff(open_seconds) * NUM_BINS / end if end > 0 else np.zeros(NUM_BINS)
    return [abs(round(float(it), 2)) for it in means]


def _seconds_since(times: NDArray[np.float64], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """At each edge, the sum over `times` of how long ago they were, 0 where they lie ahead."""
    import numpy as np

    ordered = np.sort(times)
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    num_past = np.searchsorted(ordered, edges, side="right")
    return edges * num_past - sums[num_past]
