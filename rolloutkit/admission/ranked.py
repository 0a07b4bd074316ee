"""Admission by expected length: the longest first, or one of each group and then the longest.

Both are pure and never consider an environment that has no room: what waits for one does not hold
up another.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Container

from rolloutkit.protocols import Demand

SPARE_ENTRIES = 64  # stale heap entries that are not worth a rebuild


class RankedOrder:
    """The largest key first, as it was when the demand came; ties by the source's order.

    `longest_first` ranks by what earlier epochs say of the task, `clairvoyant` by true totals.
    O(log n) a call amortised, and linear in the number of environments. Starvation bound: in a
    batch a demand waits for those with at least its key only; of a stream, `admission.lookahead`
    demands are ranked at a time, and a short sample may wait as long as longer ones keep coming.
    """

    def __init__(self, key_of: Callable[[Demand], float]) -> None:
        self._key_of = key_of
        self._heaps: dict[str, list[tuple[float, int, Demand]]] = {}
        self._waiting: set[int] = set()

    def push(self, demand: Demand, now: float) -> None:
        del now
        heap = self._heaps.setdefault(demand.environment, [])
        heapq.heappush(heap, (-self._key_of(demand), demand.seq, demand))
        self._waiting.add(demand.seq)

    def discard(self, demand: Demand) -> None:
        self._waiting.discard(demand.seq)

    def pop(self, environments: Container[str], now: float) -> Demand | None:
        del now
        heaps = [
            heap
            for environment, heap in self._heaps.items()
            if environment in environments and self._has_waiting(heap)
        ]
        if not heaps:
            return None
        demand = heapq.heappop(min(heaps, key=_first))[2]
        self._waiting.remove(demand.seq)
        return demand

    def __len__(self) -> int:
        return len(self._waiting)

    def _has_waiting(self, heap: list[tuple[float, int, Demand]]) -> bool:
        """Whether anything waits in the heap; drops what was discarded from its top."""
        while heap and heap[0][1] not in self._waiting:
            heapq.heappop(heap)
        return bool(heap)


def _first(heap: list[tuple[float, int, Demand]]) -> tuple[float, int]:
    return heap[0][:2]


class PioneerOrder:
    """One sample of each group in the source's order; then always from the group whose samples are
    expected to be longest, ties by the source's order.

    The pioneer leaves the group's prefix in the cache and makes its length known. `mean_of` gives a
    group's expected total; `rekey` a group whose evidence changed. O(log n) a call amortised, and
    linear in the number of environments. Starvation bound: a demand waits for one sample of each
    group in the lookahead and for groups that are expected to be longer.
    """

    def __init__(self, mean_of: Callable[[str], float]) -> None:
        self._mean_of = mean_of
        self._groups: dict[str, _Group] = {}
        self._environments: dict[str, _Environment] = {}
        self._num_waiting = 0

    def push(self, demand: Demand, now: float) -> None:
        del now
        task_id = demand.task.task_id
        environment = self._environments.setdefault(demand.environment, _Environment())
        group = self._groups.get(task_id)
        if group is None:
            group = self._groups[task_id] = _Group(environment, demand.seq, demand.task.num_samples)
        group.waiting[demand.seq] = demand
        group.num_to_come -= 1
        self._num_waiting += 1
        if group.is_explored:
            self.rekey(task_id)
        else:
            environment.explore(task_id, group)

    def discard(self, demand: Demand) -> None:
        group = self._groups.get(demand.task.task_id)
        if group is not None and group.waiting.pop(demand.seq, None) is not None:
            self._num_waiting -= 1

    def pop(self, environments: Container[str], now: float) -> Demand | None:
        del now
        open_ones = [one for name, one in self._environments.items() if name in environments]
        heads = [head for one in open_ones if (head := one.first_pioneer()) is not None]
        if heads:
            task_id = min(heads, key=lambda head: head[1])[0]
            group = self._groups[task_id]
            group.is_explored = True
        else:
            ranked = [top for one in open_ones if (top := one.first_ranked()) is not None]
            if not ranked:
                return None
            task_id = min(ranked)[2]
            group = self._groups[task_id]
        demand = group.waiting.popitem(last=False)[1]
        self._num_waiting -= 1
        if not group.waiting and group.num_to_come <= 0:
            del self._groups[task_id]
        self.rekey(task_id)
        return demand

    def rekey(self, task_id: str) -> None:
        """The expected length of a group's samples changed."""
        group = self._groups.get(task_id)
        if group is not None and group.is_explored and group.waiting:
            group.environment.rank(task_id, group, self._mean_of(task_id))

    def rekey_all(self) -> None:
        """All expectations changed; linear in the groups."""
        for task_id in self._groups:
            self.rekey(task_id)

    def __len__(self) -> int:
        return self._num_waiting


class _Group:
    __slots__ = (
        "environment",
        "is_explored",
        "is_queued",
        "key",
        "num_to_come",
        "seq",
        "waiting",
    )

    def __init__(self, environment: _Environment, seq: int, num_samples: int) -> None:
        self.environment = environment
        self.seq = seq
        self.num_to_come = num_samples
        self.waiting: OrderedDict[int, Demand] = OrderedDict()
        self.is_queued = False  # among those to explore
        self.is_explored = False
        self.key: float | None = None


class _Environment:
    """The groups of one environment: those to explore, and the others by expected length."""

    def __init__(self) -> None:
        self._unexplored: list[tuple[int, str, _Group]] = []  # heap by place
        self._heap: list[tuple[float, int, str, _Group]] = []
        self._max_entries = SPARE_ENTRIES

    def explore(self, task_id: str, group: _Group) -> None:
        if not group.is_queued:
            group.is_queued = True
            heapq.heappush(self._unexplored, (group.seq, task_id, group))

    def rank(self, task_id: str, group: _Group, mean: float) -> None:
        if group.key == -mean:
            return
        group.key = -mean
        heapq.heappush(self._heap, (-mean, group.seq, task_id, group))
        if len(self._heap) > self._max_entries:
            self._heap = [one for one in self._heap if one[3].key == one[0] and one[3].waiting]
            heapq.heapify(self._heap)
            self._max_entries = 2 * len(self._heap) + SPARE_ENTRIES

    def first_pioneer(self) -> tuple[str, int] | None:
        """Task and place of the next group to explore; forgets groups that were withdrawn."""
        while self._unexplored:
            seq, task_id, group = self._unexplored[0]
            if group.waiting and not group.is_explored:
                return task_id, seq
            heapq.heappop(self._unexplored)
            group.is_queued = False
        return None

    def first_ranked(self) -> tuple[float, int, str] | None:
        """Negated mean, place and task of the group that is expected to be longest."""
        while self._heap:
            key, seq, task_id, group = self._heap[0]
            if group.key == key and group.waiting:
                return key, seq, task_id
            heapq.heappop(self._heap)
            if group.key == key:
                group.key = None  # nothing waits: it is ranked again when something does
        return None
