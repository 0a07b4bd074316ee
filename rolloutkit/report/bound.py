"""The lower bound: how long a batch had to take, given its work and what there was to do it.

Three kinds of reason, of which the largest binds: no sample is faster than its own operations one
after the other (critical path), no pool of slots serves faster than with all its slots busy
(environment), nor does the engine. Everything here is a fold over finished operations: O(1) an
operation, pure, no clock.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rolloutkit.record.events import Action, ModelCall

# A start computed as end minus duration may fall short of the true one by rounding; operations that
# follow each other must not look as if they overlapped because of it.
_TOLERANCE_SECONDS = 1e-6


class LowerBound(NamedTuple):
    """A time that no schedule of the same work can beat, and what sets it."""

    seconds: float
    resource: str


class PoolLoad(NamedTuple):
    """What a pool had to serve, and how many it could serve at once."""

    name: str
    service_seconds: float
    capacity: int

    @property
    def seconds(self) -> float:
        """How long the pool takes with every place busy."""
        return self.service_seconds / self.capacity


def lower_bound(critical_path_seconds: float, pools: Iterable[PoolLoad]) -> LowerBound:
    """The largest of the reasons; the first of them where several are equal."""
    bound = LowerBound(critical_path_seconds, "critical path")
    for pool in pools:
        if pool.seconds > bound.seconds:
            bound = LowerBound(pool.seconds, pool.name)
    return bound


class BatchWork:
    """Everything a batch had to do, as far as its ended samples tell.

    Work that outlives the last sample, as closing a session may, does not belong to the makespan:
    it is kept aside until another sample ends. Costs 16 bytes a model call, beside what is alive.
    """

    def __init__(self) -> None:
        self.critical_path_seconds = 0.0
        self._alive: dict[str, CriticalPath] = {}
        self._settled: defaultdict[str, float] = defaultdict(float)
        self._aside: defaultdict[str, float] = defaultdict(float)
        self._engine_settled = 0.0
        self._engine_aside = 0.0
        self._calls = Concurrency()
        self._is_queueing_known = True

    def start_sample(self, sample_id: str) -> None:
        self._alive[sample_id] = CriticalPath()

    def add_call(self, call: ModelCall) -> None:
        service = _service_seconds(call)
        if service is None:
            self._is_queueing_known = False
            service = call.seconds
        started_at = call.t - call.seconds
        self._engine_aside += service
        self._calls.add(started_at, call.t)
        path = self._alive.get(call.sample_id)
        if path is not None:
            path.add(started_at - call.parked_seconds, call.t, service)

    def add_action(self, action: Action) -> None:
        self._aside[action.kind] += action.slots * action.seconds
        for pool, places in action.needs.items():
            self._aside[pool] += places * action.seconds
        path = self._alive.get(action.sample_id)
        if path is not None:
            path.add(action.t - action.seconds - action.wait_seconds, action.t, action.seconds)

    def end_sample(self, sample_id: str) -> None:
        path = self._alive.pop(sample_id, None)
        if path is not None:
            self.critical_path_seconds = max(self.critical_path_seconds, path.seconds)
        for kind, seconds in self._aside.items():
            self._settled[kind] += seconds
        self._aside.clear()
        self._engine_settled += self._engine_aside
        self._engine_aside = 0.0

    def action_loads(self, slots: Mapping[str, int]) -> list[PoolLoad]:
        """The load of each kind of action, or pool, that has a limit."""
        return [
            PoolLoad(f"environment {kind}", self._settled[kind], slots[kind])
            for kind in sorted(slots)
        ]

    def engine_load(self, parallelism: int | None) -> PoolLoad | None:
        """The load of an engine that states its parallelism and how long calls queued in it."""
        if parallelism is None or not self._is_queueing_known:
            return None
        return PoolLoad("engine", self._engine_settled, parallelism)

    def engine_load_as_seen(self, parallelism: int | None) -> PoolLoad:
        """The load of any engine: where calls hide its queue, all in flight count as served."""
        return PoolLoad(
            "engine", self._engine_settled, max(1, parallelism or 1, self._calls.peak())
        )


def _service_seconds(call: ModelCall) -> float | None:
    """How long the engine worked on the call; None where its queue hides in `seconds`."""
    if call.service_seconds is not None:
        return min(call.service_seconds, call.seconds)
    if call.queue_seconds is not None:
        return max(0.0, call.seconds - call.queue_seconds)
    return None


class CriticalPath:
    """The longest chain of one sample's operations, each asked for after the one before had ended.

    Operations that run side by side do not add up. Report each when it ends, in that order. Only
    the last `MEMORY` ends are kept: an operation that was asked for before all of them counts from
    a smaller head, so that what comes out stays a lower bound.
    """

    __slots__ = ("_ends", "_paths", "seconds")

    MEMORY = 16  # enough for that many operations side by side; 400 bytes a sample

    def __init__(self) -> None:
        self._ends = array("d")  # rising, as are
        self._paths = array("d")  # the longest paths that had ended by then
        self.seconds = 0.0

    def add(self, asked_at: float, ended_at: float, service_seconds: float) -> None:
        """Count an operation: from `asked_at` on it waited for nothing but its turn."""
        base = bisect_right(self._ends, asked_at + _TOLERANCE_SECONDS) - 1
        path = service_seconds + (self._paths[base] if base >= 0 else 0.0)
        if path <= self.seconds:
            return
        self.seconds = path
        self._ends.append(ended_at)
        self._paths.append(path)
        if len(self._ends) > self.MEMORY:
            oldest = 0 if base > 0 else 1  # the first is what operations side by side share
            del self._ends[oldest], self._paths[oldest]


class Concurrency:
    """How many intervals overlapped at most; they are kept, since starts come out of order."""

    def __init__(self) -> None:
        self._starts = array("d")
        self._ends = array("d")

    def add(self, start: float, end: float) -> None:
        self._starts.append(start)
        self._ends.append(end)

    def peak(self) -> int:
        """The largest number at one time, O(n log n); one that ends as another starts is over."""
        if not self._starts:
            return 0
        import numpy as np

        starts = np.sort(np.round(np.frombuffer(self._starts) / _TOLERANCE_SECONDS))
        ends = np.sort(np.round(np.frombuffer(self._ends) / _TOLERANCE_SECONDS))
        num_running = np.arange(1, len(starts) + 1) - np.searchsorted(ends, starts, side="right")
        return max(1, int(num_running.max()))
