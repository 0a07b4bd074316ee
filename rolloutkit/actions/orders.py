"""Which pending action runs next: pure orders, one instance per kind of action.

Both are exact and cost O(log n) a call or less; discarded entries are dropped lazily.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict

from rolloutkit.protocols import ActionDemand


class FifoOrder:
    """The longest waiting first. Nothing starves: a demand waits for those before it only."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[int, ActionDemand] = OrderedDict()

    def push(self, demand: ActionDemand, now: float) -> None:
        del now
        self._waiting[demand.seq] = demand

    def discard(self, demand: ActionDemand) -> None:
        self._waiting.pop(demand.seq, None)

    def pop(self, now: float) -> ActionDemand | None:
        del now
        return self._waiting.popitem(last=False)[1] if self._waiting else None

    def first(self, now: float) -> ActionDemand | None:
        del now
        return next(iter(self._waiting.values()), None)

    def __len__(self) -> int:
        return len(self._waiting)


class CaasOrder:
    """Chain-advancing: the sample with the most finished turns first, ties by arrival.

    Starvation bound: a demand of a sample with k turns waits for demands of samples with at least k
    turns only, and every sample ends after at most `limits.max_turns` turns.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, ActionDemand]] = []
        self._waiting: set[int] = set()

    def push(self, demand: ActionDemand, now: float) -> None:
        del now
        heapq.heappush(self._heap, (-demand.num_turns, demand.seq, demand))
        self._waiting.add(demand.seq)

    def discard(self, demand: ActionDemand) -> None:
        self._waiting.discard(demand.seq)

    def pop(self, now: float) -> ActionDemand | None:
        demand = self.first(now)
        if demand is not None:
            heapq.heappop(self._heap)
            self._waiting.remove(demand.seq)
        return demand

    def first(self, now: float) -> ActionDemand | None:
        del now
        while self._heap:
            demand = self._heap[0][2]
            if demand.seq in self._waiting:
                return demand
            heapq.heappop(self._heap)
        return None

    def __len__(self) -> int:
        return len(self._waiting)
