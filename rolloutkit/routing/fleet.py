"""Who lives on which worker: the ledger that every routing policy decides on. Pure.

Counts residents, not requests in flight: an agent that thinks or acts has nothing in flight, and
its prefix still fills the memory of its worker. A decision is entered at once, so that the next one
sees it. Invariant: while any worker is up, nobody lives on one that is down.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from rolloutkit.protocols import Demand
from rolloutkit.routing.pace import Array, Pace
from rolloutkit.types import SampleId

Mask: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"

_FIRST_PLACES = 4.0  # samples that a worker gets at once when it comes (back)
_PLACES_PER_CALL = 2.0  # and more for each call that it answers
_FULL_RAMP = 64.0  # free places from which on it is treated like the others


class Forecast(Protocol):
    """What is known of samples' lengths, in reference work; 0 where nothing is."""

    def expected_total(self, task_id: str) -> float: ...
    def work_left(self, sample_id: SampleId) -> float: ...


class Resident:
    """A sample and its home."""

    __slots__ = (
        "context_tokens",
        "is_admitted",
        "is_parked",
        "num_turns",
        "output_tokens",
        "sample_id",
        "work",
        "worker",
    )

    def __init__(self, sample_id: SampleId, work: float) -> None:
        self.sample_id = sample_id
        self.worker = -1
        self.context_tokens = 0
        self.output_tokens = 0  # sampled so far
        self.num_turns = 0
        self.work = work  # expected to be left
        self.is_parked = False
        self.is_admitted = False  # by a permit, which also ends its stay


class Policy(Protocol):
    """Where samples live. Both methods return a worker's index, and only eligible ones."""

    adopts: bool  # parked samples may move to a worker that has room
    weighs_work: bool  # reads `Fleet.work`, so that lengths have to be estimated

    def first(self, fleet: Fleet, resident: Resident) -> int:
        """The home of a sample that has none."""
        ...

    def again(self, fleet: Fleet, resident: Resident) -> int:
        """Its home from its next turn on; the one that it has is up."""
        ...


class Fleet:
    """The workers by index, and the samples by id. O(workers) a decision, O(1) for the rest; a
    worker's end costs that for each of its residents.
    """

    def __init__(
        self, names: Sequence[str], policy: Policy, rng: random.Random | None = None
    ) -> None:
        count = len(names)
        self.rng = rng
        self.names = list(names)
        self.is_up: Mask = np.ones(count, dtype=bool)
        self.num_residents = np.zeros(count)
        self.num_tokens = np.zeros(count)  # of context, of those that are not parked
        self.work = np.zeros(count)  # expected to be left to the residents
        self.capacity = np.full(count, np.inf)  # tokens of cache
        self.free_places = np.full(count, np.inf)  # finite while a worker is eased in
        self.pace = Pace(count)
        self.forecast: Forecast | None = None
        self.num_moves = 0
        self._context_tokens = 0  # of all residents
        self._policy = policy
        self._index = {name: index for index, name in enumerate(names)}
        self._residents: dict[SampleId, Resident] = {}
        self._by_worker: list[dict[SampleId, Resident]] = [{} for _ in names]
        self._groups: dict[str, dict[int, int]] = {}  # residents by task and worker
        self._prefixes: dict[str, int] = {}  # tokens of the first prompt, by task
        self._first_capacity = np.full(count, np.nan)
        self._on_change: Callable[[], None] = _nothing

    @property
    def wants_forecast(self) -> bool:
        """Whether the policy goes by expected work."""
        return self._policy.weighs_work

    # What policies ask.

    def eligible(self) -> Mask:
        """The workers that may get a sample: all that are up when those eased in are full."""
        ready = self.is_up & (self.free_places > 0)
        if ready.any():
            return ready
        return self.is_up if self.is_up.any() else np.ones_like(self.is_up)

    def least(self, load: Array) -> int:
        """The eligible worker with the least load; among equals a random one, by seed, since
        those that start at once would all choose the first. Without a seed it is the first.
        """
        load = np.where(self.eligible(), load, np.inf)
        ties = np.flatnonzero(load == load.min())
        if len(ties) == 1 or self.rng is None:
            return int(ties[0])
        return int(self.rng.choice(ties.tolist()))

    def siblings(self, task_id: str) -> dict[int, int]:
        """How many of the task's samples live on each worker that has any."""
        return self._groups.get(task_id, {})

    def shared_part(self, task_id: str) -> float:
        """The prompt that the task's samples begin with, as a share of a resident's context. 0
        until the first of them has shown it.
        """
        prefix = self._prefixes.get(task_id, 0)
        if not prefix:
            return 0.0
        return min(1.0, prefix * len(self._residents) / max(self._context_tokens, prefix))

    # Placement.

    def place(self, demand: Demand) -> str:
        """Give a sample its home."""
        resident = self._enter(demand.sample_id)
        resident.is_admitted = True
        return self.names[resident.worker]

    def next_turn(self, demand: Demand, context_tokens: int) -> str:
        """Look again, now that the sample's context is known."""
        return self.names[self.turn(demand.sample_id, context_tokens)]

    def park(self, demand: Demand, *, is_parked: bool) -> None:
        """Parked samples do not count as active context."""
        resident = self._residents.get(demand.sample_id)
        if resident is not None and resident.is_parked != is_parked:
            resident.is_parked = is_parked
            sign = -1 if is_parked else 1
            self.num_tokens[resident.worker] += sign * resident.context_tokens

    def adopt(self, demand: Demand, worker: str) -> bool:
        """A parked sample's prefix is the first to be evicted: it may as well go where room is."""
        resident = self._residents.get(demand.sample_id)
        index = self._index[worker]
        if not self._policy.adopts or resident is None or not self.eligible()[index]:
            return False
        self._move(resident, index)
        return True

    def leave(self, demand: Demand) -> None:
        """The sample is over. Idempotent."""
        self._drop(demand.sample_id)

    def home(self, demand: Demand) -> str | None:
        """Where it lives now."""
        resident = self._residents.get(demand.sample_id)
        return None if resident is None else self.names[resident.worker]

    def workers(self) -> Sequence[str]:
        """Those that are up, the emptiest first."""
        loads = np.where(self.is_up, self.num_tokens, np.inf)
        order: list[int] = loads.argsort(kind="stable").tolist()
        num_up = int(self.is_up.sum())
        return [self.names[index] for index in order[:num_up]]

    def memory_share(self, worker: str) -> float:
        """Capacity against the first that was heard of."""
        index = self._index[worker]
        share = self.capacity[index] / self._first_capacity[index]
        return float(share) if math.isfinite(share) else 1.0

    def watch(self, on_change: Callable[[], None]) -> None:
        """One listener: admission."""
        self._on_change = on_change

    # What the router tells.

    def is_admitted(self, sample_id: SampleId) -> bool:
        """Whether admission looks after the sample's home."""
        resident = self._residents.get(sample_id)
        return resident is not None and resident.is_admitted

    def worker_of(self, sample_id: SampleId) -> int:
        """The home of a sample, which it gets now if it has none."""
        resident = self._residents.get(sample_id) or self._enter(sample_id)
        return resident.worker

    def turn(self, sample_id: SampleId, context_tokens: int) -> int:
        """A turn begins, whose prompt is so long: where it runs."""
        resident = self._residents.get(sample_id) or self._enter(sample_id)
        self._set_context(resident, context_tokens)
        task_id = sample_id.task_id
        self._prefixes.setdefault(task_id, context_tokens)
        if self.forecast is not None:
            self._set_work(resident, self.forecast.work_left(sample_id) or resident.work)
        if self.is_up[resident.worker]:
            worker = self._policy.again(self, resident)
            if worker != resident.worker:
                self._move(resident, worker)
        return resident.worker

    def beside(self, worker: int) -> int:
        """Another worker for one call, the least loaded one; the same when there is no other."""
        load = self.num_residents.copy()
        load[worker] = np.inf
        return self.least(load) if (self.is_up & (load < np.inf)).any() else worker

    def answered(
        self,
        sample_id: SampleId,
        worker: int,
        seconds: float,
        *,
        prompt: int,
        cached: int | None,
        output: int,
        crowd: float,
    ) -> None:
        """A call ended well. `crowd` is what `num_tokens` was when it was sent."""
        if self.free_places[worker] < _FULL_RAMP:
            self.free_places[worker] += _PLACES_PER_CALL
        else:
            self.free_places[worker] = np.inf
        if cached is not None:
            self.pace.observe(worker, seconds, uncached=prompt - cached, output=output, crowd=crowd)
        resident = self._residents.get(sample_id)
        if resident is not None:
            resident.num_turns += 1
            resident.output_tokens += output
            self._set_context(resident, prompt + output)

    def forget(self, sample_id: SampleId) -> None:
        """The engine's session of a sample is over; one that has a permit stays."""
        resident = self._residents.get(sample_id)
        if resident is not None and not resident.is_admitted:
            self._drop(sample_id)

    def set_capacity(self, worker: int, num_tokens: int) -> None:
        """The worker says how many tokens its cache holds."""
        before = self.capacity[worker]
        self.capacity[worker] = num_tokens
        if math.isnan(self._first_capacity[worker]):
            self._first_capacity[worker] = num_tokens
        elif num_tokens != before:
            self._on_change()

    def lose(self, worker: int) -> None:
        """The worker is gone: its residents get other homes, if there are any."""
        if self.is_up[worker]:
            self.is_up[worker] = False
            self.pace.forget(worker)
            self._rehome()

    def welcome(self, worker: int) -> None:
        """The worker is there again, cold: it gets samples as it answers."""
        if not self.is_up[worker]:
            self.is_up[worker] = True
            self.free_places[worker] = _FIRST_PLACES
            self._rehome()

    def join(self, name: str) -> int:
        """A worker comes that is not up yet; one of that name keeps its index."""
        if name in self._index:
            return self._index[name]
        index = self._index[name] = len(self.names)
        self.names.append(name)
        self.is_up = np.append(self.is_up, False)
        for field, value in (
            ("num_residents", 0.0),
            ("num_tokens", 0.0),
            ("work", 0.0),
            ("capacity", np.inf),
            ("free_places", _FIRST_PLACES),
            ("_first_capacity", np.nan),
        ):
            setattr(self, field, np.append(getattr(self, field), value))
        self.pace.grow()
        self._by_worker.append({})
        return index

    # Inside.

    def _rehome(self) -> None:
        """Give those new homes who live on workers that are down."""
        if self.is_up.any():
            for worker in np.flatnonzero(~self.is_up).tolist():
                for resident in list(self._by_worker[worker].values()):
                    self._move(resident, self._policy.first(self, resident))
        self._on_change()

    def _enter(self, sample_id: SampleId) -> Resident:
        forecast = self.forecast
        expected = 0.0 if forecast is None else forecast.expected_total(sample_id.task_id)
        resident = self._residents[sample_id] = Resident(sample_id, expected or 1.0)
        self._settle(resident, self._policy.first(self, resident))
        return resident

    def _drop(self, sample_id: SampleId) -> None:
        resident = self._residents.pop(sample_id, None)
        if resident is not None:
            self._unsettle(resident)
            self._context_tokens -= resident.context_tokens
            task_id = sample_id.task_id
            if task_id not in self._groups:
                self._prefixes.pop(task_id, None)

    def _move(self, resident: Resident, worker: int) -> None:
        if worker != resident.worker:
            self.num_moves += 1
            self._unsettle(resident)
            self._settle(resident, worker)

    def _settle(self, resident: Resident, worker: int) -> None:
        resident.worker = worker
        self.free_places[worker] -= 1.0
        self._by_worker[worker][resident.sample_id] = resident
        self._count(resident, 1)
        group = self._groups.setdefault(resident.sample_id.task_id, {})
        group[worker] = group.get(worker, 0) + 1

    def _unsettle(self, resident: Resident) -> None:
        worker = resident.worker
        del self._by_worker[worker][resident.sample_id]
        self._count(resident, -1)
        task_id = resident.sample_id.task_id
        group = self._groups[task_id]
        group[worker] -= 1
        if not group[worker]:
            del group[worker]
            if not group:
                del self._groups[task_id]

    def _count(self, resident: Resident, sign: int) -> None:
        worker = resident.worker
        self.num_residents[worker] += sign
        self.work[worker] += sign * resident.work
        if not resident.is_parked:
            self.num_tokens[worker] += sign * resident.context_tokens

    def _set_context(self, resident: Resident, context_tokens: int) -> None:
        more = context_tokens - resident.context_tokens
        self._context_tokens += more
        if not resident.is_parked:
            self.num_tokens[resident.worker] += more
        resident.context_tokens = context_tokens

    def _set_work(self, resident: Resident, work: float) -> None:
        self.work[resident.worker] += work - resident.work
        resident.work = work


def _nothing() -> None:
    pass
