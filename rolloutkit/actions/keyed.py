"""Pending actions by a key that may change: the largest first, ties by arrival.

One class holds the waiting demands; the orders differ in their key and in whether every so many
dispatches serve the longest waiting (the *FIFO lane*). Keys change for single samples (`rekey`) or
by a new rule (`rank_by`).
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from rolloutkit.protocols import ActionDemand
from rolloutkit.types import SampleId

Key: TypeAlias = Callable[[ActionDemand], float]

ROUNDING: Final = 1e-6  # three dispatches at a lane of 1/3 are one, whatever the decimals
SPARE_ENTRIES: Final = 64  # stale heap entries that are not worth a rebuild


class KeyedOrder:
    """Largest key first, ties by arrival. O(log n) a call amortised, O(1) in the lane.

    `fifo_lane` is the share of dispatches that serve the longest waiting instead. Starvation bound:
    a demand that arrives behind n others leaves after at most `ceil((n + 1) / fifo_lane)`
    dispatches; without a lane the bound is that of the key.
    """

    def __init__(self, key_of: Key, *, fifo_lane: float = 0.0) -> None:
        self._key_of = key_of
        self._fifo_lane = fifo_lane
        self._lane_credit = 0.0
        self._waiting: OrderedDict[int, ActionDemand] = OrderedDict()  # by arrival
        self._keys: dict[int, float] = {}  # by arrival, negated; other heap entries are stale
        self._of_sample: dict[SampleId, list[int]] = {}
        self._heap: list[tuple[float, int]] = []
        self._queued_seconds = 0.0
        self._queued_until = 0.0

    def push(self, demand: ActionDemand, now: float) -> None:
        self._pass_time(now)
        seq = demand.seq
        key = -self._key_of(demand)
        self._waiting[seq] = demand
        self._keys[seq] = key
        self._of_sample.setdefault(demand.sample_id, []).append(seq)
        heapq.heappush(self._heap, (key, seq))

    def discard(self, demand: ActionDemand) -> None:
        if demand.seq in self._waiting:
            self._remove(demand.seq)

    def pop(self, now: float) -> ActionDemand | None:
        if not self._waiting:
            return None
        self._pass_time(now)
        if self._fifo_lane:
            self._lane_credit += self._fifo_lane
            if self._lane_credit >= 1 - ROUNDING:
                self._lane_credit -= 1
                return self._remove(next(iter(self._waiting)))
        return self._remove(self._top())

    def first(self, now: float) -> ActionDemand | None:
        del now
        if not self._waiting:
            return None
        if self._fifo_lane and self._lane_credit + self._fifo_lane >= 1 - ROUNDING:
            return next(iter(self._waiting.values()))
        return self._waiting[self._top()]

    def __len__(self) -> int:
        return len(self._waiting)

    def rekey(self, sample_id: SampleId) -> None:
        """The key of a sample's demands changed; nothing happens where none waits."""
        for seq in self._of_sample.get(sample_id, ()):
            key = -self._key_of(self._waiting[seq])
            if key != self._keys[seq]:
                self._keys[seq] = key
                heapq.heappush(self._heap, (key, seq))
        if len(self._heap) > 2 * len(self._waiting) + SPARE_ENTRIES:
            self._heapify()

    def rank_by(self, key_of: Key, *, fifo_lane: float) -> None:
        """Go on by another rule; linear in the demands that wait."""
        self._key_of = key_of
        self._fifo_lane = fifo_lane
        self._keys = {seq: -key_of(demand) for seq, demand in self._waiting.items()}
        self._heapify()

    def queued_seconds(self, now: float) -> float:
        """For how long something has waited here."""
        self._pass_time(now)
        return self._queued_seconds

    def _top(self) -> int:
        """Who has the largest key, once stale entries are dropped; the entry itself stays."""
        heap, keys = self._heap, self._keys
        while keys.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][1]

    def _heapify(self) -> None:
        self._heap = [(key, seq) for seq, key in self._keys.items()]
        heapq.heapify(self._heap)

    def _remove(self, seq: int) -> ActionDemand:
        demand = self._waiting.pop(seq)
        del self._keys[seq]
        others = self._of_sample[demand.sample_id]
        others.remove(seq)
        if not others:
            del self._of_sample[demand.sample_id]
        return demand

    def _pass_time(self, now: float) -> None:
        if self._waiting:
            self._queued_seconds += now - self._queued_until
        self._queued_until = now


def caas_service_order() -> KeyedOrder:
    """The sample whose actions took longest so far first.

    Starvation bound: a demand waits for samples with at least as much service only, each of which
    ends after at most `limits.max_turns` turns.
    """
    return KeyedOrder(_service_seconds)


def oldest_order() -> KeyedOrder:
    """The sample admitted first.

    Starvation bound: a demand waits for samples that were admitted before its own only: at most
    `admission.max_samples - 1` of them, each of at most `limits.max_turns` turns.
    """
    return KeyedOrder(_minus_admission_seq)


def remaining_order(remaining: Callable[[SampleId], float], fifo_lane: float) -> KeyedOrder:
    """The sample with the most expected work left first; `rekey` those whose estimate changed.

    Starvation bound: that of the lane. With `fifo_lane=0` a demand waits for samples that have more
    left, and for newcomers that do; each ends after at most `limits.max_turns` turns.
    """
    return KeyedOrder(lambda demand: remaining(demand.sample_id), fifo_lane=fifo_lane)


def clairvoyant_order(totals: Mapping[SampleId, float]) -> KeyedOrder:
    """The sample with the largest true total work first, as only a replay can know.

    Starvation bound: a demand waits for samples of at least its own total only. A sample without a
    total comes last.
    """
    return KeyedOrder(lambda demand: totals.get(demand.sample_id, 0.0))


def no_key(demand: ActionDemand) -> float:
    """Arrival alone decides."""
    del demand
    return 0.0


def num_turns(demand: ActionDemand) -> float:
    """Finished turns: chain-advancing order."""
    return demand.num_turns


def _service_seconds(demand: ActionDemand) -> float:
    return demand.service_seconds


def _minus_admission_seq(demand: ActionDemand) -> float:
    return -demand.admission_seq
