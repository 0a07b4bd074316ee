"""What happens to simulated workers, and when: the faults of a scenario, pulled by the clock."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import msgspec

from rolloutkit.sim.station import Station


class WorkerFault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One event in the life of a worker, `at` seconds after the start."""

    worker: str
    at: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    kind: Literal["kill", "stall", "start", "slow", "shrink"]
    factor: Annotated[float, msgspec.Meta(gt=0)] = 1.0  # of time (slow), of memory (shrink)


def arm(faults: Sequence[WorkerFault], stations: Mapping[str, Station]) -> None:
    """Let the faults happen to the stations, on the running loop; those at 0 happen now."""
    loop = asyncio.get_running_loop()
    for fault in faults:
        station = stations[fault.worker]
        if fault.at > 0:
            loop.call_later(fault.at, _happen, station, fault)
        else:
            _happen(station, fault)


def _happen(station: Station, fault: WorkerFault) -> None:
    match fault.kind:
        case "kill":
            station.kill()
        case "stall":
            station.stall()
        case "start":
            station.start()
        case "slow":
            station.slow_down(fault.factor)
        case "shrink":
            station.shrink(fault.factor)
