"""Who may live: one shell that grants memory and a session together, and parks between turns.

Three counts never exceed their limits: samples alive, parked ones included (memory of the engines),
open sessions per environment, and, since both are granted in one step, no sample holds one while it
waits for the other. The order decides who is next, the placement on which worker it lives, and the
worker's `Parking` who is held back when contexts outgrow its memory. Without a memory budget, a
limit that was lowered below the samples alive parks the latest admitted of them between two turns.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from rolloutkit.admission.parking import MemoryBudget, Parking
from rolloutkit.clock import now
from rolloutkit.protocols import AdmissionOrder, Demand, Placement


class AdmissionLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many samples live at once, how many sessions each environment may have open, and who is
    next: `auto` is `longest_first` where the guard trusts the estimate, else `dataset`.

    `control` says what else bounds the samples alive: nothing (`fixed`), `reference` samples on
    each worker (`rolloutkit plan` tells the number), or a window around it that follows what is
    computed again (`adaptive`). `expected_hits` is the plan's share of turns that find their cache.
    """

    order: Literal["auto", "dataset", "longest_first", "pioneers", "clairvoyant"] = "auto"
    max_samples: Annotated[int, msgspec.Meta(ge=1)] = 64
    max_sessions: dict[
        str, Annotated[int, msgspec.Meta(ge=1)]
    ] = {}  # by environment; absent = no limit
    control: Literal["fixed", "reference", "adaptive"] = "fixed"
    reference: Annotated[int, msgspec.Meta(ge=1)] | None = None  # per worker
    expected_hits: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    lookahead: Annotated[int, msgspec.Meta(ge=1)] = (
        16_384  # samples taken from the source in advance
    )


class Permit:
    """The right of one sample to live: a place in memory on `worker`, and one open session.

    The place is released when the last turn ends, the session when it is closed; in between the
    sample may be parked. Both releases are idempotent and never wait.
    """

    __slots__ = (
        "_has_place",
        "_has_session",
        "_queue",
        "_resumed",
        "admitted_at",
        "demand",
        "is_parked",
        "seq",
        "worker",
    )

    def __init__(
        self,
        queue: AdmissionQueue,
        demand: Demand,
        seq: int,
        worker: str | None,
        admitted_at: float,
    ) -> None:
        self._queue = queue
        self._has_place = True
        self._has_session = True
        self._resumed: list[asyncio.Future[None]] = []  # whoever waits: the sample's chains
        self.demand = demand
        self.seq = seq
        self.worker = worker
        self.admitted_at = admitted_at
        self.is_parked = False

    def grow(self, context_tokens: int) -> None:
        """Between two turns: the next prompt will be so long. May park the sample."""
        if self._has_place and not self.is_parked:
            self.is_parked = self._queue.must_park(self, context_tokens)

    async def resume(self) -> None:
        """Wait until the sample is not parked. Cancelling leaves that as it is."""
        if not self.is_parked:
            return
        resumed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._resumed.append(resumed)
        await resumed

    def unpark(self) -> None:
        """Called by the queue: there is memory again."""
        self.is_parked = False
        for resumed in self._resumed:
            if not resumed.done():
                resumed.set_result(None)
        self._resumed.clear()

    def release(self) -> None:
        """Return the place in memory."""
        if self._has_place:
            self._has_place = False
            self.is_parked = False
            self._queue.return_place(self)

    def release_session(self) -> None:
        """Return the place among the open sessions."""
        if self._has_session:
            self._has_session = False
            self._queue.return_session(self.demand.environment)


class AdmissionQueue:
    """Holds demands, not coroutines: `push` them, and await `next` for the permit of the one that
    lives next.

    One coroutine awaits `next` at a time. Admission costs O(log n) in the number of waiting
    samples, parking up to O(n) in those parked on one worker. Without a placement permits name no
    worker; without a budget nobody is parked.
    """

    def __init__(
        self,
        limits: AdmissionLimits,
        order: AdmissionOrder,
        *,
        placement: Placement | None = None,
        budget: MemoryBudget | None = None,
    ) -> None:
        self._order = order
        self._placement = placement
        self._budget = budget
        self._parkings: dict[str | None, Parking] = {}  # by worker
        self._parked: dict[int, Permit] = {}  # by order of admission
        self._active: list[int] = []  # orders of admission, ascending: samples not parked
        self._max_samples = limits.max_samples
        self._max_sessions = limits.max_sessions
        self._num_alive = 0
        self._num_sessions: dict[str, int] = {}
        self._num_admitted = 0
        self._wake: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        """Demands that wait to be admitted."""
        return len(self._order)

    @property
    def num_alive(self) -> int:
        """Samples admitted and not over, parked ones included."""
        return self._num_alive

    @property
    def num_parked(self) -> int:
        return len(self._parked)

    @property
    def num_sessions(self) -> Mapping[str, int]:
        return self._num_sessions

    @property
    def max_samples(self) -> int:
        return self._max_samples

    @max_samples.setter
    def max_samples(self, value: int) -> None:
        """Growing resumes and admits at once; shrinking takes effect as turns and samples end."""
        self._max_samples = max(1, value)
        if self._budget is None:
            self._resume_first()
        self._wake_up()

    def push(self, demand: Demand) -> None:
        """Ask for admission."""
        self._order.push(demand, now())
        self._wake_up()

    def discard(self, demand: Demand) -> None:
        """Withdraw a demand; nothing happens if it was admitted."""
        self._order.discard(demand)

    async def next(self) -> Permit:
        """Wait for room and return the permit of the sample that the order names. Cancelling loses
        nothing.
        """
        while (permit := self._admit()) is None:
            self._wake = asyncio.get_running_loop().create_future()
            try:
                await self._wake
            finally:
                self._wake = None
        return permit

    def _admit(self) -> Permit | None:
        if self._num_alive >= self._max_samples:
            return None
        demand = self._order.pop(_WithRoom(self._num_sessions, self._max_sessions), now())
        if demand is None:
            return None
        environment = demand.environment
        worker = None if self._placement is None else self._placement.place(demand)
        self._num_alive += 1
        self._num_sessions[environment] = self._num_sessions.get(environment, 0) + 1
        self._num_admitted += 1
        self._active.append(self._num_admitted)
        return Permit(self, demand, self._num_admitted, worker, now())

    # What permits call.

    def must_park(self, permit: Permit, context_tokens: int) -> bool:
        """Whether the sample must wait with its next prompt, which will be so long."""
        if self._budget is None:
            is_parked = bisect_left(self._active, permit.seq) >= self._max_samples
            if is_parked:
                self._park(permit)
            return is_parked
        parking = self._parkings.get(permit.worker)
        if parking is None:
            parking = self._parkings[permit.worker] = Parking(self._budget)
        is_parked = parking.grow(permit.seq, context_tokens)
        if is_parked:
            self._park(permit)
        return is_parked

    def return_place(self, permit: Permit) -> None:
        self._num_alive -= 1
        if self._parked.pop(permit.seq, None) is None:
            del self._active[bisect_left(self._active, permit.seq)]
        if self._placement is not None and permit.worker is not None:
            self._placement.leave(permit.demand, permit.worker)
        parking = self._parkings.get(permit.worker)
        if parking is not None:
            for seq in parking.remove(permit.seq):
                self._unpark(seq)
        elif self._budget is None:
            self._resume_first()
        self._wake_up()

    def return_session(self, environment: str) -> None:
        self._num_sessions[environment] -= 1
        self._wake_up()

    def _park(self, permit: Permit) -> None:
        self._parked[permit.seq] = permit
        del self._active[bisect_left(self._active, permit.seq)]

    def _unpark(self, seq: int) -> None:
        insort(self._active, seq)
        self._parked.pop(seq).unpark()

    def _resume_first(self) -> None:
        """Let the parked ones on that were admitted first, as far as the limit goes."""
        while self._parked and len(self._active) < self._max_samples:
            self._unpark(min(self._parked))

    def _wake_up(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


class _WithRoom:
    """The environments that may open one more session, as a container."""

    def __init__(self, num_sessions: Mapping[str, int], max_sessions: Mapping[str, int]) -> None:
        self._num_sessions = num_sessions
        self._max_sessions = max_sessions

    def __contains__(self, environment: object) -> bool:
        limit = self._max_sessions.get(str(environment))
        return limit is None or self._num_sessions.get(str(environment), 0) < limit
