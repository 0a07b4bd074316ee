"""What actions occupy, and which of those that ask may start: pure.

A `Pool` has places; a kind of action is one, and so is each pool that the settings name. An
`ActionQueue` holds those that ask for the same places of the same pools, so that its first is all
that has to be looked at. A `Contention` is a set of queues that share pools.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

from rolloutkit.protocols import ActionDemand, ActionOrder

MAX_OVERTAKES = 8
"""Starts of others after which room is kept for a queue. Fewer leave more places idle meanwhile."""


class Pool:
    """Places of one sort. Invariant: `used <= capacity`."""

    __slots__ = ("_interval", "capacity", "is_kind", "name", "next_start", "rank", "used")

    def __init__(
        self, name: str, capacity: int | None, *, is_kind: bool = False, interval: float = 0.0
    ) -> None:
        self.name = name
        self.capacity = math.inf if capacity is None else capacity
        self.is_kind = is_kind
        self.used = 0
        self.next_start = -math.inf  # of whatever starts here
        self.rank = 0  # room is kept in this order; see `NestingOrder`
        self._interval = interval  # seconds from one start to the next

    @property
    def is_limited(self) -> bool:
        """Whether anybody may have to wait for somebody else's place."""
        return self.capacity != math.inf

    @property
    def has_rate(self) -> bool:
        """Whether starts are spaced."""
        return self._interval > 0

    def started(self, now: float) -> None:
        """Space the next start from this one."""
        if self._interval:
            self.next_start = now + self._interval

    def has_room(self, weight: int, kept: int, now: float) -> bool:
        """Whether `weight` places can be taken beside `kept` ones; of starts one at a time."""
        if self.used + weight + kept > self.capacity or now < self.next_start:
            return False
        return not (kept and self._interval)


Needs: TypeAlias = tuple[tuple[Pool, int], ...]
"""Pools and the places that are asked for in each; every pool once."""

Rank: TypeAlias = Callable[[ActionDemand], float | None]
"""The key of an action among those of other queues, larger first; None = arrival decides."""


class ActionQueue:
    """Those that wait for the same: all places at once, or none. The order picks the first."""

    __slots__ = ("is_due", "needs", "order", "overtaken", "rivals")

    def __init__(self, needs: Needs, order: ActionOrder) -> None:
        self.needs = needs
        self.order = order
        self.rivals: list[ActionQueue] = []  # others that share a pool
        self.overtaken = 0  # starts of rivals since its own last one, while somebody waited
        self.is_due = False

    @property
    def slots(self) -> int:
        """Of its kind: one, or none inside an action that holds it."""
        return sum(weight for pool, weight in self.needs if pool.is_kind)

    @property
    def weights(self) -> dict[str, int]:
        """Places asked for in pools that the settings name."""
        return {pool.name: weight for pool, weight in self.needs if not pool.is_kind}

    def shares_pool(self, other: ActionQueue) -> bool:
        return any(pool is one for pool, _ in self.needs for one, _ in other.needs)

    def fits(self, now: float) -> bool:
        """Whether it could start one if nothing were kept for others."""
        for pool, weight in self.needs:
            if pool.used + weight > pool.capacity or now < pool.next_start:
                return False
        return True

    def fits_beside(self, kept: Mapping[Pool, int], now: float) -> bool:
        return all(pool.has_room(weight, kept.get(pool, 0), now) for pool, weight in self.needs)

    def keep(self, kept: dict[Pool, int], now: float) -> None:
        """Add what is to be kept for it: by rank, up to the first pool that lacks room."""
        for pool, weight in sorted(self.needs, key=_rank_of):
            has_room = pool.has_room(weight, kept.get(pool, 0), now)
            kept[pool] = kept.get(pool, 0) + weight
            if not has_room:
                return


class Contention:
    """Queues that share pools, and which of them starts next.

    Of the queues whose first fits, the one whose first ranks highest. That may pass over a queue
    whose first does not fit, so that places do not idle; after `max_overtakes` starts in pools that
    it shares a queue is *due*: room is kept for it, pool by pool in order of rank, and those that
    are due go before others, in the order in which they became due. Starvation bound: once due, and
    not counting those due before it, a queue starts within as many times the longest action as it
    needs pools; which of its demands, its order says. O(queues + log n) a decision.
    """

    def __init__(self, rank: Rank | None, max_overtakes: int) -> None:
        self.queues: list[ActionQueue] = []
        self._has_rates = False
        self._rank = rank
        self._max_overtakes = max_overtakes
        self._due: list[ActionQueue] = []

    def add(self, queue: ActionQueue) -> None:
        """A queue that shares a pool with another one here, or is alone."""
        self.queues.append(queue)
        self._has_rates = self._has_rates or any(pool.has_rate for pool, _ in queue.needs)

    def next(self, now: float) -> ActionQueue | None:
        """The queue whose first may start; None when nobody may. The caller pops it."""
        if len(self.queues) == 1:
            only = self.queues[0]
            return only if len(only.order) and only.fits(now) else None
        kept: dict[Pool, int] = {}
        for queue in self._due:
            if queue.fits_beside(kept, now):
                return queue
            queue.keep(kept, now)
        fitting = [
            queue
            for queue in self.queues
            if not queue.is_due and len(queue.order) and queue.fits_beside(kept, now)
        ]
        if len(fitting) > 1:
            return min(fitting, key=lambda queue: self._place(queue, now))
        return fitting[0] if fitting else None

    def may_start_at_once(self, queue: ActionQueue, now: float) -> bool:
        """Whether one that just came to an empty queue need not wait."""
        if not self._due:
            return queue.fits(now)
        kept: dict[Pool, int] = {}
        for due in self._due:
            due.keep(kept, now)
        return queue.fits_beside(kept, now)

    def started(self, queue: ActionQueue, now: float) -> None:
        """One of the queue's starts: take its places, and count whom it passed over."""
        for pool, weight in queue.needs:
            pool.used += weight
            if self._has_rates:
                pool.started(now)
        if queue.rivals:
            self._restore(queue)
            for rival in queue.rivals:
                if len(rival.order):
                    rival.overtaken += 1
                    if rival.overtaken >= self._max_overtakes and not rival.is_due:
                        rival.is_due = True
                        self._due.append(rival)

    def emptied(self, queue: ActionQueue) -> None:
        """Nobody waits in the queue any more, though nobody started."""
        self._restore(queue)

    def next_start(self, now: float) -> float:
        """When a start rate lets somebody start who waits; infinite when none holds them back."""
        if not self._has_rates:
            return math.inf
        return min(
            (
                pool.next_start
                for queue in self.queues
                if len(queue.order)
                for pool, weight in queue.needs
                if pool.next_start > now and pool.used + weight <= pool.capacity
            ),
            default=math.inf,
        )

    def _restore(self, queue: ActionQueue) -> None:
        queue.overtaken = 0
        if queue.is_due:
            queue.is_due = False
            self._due.remove(queue)

    def _place(self, queue: ActionQueue, now: float) -> tuple[float, int]:
        first = queue.order.first(now)
        assert first is not None, "somebody waits in it"
        key = None if self._rank is None else self._rank(first)
        return (-key if key else 0.0, first.seq)


def _rank_of(need: tuple[Pool, int]) -> int:
    return need[0].rank
