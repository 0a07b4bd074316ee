"""When an action may run: slots and start rates per kind of action.

A kind is a pool of equal slots (`bash`, `bfcl.step`, `bfcl.set_up`). The order of a kind decides
among those that wait; the scheduler owns the waiters. A slot is held for one action and never while
a model thinks, so an action must not ask for a second slot of its own kind while it runs (it would
wait for itself).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Annotated, Self

import msgspec

from rolloutkit.protocols import ActionDemand, ActionOrder


class PoolLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Capacity of one kind of action. `starts_per_second` spaces the starts evenly."""

    slots: Annotated[int, msgspec.Meta(ge=1)] | None = None  # None = no limit
    starts_per_second: Annotated[float, msgspec.Meta(gt=0)] | None = None


class Slot:
    """The right to run one action; release it when the action ends. Idempotent."""

    __slots__ = ("_pool",)

    def __init__(self, pool: _Pool) -> None:
        self._pool: _Pool | None = pool

    def release(self) -> None:
        if self._pool is not None:
            pool, self._pool = self._pool, None
            pool.give_back()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release()


class ActionScheduler:
    """Grants slots. `limits_of` names the capacity of a kind when it is first asked for.

    `on_pool` hears of each kind then.
    """

    def __init__(
        self,
        limits_of: Callable[[str], PoolLimits],
        make_order: Callable[[], ActionOrder],
        on_pool: Callable[[str, PoolLimits], None] | None = None,
    ) -> None:
        self._limits_of = limits_of
        self._on_pool = on_pool
        self._make_order = make_order
        self._pools: dict[str, _Pool] = {}
        self._num_demands = 0

    def next_seq(self) -> int:
        """A number for a new demand: its place in the order of arrival."""
        self._num_demands += 1
        return self._num_demands

    def acquire_now(self, demand: ActionDemand) -> Slot | None:
        """A slot of the demand's kind, if one is free and nobody waits for it; else None, and
        `acquire` waits.
        """
        pool = self._pool_of(demand.kind)
        return Slot(pool) if pool.acquire_now() else None

    async def acquire(self, demand: ActionDemand) -> Slot:
        """Wait for a slot of the demand's kind: O(log n) in the demands that wait for that kind.

        Cancelling withdraws the demand; a slot granted in the same tick goes to the next in order.
        """
        pool = self._pool_of(demand.kind)
        if not pool.acquire_now():
            await pool.acquire(demand)
        return Slot(pool)

    def _pool_of(self, kind: str) -> _Pool:
        pool = self._pools.get(kind)
        return self._open(kind) if pool is None else pool

    def _open(self, kind: str) -> _Pool:
        limits = self._limits_of(kind)
        if self._on_pool is not None:
            self._on_pool(kind, limits)
        pool = self._pools[kind] = _Pool(limits, self._make_order())
        return pool

    @property
    def num_waiting(self) -> Mapping[str, int]:
        """Demands waiting, by kind."""
        return {kind: pool.num_waiting for kind, pool in self._pools.items()}

    @property
    def num_running(self) -> Mapping[str, int]:
        """Slots in use, by kind."""
        return {kind: pool.num_running for kind, pool in self._pools.items()}


class _Pool:
    """One kind's slots. Invariants: num_running <= slots; nobody waits while a start is
    possible.
    """

    __slots__ = (
        "_interval",
        "_loop",
        "_next_start",
        "_order",
        "_slots",
        "_timer",
        "_waiters",
        "num_running",
    )

    def __init__(self, limits: PoolLimits, order: ActionOrder) -> None:
        self._loop = asyncio.get_running_loop()
        self._slots = limits.slots
        self._interval = 1.0 / limits.starts_per_second if limits.starts_per_second else 0.0
        self._next_start = float("-inf")
        self._order = order
        self._waiters: dict[int, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.num_running = 0

    @property
    def num_waiting(self) -> int:
        return len(self._waiters)

    def acquire_now(self) -> bool:
        time = self._loop.time()
        if self._waiters or not self._can_start(time):
            return False
        self._start(time)
        return True

    async def acquire(self, demand: ActionDemand) -> None:
        loop = self._loop
        granted = self._waiters[demand.seq] = loop.create_future()
        self._order.push(demand, loop.time())
        self._dispatch()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.cancelled():  # never granted
                self._waiters.pop(demand.seq, None)
                self._order.discard(demand)
            else:
                self.give_back()
            raise

    def give_back(self) -> None:
        self.num_running -= 1
        if self._waiters:
            self._dispatch()

    def _can_start(self, time: float) -> bool:
        return (self._slots is None or self.num_running < self._slots) and time >= self._next_start

    def _start(self, time: float) -> None:
        self.num_running += 1
        if self._interval:
            self._next_start = time + self._interval

    def _dispatch(self) -> None:
        time = self._loop.time()
        while self._waiters and self._can_start(time):
            demand = self._order.pop(time)
            if demand is None:
                return
            granted = self._waiters.pop(demand.seq)
            if not granted.cancelled():  # cancelled, but its coroutine has yet to run
                self._start(time)
                granted.set_result(None)
        is_rate_bound = self._slots is None or self.num_running < self._slots
        if self._waiters and is_rate_bound and self._timer is None:
            self._timer = self._loop.call_at(self._next_start, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._dispatch()
