"""Orders that know the future, for replays only: the sample with the most work in all goes first.

Not an optimum: it is the reference that no order without the recording can be expected to beat by
much. Both cost O(log n) a call and drop discarded entries lazily.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container

from rolloutkit.protocols import ActionDemand, Demand
from rolloutkit.types import SampleId

TotalOf = Callable[[SampleId], float]
"""Work of a sample from its first turn to its last, in seconds."""


class ClairvoyantAdmission:
    """Admits the largest total first, ties in the order of the source."""

    def __init__(self, total_of: TotalOf) -> None:
        self._total_of = total_of
        self._waiting: dict[str, list[tuple[float, int, Demand]]] = {}  # heaps, by environment
        self._seqs: set[int] = set()

    def push(self, demand: Demand, now: float) -> None:
        del now
        heap = self._waiting.setdefault(demand.environment, [])
        heapq.heappush(heap, (-self._total_of(demand.sample_id), demand.seq, demand))
        self._seqs.add(demand.seq)

    def discard(self, demand: Demand) -> None:
        self._seqs.discard(demand.seq)

    def pop(self, environments: Container[str], now: float) -> Demand | None:
        del now
        heads = [
            head
            for environment, heap in self._waiting.items()
            if environment in environments and (head := self._head(heap)) is not None
        ]
        if not heads:
            return None
        demand = min(heads)[2]
        heapq.heappop(self._waiting[demand.environment])
        self._seqs.remove(demand.seq)
        return demand

    def __len__(self) -> int:
        return len(self._seqs)

    def _head(self, heap: list[tuple[float, int, Demand]]) -> tuple[float, int, Demand] | None:
        while heap and heap[0][1] not in self._seqs:
            heapq.heappop(heap)
        return heap[0] if heap else None


class ClairvoyantActions:
    """Runs the action of the sample with the largest total first, ties by arrival.

    Starvation bound: a demand waits for demands of samples with at least as much work in all.
    """

    def __init__(self, total_of: TotalOf) -> None:
        self._total_of = total_of
        self._heap: list[tuple[float, int, ActionDemand]] = []
        self._waiting: set[int] = set()

    def push(self, demand: ActionDemand, now: float) -> None:
        del now
        key = -self._total_of(demand.sample_id)
        heapq.heappush(self._heap, (key, demand.seq, demand))
        self._waiting.add(demand.seq)

    def discard(self, demand: ActionDemand) -> None:
        self._waiting.discard(demand.seq)

    def pop(self, now: float) -> ActionDemand | None:
        del now
        while self._heap:
            demand = heapq.heappop(self._heap)[2]
            if demand.seq in self._waiting:
                self._waiting.remove(demand.seq)
                return demand
        return None

    def __len__(self) -> int:
        return len(self._waiting)
