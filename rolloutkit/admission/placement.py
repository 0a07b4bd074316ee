"""Where an admitted sample lives. Pure: counts residents, knows no engine."""

from __future__ import annotations

from collections.abc import Sequence

from rolloutkit.protocols import Demand


class LeastLoaded:
    """The worker with the fewest resident samples, parked ones included; the first among equals.

    O(workers) a call.
    """

    def __init__(self, workers: Sequence[str]) -> None:
        self._num_residents = dict.fromkeys(workers, 0)

    def place(self, demand: Demand) -> str:
        """Choose a worker and count one more resident."""
        del demand
        worker = min(self._num_residents, key=self._num_residents.__getitem__)
        self._num_residents[worker] += 1
        return worker

    def leave(self, demand: Demand, worker: str) -> None:
        """One resident less."""
        del demand
        self._num_residents[worker] -= 1
