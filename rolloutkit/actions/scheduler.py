"""When an action may run: slots and start rates per kind of action, and pools that kinds share.

A kind is a pool of equal slots (`bash`, `bfcl.step`), of which every action takes one. What else it
occupies (`cpu=2`) comes from pools with a name. Everything that an action needs is granted at once
or not at all, so that none holds places while it waits; an action inside another does, and what it
may ask for is limited (`actions/nesting.py`). Who is first, the orders and `actions/pools.py` say;
the scheduler owns the waiters.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Self, TypeAlias

import msgspec

from rolloutkit.actions.nesting import NestingOrder
from rolloutkit.actions.pools import MAX_OVERTAKES, ActionQueue, Contention, Needs, Pool, Rank
from rolloutkit.errors import ProgramError
from rolloutkit.protocols import ActionDemand, ActionOrder

Places = Annotated[int, msgspec.Meta(ge=1)]


class PoolLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Capacity of one kind of action. `starts_per_second` spaces the starts evenly; `needs` are
    places that each action of the kind takes in pools with a name.
    """

    slots: Places | None = None  # None = no limit
    starts_per_second: Annotated[float, msgspec.Meta(gt=0)] | None = None
    needs: dict[str, Places] = {}


class Slot:
    """The right to run one action; release it when the action ends. Idempotent.

    `inside` is the slot of the action around it.
    """

    __slots__ = ("_inside", "_line", "_queue")

    def __init__(self, line: _Line, inside: Slot | None) -> None:
        self._line: _Line | None = line
        self._queue = line.queue
        self._inside = inside

    @property
    def num_slots(self) -> int:
        """Of its kind: one, or none inside an action that holds one."""
        return self._queue.slots

    @property
    def needs(self) -> dict[str, int]:
        """Places in pools with a name."""
        return self._queue.weights

    def release(self) -> None:
        if self._line is not None:
            line, self._line = self._line, None
            line.give_back()

    def held(self) -> dict[Pool, int]:
        """Places that it still holds, and those around it."""
        held = {} if self._inside is None else self._inside.held()
        if self._line is not None:
            held.update(self._queue.needs)
        return held

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release()


class ActionScheduler:
    """Grants slots. `limits_of` names the capacity of a kind when it is first asked for, `pools`
    the places of each pool with a name.

    `on_pool` hears of each kind then. `rank` is the key by which those that ask for different
    places compare, larger first; the order of a queue compares the others. Costs O(log n) in the
    actions that wait for the same, and O(q) in the different sorts of asking that wait, where they
    share a pool: keep weights to few values.
    """

    def __init__(
        self,
        limits_of: Callable[[str], PoolLimits],
        make_order: Callable[[], ActionOrder],
        on_pool: Callable[[str, PoolLimits], None] | None = None,
        *,
        pools: Mapping[str, int] | None = None,
        rank: Rank | None = None,
        max_overtakes: int = MAX_OVERTAKES,
    ) -> None:
        self._limits_of = limits_of
        self._on_pool = on_pool
        self._make_order = make_order
        self._rank = rank
        self._max_overtakes = max_overtakes
        self._nesting = NestingOrder()
        self._pools = {name: Pool(name, places) for name, places in (pools or {}).items()}
        for pool in self._pools.values():
            self._nesting.add(pool)
        self._kinds: dict[str, Needs] = {}  # what an action of the kind needs, a slot first
        self._lines: dict[Needs, _Line] = {}
        self._by_kind: dict[str, _Line] = {}  # of those who ask for no more than their kind needs
        self._waiters: _Waiters = {}
        self._shared = self._dispatcher()
        self._num_demands = 0

    def next_seq(self) -> int:
        """A number for a new demand: its place in the order of arrival."""
        self._num_demands += 1
        return self._num_demands

    def acquire_now(
        self,
        demand: ActionDemand,
        needs: Mapping[str, int] | None = None,
        inside: Slot | None = None,
    ) -> Slot | None:
        """The same as `acquire` where nobody has to wait; else None, and nothing is taken."""
        line = self._line(demand.kind, needs, inside)
        return Slot(line, inside) if line.acquire_now() else None

    async def acquire(
        self,
        demand: ActionDemand,
        needs: Mapping[str, int] | None = None,
        inside: Slot | None = None,
    ) -> Slot:
        """Wait for a slot of the demand's kind and all that goes with it.

        `needs` go before those of its kind. `inside` is the slot of the action that asks, if one
        does. Raises ProgramError for needs that can never be met, and for a nesting that could
        deadlock. Cancelling withdraws the demand; what was granted in the same tick goes to the
        next in order.
        """
        line = self._line(demand.kind, needs, inside)
        if not line.acquire_now():
            await line.acquire(demand)
        return Slot(line, inside)

    @property
    def num_waiting(self) -> int:
        """Demands waiting, of all kinds."""
        return len(self._waiters)

    @property
    def num_running(self) -> Mapping[str, int]:
        """Slots in use, by kind."""
        return {kind: needs[0][0].used for kind, needs in self._kinds.items()}

    @property
    def num_taken(self) -> Mapping[str, int]:
        """Places in use, by pool with a name."""
        return {name: pool.used for name, pool in self._pools.items()}

    def _line(self, kind: str, needs: Mapping[str, int] | None, inside: Slot | None) -> _Line:
        if not needs and inside is None:
            line = self._by_kind.get(kind)
            if line is not None:
                return line
        if kind not in self._kinds:
            self._open(kind)
        wanted = self._wanted(kind, needs) if needs else self._kinds[kind]
        held = None if inside is None else inside.held()
        if held:
            wanted = self._nesting.inner_needs(wanted, held)
        line = self._lines.get(wanted)
        if line is None:
            line = self._add(wanted)
        if not needs and not held:
            self._by_kind[kind] = line
        return line

    def _open(self, kind: str) -> None:
        limits = self._limits_of(kind)
        if kind in self._pools:
            raise ProgramError(
                f"a kind of action and a pool of actions.pools are both called {kind!r}: rename one"
            )
        if self._on_pool is not None:
            self._on_pool(kind, limits)
        interval = 1.0 / limits.starts_per_second if limits.starts_per_second else 0.0
        pool = Pool(kind, limits.slots, is_kind=True, interval=interval)
        self._nesting.add(pool)
        self._kinds[kind] = ((pool, 1),)
        self._kinds[kind] = self._wanted(kind, limits.needs)

    def _wanted(self, kind: str, needs: Mapping[str, int]) -> Needs:
        """A slot of the kind, and its needs with `needs` on top, by name."""
        own, *others = self._kinds[kind]
        weights = {pool.name: weight for pool, weight in others} | dict(needs)
        for name, weight in needs.items():
            pool = self._pools.get(name)
            if pool is None:
                known = ", ".join(self._pools) or "none"
                raise ProgramError(
                    f"{kind} needs {weight} of {name}, and no pool is called so: declare it under "
                    f"actions.pools, which has: {known}"
                )
            if not 1 <= weight <= pool.capacity:
                raise ProgramError(
                    f"{kind} needs {weight} of {name}, which has {pool.capacity}: ask for 1 to "
                    f"{pool.capacity}, or raise actions.pools.{name}"
                )
        return (own, *((self._pools[name], weight) for name, weight in sorted(weights.items())))

    def _add(self, needs: Needs) -> _Line:
        """A new line: alone while nobody shares a pool with it, else among all those who share."""
        queue = ActionQueue(needs, self._make_order())
        rivals = [line for line in self._lines.values() if queue.shares_pool(line.queue)]
        line = self._lines[needs] = _Line(queue, self._dispatcher(), self._waiters)
        for rival in rivals:
            queue.rivals.append(rival.queue)
            rival.queue.rivals.append(queue)
        if rivals:
            for one in (line, *rivals):
                one.join(self._shared)
        return line

    def _dispatcher(self) -> _Dispatcher:
        return _Dispatcher(Contention(self._rank, self._max_overtakes), self._waiters)


_Waiters: TypeAlias = dict[int, asyncio.Future[None]]
"""Of all demands that wait, by `seq`."""


class _Line:
    """One queue's way in: its waiters, and who dispatches them."""

    __slots__ = ("_dispatcher", "_loop", "_waiters", "queue")

    def __init__(self, queue: ActionQueue, dispatcher: _Dispatcher, waiters: _Waiters) -> None:
        self._loop = asyncio.get_running_loop()
        self.queue = queue
        self._dispatcher = dispatcher
        self._waiters = waiters
        dispatcher.contention.add(queue)

    def join(self, dispatcher: _Dispatcher) -> None:
        """Be dispatched together with others from here on. Does nothing the second time."""
        if self._dispatcher is not dispatcher:
            self._dispatcher.contention.queues.clear()  # it was alone
            self._dispatcher = dispatcher
            dispatcher.contention.add(self.queue)

    def acquire_now(self) -> bool:
        now = self._loop.time()
        queue, contention = self.queue, self._dispatcher.contention
        if len(queue.order) or not contention.may_start_at_once(queue, now):
            return False
        contention.started(queue, now)
        return True

    async def acquire(self, demand: ActionDemand) -> None:
        loop = self._loop
        granted = self._waiters[demand.seq] = loop.create_future()
        self.queue.order.push(demand, loop.time())
        self._dispatcher.dispatch(loop)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.cancelled():  # never granted
                self._withdraw(demand)
            else:
                self.give_back()
            raise

    def give_back(self) -> None:
        for pool, weight in self.queue.needs:
            pool.used -= weight
        if self._waiters and (self.queue.rivals or len(self.queue.order)):
            self._dispatcher.dispatch(self._loop)

    def _withdraw(self, demand: ActionDemand) -> None:
        if self._waiters.pop(demand.seq, None) is None:
            return
        order = self.queue.order
        order.discard(demand)
        if not len(order):
            self._dispatcher.contention.emptied(self.queue)
            self._dispatcher.dispatch(self._loop)


class _Dispatcher:
    """Wakes those whose turn it is. Invariant: nobody waits who may start."""

    __slots__ = ("_timer", "_waiters", "contention")

    def __init__(self, contention: Contention, waiters: _Waiters) -> None:
        self.contention = contention
        self._waiters = waiters
        self._timer: asyncio.TimerHandle | None = None

    def dispatch(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        contention = self.contention
        while (queue := contention.next(now)) is not None:
            demand = queue.order.pop(now)
            assert demand is not None, "somebody waits in it"
            granted = self._waiters.pop(demand.seq)
            if not granted.cancelled():
                contention.started(queue, now)
                granted.set_result(None)
            elif not len(queue.order):  # cancelled, but its coroutine has yet to run
                contention.emptied(queue)
        self._arm(loop, now)

    def _arm(self, loop: asyncio.AbstractEventLoop, now: float) -> None:
        """Come back when a start rate lets somebody start."""
        at = self.contention.next_start(now)
        timer = self._timer
        if at == math.inf or (timer is not None and timer.when() <= at):
            return
        if timer is not None:
            timer.cancel()
        self._timer = loop.call_at(at, self._on_timer, loop)

    def _on_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        self.dispatch(loop)
