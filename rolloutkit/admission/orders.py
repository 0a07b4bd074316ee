"""Which sample lives next: pure admission orders."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container

from rolloutkit.protocols import Demand


class DatasetOrder:
    """In the order of the source, among the environments that have room. O(1) a call."""

    def __init__(self) -> None:
        # OrderedDict: the first entry of a plain dict is linear to find after deletions.
        self._waiting: dict[str, OrderedDict[int, Demand]] = {}
        self._num_waiting = 0

    def push(self, demand: Demand, now: float) -> None:
        del now
        self._waiting.setdefault(demand.environment, OrderedDict())[demand.seq] = demand
        self._num_waiting += 1

    def discard(self, demand: Demand) -> None:
        waiting = self._waiting.get(demand.environment)
        if waiting is not None and waiting.pop(demand.seq, None) is not None:
            self._num_waiting -= 1

    def pop(self, environments: Container[str], now: float) -> Demand | None:
        del now
        heads = [
            next(iter(waiting.values()))
            for environment, waiting in self._waiting.items()
            if waiting and environment in environments
        ]
        if not heads:
            return None
        demand = min(heads, key=_seq_of)
        self.discard(demand)
        return demand

    def __len__(self) -> int:
        return self._num_waiting


def _seq_of(demand: Demand) -> int:
    return demand.seq
