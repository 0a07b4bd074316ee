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
from rolloutkit.errors import ConfigError
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


def refuse_unplanned(limits: AdmissionLimits) -> None:
    """Raise ConfigError where the samples of a worker are to be bounded and nobody says by what."""
    if limits.control != "fixed" and limits.reference is None:
        raise ConfigError(
            f"admission.control={limits.control} needs admission.reference, the samples to keep "
            "alive on each worker: ask rolloutkit plan"
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
            self._queue.look_after(self, context_tokens)

    async def resume(self) -> None:
        """Wait until the sample is not parked. Cancelling leaves that as it is."""
        if not self.is_parked:
            return
        resumed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._resumed.append(resumed)
        await resumed

    def wake(self) -> None:
        """Called by the queue: there is memory again."""
        for resumed in self._resumed:
            if not resumed.done():
                resumed.set_result(None)
        self._resumed.clear()

    def release(self) -> None:
        """Return the place in memory."""
        if self._has_place:
            self._has_place = False
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
    worker; without a budget only a lowered limit parks anybody.
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
        self._places: dict[int, Permit] = {}  # by order of admission: those that hold one
        self._active: list[int] = []  # of them, those not parked, in the same order
        self._parked: list[int] = []
        self._max_samples = limits.max_samples
        self._max_sessions = limits.max_sessions
        self._num_alive = 0
        self._num_sessions: dict[str, int] = {}
        self._num_admitted = 0
        self._wake: asyncio.Future[None] | None = None
        if placement is not None:
            placement.watch(self._on_workers_changed)

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
        permit = Permit(self, demand, self._num_admitted, worker, now())
        self._places[permit.seq] = permit
        self._active.append(permit.seq)
        return permit

    # What permits call.

    def look_after(self, permit: Permit, context_tokens: int) -> None:
        """The sample's next prompt will be so long: it may move to another worker, or be parked."""
        if self._placement is not None:
            self._move(permit, self._placement.next_turn(permit.demand, context_tokens))
        if self._budget is None:
            if bisect_left(self._active, permit.seq) >= self._max_samples:
                self._set_parked(permit, is_parked=True)
        elif self._parking(permit.worker).grow(permit.seq, context_tokens):
            self._set_parked(permit, is_parked=True)
            self._find_room(permit, self._budget.need(context_tokens))

    def return_place(self, permit: Permit) -> None:
        self._num_alive -= 1
        del self._places[permit.seq]
        if permit.is_parked:
            self._set_parked(permit, is_parked=False)
        del self._active[bisect_left(self._active, permit.seq)]
        if self._placement is not None:
            self._placement.leave(permit.demand)
        parking = self._parkings.get(permit.worker)
        if parking is not None:
            parking.take(permit.seq)
            self._fill(permit.worker)
        elif self._budget is None:
            self._resume_first()
        self._wake_up()

    def return_session(self, environment: str) -> None:
        self._num_sessions[environment] -= 1
        self._wake_up()

    # Workers.

    def _parking(self, worker: str | None) -> Parking:
        parking = self._parkings.get(worker)
        if parking is None:
            assert self._budget is not None
            parking = self._parkings[worker] = Parking(self._budget)
        return parking

    def _set_parked(self, permit: Permit, *, is_parked: bool) -> None:
        permit.is_parked = is_parked
        left, joined = (self._active, self._parked) if is_parked else (self._parked, self._active)
        del left[bisect_left(left, permit.seq)]
        insort(joined, permit.seq)
        if self._placement is not None:
            self._placement.park(permit.demand, is_parked=is_parked)

    def _unpark(self, permit: Permit) -> None:
        self._set_parked(permit, is_parked=False)
        permit.wake()

    def _resume_first(self) -> None:
        """Let the parked ones on that were admitted first, as far as the limit goes."""
        while self._parked and len(self._active) < self._max_samples:
            self._unpark(self._places[self._parked[0]])

    def _move(self, permit: Permit, worker: str | None) -> None:
        """The sample's home is another one: its place goes along, and others may have its room."""
        left = permit.worker
        if worker is None or worker == left:
            return
        permit.worker = worker
        if self._budget is not None:
            need = self._parking(left).take(permit.seq)
            if need is not None:
                self._parking(worker).put(permit.seq, need, is_parked=permit.is_parked)
                self._fill(left)

    def _find_room(self, permit: Permit, need: int) -> None:
        """Let a sample that was parked go on elsewhere, where the placement wants that."""
        if self._placement is None:
            return
        for worker in self._placement.workers():
            has_room = worker != permit.worker and self._parking(worker).has_room(need)
            if has_room and self._adopt(permit, worker):
                return

    def _adopt(self, permit: Permit, worker: str) -> bool:
        if self._placement is None or not self._placement.adopt(permit.demand, worker):
            return False
        need = self._parking(permit.worker).take(permit.seq)
        assert need is not None, "who is parked has an entry"
        permit.worker = worker
        self._parking(worker).put(permit.seq, need, is_parked=False)
        self._unpark(permit)
        return True

    def _fill(self, worker: str | None) -> None:
        """Room came free: its own parked samples first, then those of others."""
        parking = self._parking(worker)
        for seq in parking.resume():
            self._unpark(self._places[seq])
        while worker is not None and self._parked:
            eldest = min(
                (one for parked in self._parkings.values() if (one := parked.eldest_parked())),
                default=None,
            )
            if eldest is None or not parking.has_room(eldest[1]):
                return
            if not self._adopt(self._places[eldest[0]], worker):
                return

    def _on_workers_changed(self) -> None:
        """Workers came, went, or changed: follow those who have other homes, and share the room."""
        placement = self._placement
        assert placement is not None
        for permit in list(self._places.values()):
            self._move(permit, placement.home(permit.demand))
        if self._budget is not None:
            for worker in placement.workers():
                self._parking(worker).memory_share = placement.memory_share(worker)
                self._fill(worker)

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
