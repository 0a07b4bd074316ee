"""Why a sample waited: each of its waits, what was in the way, and by which rule it was chosen.

Computed from the trace, which holds every decision: whoever was served between a sample's asking
and its turn came before it. Nothing has to be kept while a run goes on but the key that an action
was served by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from rolloutkit.errors import ConfigError
from rolloutkit.record.events import (
    Action,
    CallHedged,
    Event,
    OrderChosen,
    PoolOpened,
    RunStarted,
    SampleAdmitted,
    SampleEnded,
    SampleResumed,
)

ADMISSION = "admission"
MEMORY = "memory"  # between two turns
NUM_NAMED = 5  # of those that came before


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who was served while the sample waited, and by which key."""

    sample_id: str
    key: float | None = None


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """One wait. Times are seconds since the run started."""

    what: str  # a kind of action, "admission" or "memory"
    turn: int | None = None  # finished turns
    asked_at: float
    seconds: float
    order: str
    key: float | None = None  # by which it was served; larger is sooner
    capacity: int | None = None  # slots of the kind, or samples that may live
    needs: dict[str, str] = {}  # what else it needed: "2 of 16" by pool
    num_holding: int = 0  # held a slot when it asked and gave it back before its turn came
    num_served: int = 0  # came before it
    served: tuple[Served, ...] = ()  # the first of these


class Stall(msgspec.Struct, frozen=True, kw_only=True):
    """A model call or an action that was silent for so long that it was issued again."""

    what: str
    turn: int
    hedged_at: float
    stalled_seconds: float
    seconds: float  # until it was settled which of the two is kept
    outcome: str  # "first", "reissue" or "neither"
    received_tokens: int


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """A sample's waits in the order in which it asked, and what was hedged."""

    sample_id: str
    status: str
    finished_at: float | None
    waits: tuple[Wait, ...]
    stalls: tuple[Stall, ...] = ()


def explain(read: Callable[[], Iterable[Event]], sample_id: str) -> Explanation:
    """Why the sample waited. Reads the events twice; O(events times the sample's waits).

    Raises ConfigError for a sample that the run does not know.
    """
    own = _Own(sample_id)
    for event in read():
        own.add(event)
    if not own.is_known:
        raise ConfigError(f"the run has no sample {sample_id!r}: write TASK#INDEX, as in task-3#0")
    meanwhile = [_Meanwhile(wait) for wait in own.waits]
    for event in read():
        match event:
            case Action() | SampleAdmitted() if event.sample_id != sample_id:
                for one in meanwhile:
                    one.add(event)
            case _:
                pass
    waits = sorted((one.told() for one in meanwhile), key=lambda wait: wait.asked_at)
    return Explanation(
        sample_id=sample_id,
        status=own.status,
        finished_at=own.finished_at,
        waits=tuple(waits),
        stalls=tuple(own.stalls),
    )


class _Own:
    """What the trace says of the sample itself, and of the rules that were in force."""

    def __init__(self, sample_id: str) -> None:
        self._sample_id = sample_id
        self._started = RunStarted(t=0.0)
        self._slots: dict[str, int] = {}
        self._orders: list[OrderChosen] = []
        self.is_known = False
        self.status = "running"
        self.finished_at: float | None = None
        self.waits: list[Wait] = []
        self.stalls: list[Stall] = []

    def add(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._started = event
                self._slots.update(event.slots)
            case PoolOpened():
                self._slots[event.kind] = event.slots
            case OrderChosen():
                self._orders.append(event)
            case CallHedged():
                if event.sample_id == self._sample_id:
                    self.stalls.append(_stall(event))
            case SampleAdmitted() | Action() | SampleResumed() | SampleEnded():
                if event.sample_id == self._sample_id:
                    self.is_known = True
                    self._add_own(event)
            case _:
                pass

    def _add_own(self, event: SampleAdmitted | Action | SampleResumed | SampleEnded) -> None:
        match event:
            case SampleEnded():
                self.status, self.finished_at = event.status.value, event.t
            case Action():
                self._wait(
                    event.kind,
                    event.t - event.seconds,
                    event.wait_seconds,
                    order=self._order_at(event.t - event.seconds),
                    turn=event.turn,
                    key=event.key,
                    capacity=self._slots.get(event.kind),
                    needs={
                        pool: f"{places} of {self._started.pools.get(pool, '?')}"
                        for pool, places in event.needs.items()
                    },
                )
            case SampleAdmitted():
                self._wait(
                    ADMISSION,
                    event.t,
                    event.wait_seconds,
                    order=self._started.admission_order,
                    key=event.key,
                    capacity=self._started.max_samples,
                )
            case SampleResumed():
                self._wait(
                    MEMORY,
                    event.t,
                    event.parked_seconds,
                    order="admitted first",
                    capacity=self._started.max_samples,
                )

    def _wait(
        self,
        what: str,
        until: float,
        seconds: float,
        *,
        order: str,
        turn: int | None = None,
        key: float | None = None,
        capacity: int | None = None,
        needs: dict[str, str] | None = None,
    ) -> None:
        if seconds > 0:
            self.waits.append(
                Wait(
                    what=what,
                    turn=turn,
                    asked_at=until - seconds,
                    seconds=seconds,
                    order=order,
                    key=key,
                    capacity=capacity,
                    needs=needs or {},
                )
            )

    def _order_at(self, t: float) -> str:
        chosen = [event.order for event in self._orders if event.t <= t]
        return chosen[-1] if chosen else self._started.order


def _stall(event: CallHedged) -> Stall:
    return Stall(
        what=event.kind,
        turn=event.turn,
        hedged_at=event.t - event.seconds,
        stalled_seconds=event.stalled_seconds,
        seconds=event.seconds,
        outcome=event.outcome,
        received_tokens=event.received_tokens,
    )


class _Meanwhile:
    """Counts who was served during one wait."""

    def __init__(self, wait: Wait) -> None:
        self._wait = wait
        self._until = wait.asked_at + wait.seconds
        self._num_holding = 0
        self._served: list[tuple[float, Served]] = []

    def add(self, event: Action | SampleAdmitted) -> None:
        wait = self._wait
        if isinstance(event, SampleAdmitted):
            if wait.what == ADMISSION:
                self._add(event.t, Served(sample_id=event.sample_id, key=event.key))
        elif event.kind == wait.what or not wait.needs.keys().isdisjoint(event.needs):
            started = event.t - event.seconds
            self._num_holding += started < wait.asked_at < event.t <= self._until
            self._add(started, Served(sample_id=event.sample_id, key=event.key))

    def _add(self, t: float, served: Served) -> None:
        if self._wait.asked_at <= t <= self._until:
            self._served.append((t, served))

    def told(self) -> Wait:
        """The wait with what was found."""
        self._served.sort(key=lambda one: one[0])
        return msgspec.structs.replace(
            self._wait,
            num_holding=self._num_holding,
            num_served=len(self._served),
            served=tuple(served for _, served in self._served[:NUM_NAMED]),
        )
