"""The routing policies that never weigh a move: where a sample goes first, and that it stays."""

from __future__ import annotations

import numpy as np

from rolloutkit.routing.fleet import Fleet, Resident


class RoundRobin:
    """Every turn to the next worker: what a plain load balancer does. Loses the prefix."""

    adopts = False
    weighs_work = False

    def __init__(self) -> None:
        self._next = 0

    def first(self, fleet: Fleet, resident: Resident) -> int:
        del resident
        eligible = np.flatnonzero(fleet.eligible())
        worker = int(eligible[np.searchsorted(eligible, self._next) % len(eligible)])
        self._next = (worker + 1) % len(fleet.names)
        return worker

    def again(self, fleet: Fleet, resident: Resident) -> int:
        return self.first(fleet, resident)


class Sticky:
    """Each sample to the next worker, where it stays."""

    adopts = False
    weighs_work = False

    def __init__(self) -> None:
        self._turns = RoundRobin()

    def first(self, fleet: Fleet, resident: Resident) -> int:
        return self._turns.first(fleet, resident)

    def again(self, fleet: Fleet, resident: Resident) -> int:
        del fleet
        return resident.worker


class StickyLeastLoaded:
    """To the worker with the fewest residents, parked ones included; there it stays."""

    adopts = False
    weighs_work = False

    def first(self, fleet: Fleet, resident: Resident) -> int:
        del resident
        return fleet.least(fleet.num_residents)

    def again(self, fleet: Fleet, resident: Resident) -> int:
        del fleet
        return resident.worker


class StickyLeastWork:
    """To the worker whose residents have least expected work left; there it stays. Without
    estimates every sample counts alike.
    """

    adopts = False
    weighs_work = True

    def first(self, fleet: Fleet, resident: Resident) -> int:
        del resident
        return fleet.least(fleet.work)

    def again(self, fleet: Fleet, resident: Resident) -> int:
        del fleet
        return resident.worker
