"""Who may live: one shell that grants memory and a session together, and parks between turns.

Three counts never exceed their limits: samples alive (memory of the engines), open sessions per
environment, and, since both are granted in one step, no sample holds one while it waits for the
other. The order decides who is next; a parked sample resumes before anything new is admitted, the
one admitted earliest first.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Annotated, Literal

import msgspec

from rolloutkit.clock import now
from rolloutkit.protocols import AdmissionOrder, Demand


class AdmissionLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many samples live at once, how many sessions each environment may have open, and who is
    next: `auto` is `longest_first` where the guard trusts the estimate, else `dataset`.
    """

    order: Literal["auto", "dataset", "longest_first", "pioneers", "clairvoyant"] = "auto"
    max_samples: Annotated[int, msgspec.Meta(ge=1)] = 64
    max_sessions: dict[
        str, Annotated[int, msgspec.Meta(ge=1)]
    ] = {}  # by environment; absent = no limit
    lookahead: Annotated[int, msgspec.Meta(ge=1)] = (
        16_384  # samples taken from the source in advance
    )


class _Place(Enum):
    HELD = "held"
    PARKED = "parked"
    RELEASED = "released"


class Permit:
    """The right of one sample to live: a place in memory on `worker`, and one open session.

    The place can be parked between turns and is released when the last turn ends; the session is
    released when it is closed. Both releases are idempotent and never wait.
    """

    __slots__ = (
        "_has_session",
        "_place",
        "_queue",
        "_resumed",
        "admitted_at",
        "demand",
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
        self._place = _Place.HELD
        self._has_session = True
        self._resumed: asyncio.Future[None] | None = None
        self.demand = demand
        self.seq = seq
        self.worker = worker
        self.admitted_at = admitted_at

    @property
    def is_parked(self) -> bool:
        return self._place is _Place.PARKED

    def park(self) -> None:
        """Give up the place in memory until `resume`; only between two turns."""
        if self._place is _Place.HELD:
            self._place = _Place.PARKED
            self._queue.return_place()

    async def resume(self) -> None:
        """Wait until the parked sample has a place again; at once if it was not parked.

        Cancelling leaves the permit parked, and a place granted in the same tick is returned.
        """
        if self._place is not _Place.PARKED:
            return
        if self._queue.take_place():
            self._place = _Place.HELD
            return
        resumed = self._resumed = asyncio.get_running_loop().create_future()
        self._queue.wait_for_place(self)
        try:
            await resumed
        except asyncio.CancelledError:
            if not resumed.cancelled():  # granted and cancelled in the same tick
                self._place = _Place.PARKED
                self._queue.return_place()
            raise
        finally:
            self._resumed = None

    @property
    def is_waiting(self) -> bool:
        """Whether its owner waits in `resume`."""
        return self._resumed is not None and not self._resumed.done()

    def grant_place(self) -> bool:
        """Called by the queue: hand a free place to the waiting owner; False if it gave up."""
        if self._resumed is None or self._resumed.done():
            return False
        self._place = _Place.HELD
        self._resumed.set_result(None)
        return True

    def release(self) -> None:
        """Return the place in memory."""
        if self._place is _Place.HELD:
            self._place = _Place.RELEASED
            self._queue.return_place()
        self._place = _Place.RELEASED

    def release_session(self) -> None:
        """Return the place among the open sessions."""
        if self._has_session:
            self._has_session = False
            self._queue.return_session(self.demand.environment)


class AdmissionQueue:
    """Holds demands, not coroutines: `push` them, and await `next` for the permit of the one that
    lives next.

    One coroutine awaits `next` at a time. Everything costs O(log n) in the number of waiting
    samples.
    """

    def __init__(
        self,
        limits: AdmissionLimits,
        order: AdmissionOrder,
        place: Callable[[Demand], str | None] | None = None,
    ) -> None:
        self._order = order
        self._choose_worker = place
        self._max_samples = limits.max_samples
        self._max_sessions = limits.max_sessions
        self._num_alive = 0
        self._num_sessions: dict[str, int] = {}
        self._num_admitted = 0
        self._parked: list[tuple[int, Permit]] = []  # heap by order of admission
        self._wake: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        """Demands that wait to be admitted."""
        return len(self._order)

    @property
    def num_alive(self) -> int:
        return self._num_alive

    @property
    def num_sessions(self) -> Mapping[str, int]:
        return self._num_sessions

    @property
    def max_samples(self) -> int:
        return self._max_samples

    @max_samples.setter
    def max_samples(self, value: int) -> None:
        """Growing admits at once; shrinking takes effect as samples end or park."""
        self._max_samples = max(1, value)
        self._dispatch()

    def push(self, demand: Demand) -> None:
        """Ask for admission."""
        self._order.push(demand, now())
        self._wake_up()

    def discard(self, demand: Demand) -> None:
        """Withdraw a demand; nothing happens if it was admitted."""
        self._order.discard(demand)

    def pop_waiting(self) -> Demand | None:
        """Withdraw and return some waiting demand, whatever has room; for winding down."""
        return self._order.pop(_Everything(), now())

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
        if self._num_alive >= self._max_samples or self._parked_waits():
            return None
        demand = self._order.pop(_WithRoom(self._num_sessions, self._max_sessions), now())
        if demand is None:
            return None
        environment = demand.environment
        self._num_alive += 1
        self._num_sessions[environment] = self._num_sessions.get(environment, 0) + 1
        self._num_admitted += 1
        worker = self._choose_worker(demand) if self._choose_worker is not None else None
        return Permit(self, demand, self._num_admitted, worker, now())

    # What permits call.

    def take_place(self) -> bool:
        """A place for a parked permit, if one is free and no earlier one waits."""
        if self._num_alive >= self._max_samples or self._parked_waits():
            return False
        self._num_alive += 1
        return True

    def wait_for_place(self, permit: Permit) -> None:
        heapq.heappush(self._parked, (permit.seq, permit))

    def return_place(self) -> None:
        self._num_alive -= 1
        self._dispatch()

    def return_session(self, environment: str) -> None:
        self._num_sessions[environment] -= 1
        self._wake_up()

    def _parked_waits(self) -> bool:
        """Whether a parked sample waits for a place; forgets those that gave up."""
        while self._parked and not self._parked[0][1].is_waiting:
            heapq.heappop(self._parked)
        return bool(self._parked)

    def _dispatch(self) -> None:
        while self._num_alive < self._max_samples and self._parked_waits():
            _, permit = heapq.heappop(self._parked)
            if permit.grant_place():
                self._num_alive += 1
        self._wake_up()

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


class _Everything:
    def __contains__(self, environment: object) -> bool:
        return True
