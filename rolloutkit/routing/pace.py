"""How fast each worker is, learned from the calls that end. Pure.

One model for all workers, fitted by least squares with exponential forgetting,

    seconds = prefill * uncached + output * (step + crowding * crowd)

and a factor for each: observed over predicted. The factor tells a slow worker from a crowded one,
and it lasts, whereas the crowd of a moment does not. Uncached tokens and output are those of the
call, the crowd is the context tokens of the samples that were active on its worker.
"""

from __future__ import annotations

from typing import TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]

_UNIT = np.array([1e-3, 1e-2, 1e-8])  # seconds a token: prefill, step, crowding; scales the fit
_MEMORY = 1 - 1 / 512  # weight that a call keeps when another one ends
_OWN_MEMORY = 1 - 1 / 64  # the same for a worker's factor
_DOUBT = 8.0  # calls that a factor of 1 is worth until more is known
_FIT_EVERY = 32  # calls between two fits


class Pace:
    """Costs O(1) a call and nothing in the number of workers."""

    def __init__(self, num_workers: int) -> None:
        self.factors: Array = np.ones(num_workers)  # of time, by worker; 2 = half as fast
        self.prefill = 0.0  # seconds for each token that is not cached
        self.step = 0.0  # seconds for each token of output
        self.crowding = 0.0  # and for each token of context that is active beside it
        self.is_known = False
        self._observed = np.zeros(num_workers)
        self._predicted = np.zeros(num_workers)
        self._weights = np.zeros(num_workers)
        self._moments = np.zeros((3, 3))
        self._products = np.zeros(3)
        self._num_calls = 0

    def grow(self) -> None:
        """There is one more worker."""
        self.factors = np.append(self.factors, 1.0)
        for name in ("_observed", "_predicted", "_weights"):
            setattr(self, name, np.append(getattr(self, name), 0.0))

    def forget(self, worker: int) -> None:
        """The worker was started anew: nothing is known of it."""
        self.factors[worker] = 1.0
        self._observed[worker] = self._predicted[worker] = self._weights[worker] = 0.0

    def seconds(self, uncached: float, output: float, crowd: float) -> float:
        """What a call takes on a worker of factor 1."""
        return self.prefill * uncached + output * (self.step + self.crowding * crowd)

    def observe(
        self, worker: int, seconds: float, *, uncached: int, output: int, crowd: float
    ) -> None:
        """A call ended that took so long, the server's own queue included."""
        row = np.array((uncached, output, output * crowd)) * _UNIT
        weight = 1.0 / max(row[0] + row[1], 1e-6)  # relative errors count, or long calls decide all
        row *= weight
        self._moments *= _MEMORY
        self._products *= _MEMORY
        self._moments += np.outer(row, row)
        self._products += row * (seconds * weight / self.factors[worker])
        self._num_calls += 1
        if self._num_calls % _FIT_EVERY == 0:
            self._fit()
        if self.is_known:
            self._judge(worker, seconds, self.seconds(uncached, output, crowd))

    def _fit(self) -> None:
        ridge = 1e-4 * np.trace(self._moments) / 3
        solved = cast("Array", np.linalg.solve(self._moments + ridge * np.eye(3), self._products))
        self.prefill, self.step, self.crowding = (np.maximum(solved, 0.0) * _UNIT).tolist()
        self.is_known = True

    def _judge(self, worker: int, seconds: float, predicted: float) -> None:
        self._observed[worker] = self._observed[worker] * _OWN_MEMORY + seconds
        self._predicted[worker] = self._predicted[worker] * _OWN_MEMORY + predicted
        self._weights[worker] = self._weights[worker] * _OWN_MEMORY + 1.0
        doubt = _DOUBT / self._weights[worker] * self._predicted[worker]
        self.factors[worker] = (self._observed[worker] + doubt) / (self._predicted[worker] + doubt)
