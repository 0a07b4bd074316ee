"""What a trace holds: counts, and distributions of its sizes and times."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec

from rolloutkit.record.events import (
    Action,
    Event,
    ModelCall,
    PoolOpened,
    RunEnded,
    RunStarted,
    SampleAdmitted,
    SampleEnded,
)
from rolloutkit.record.trace import read_trace


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles by nearest rank of what is known; None where nothing is."""

    count: int
    num_unknown: int
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """A trace in figures."""

    schema_version: int
    is_complete: bool  # False: cut off, as when a run is killed
    time: str
    service_times: str
    order: str
    num_events: int
    num_tasks: int
    num_samples: int  # that lived
    outcomes: dict[str, int]
    environments: dict[str, int]  # samples
    slots: dict[str, int]
    parallelism: int | None
    max_samples: int | None
    spreads: dict[str, Spread]


def overview_of(path: Path) -> Overview:
    """Read a trace of ours. Blocks. Raises ConfigError."""
    return _fold(read_trace(path))


def _fold(events: Iterable[Event]) -> Overview:
    started = RunStarted(t=0.0)
    is_complete = False
    num_events = 0
    outcomes: Counter[str] = Counter()
    environments: Counter[str] = Counter()
    tasks: set[str] = set()
    slots: dict[str, int] = {}
    values = _Values()
    for event in events:
        num_events += 1
        match event:
            case RunStarted():
                started = event
                slots.update(event.slots)
            case PoolOpened():
                slots[event.kind] = event.slots
            case SampleAdmitted():
                environments[event.environment] += 1
                tasks.add(event.sample_id.rpartition("#")[0])
            case SampleEnded():
                outcomes[event.status] += 1
                if event.admitted:
                    values.add("turns of a sample", event.num_turns)
            case RunEnded():
                is_complete = True
            case _:
                values.add_event(event)
    return Overview(
        schema_version=started.schema_version,
        is_complete=is_complete,
        time=started.time,
        service_times=started.service_times,
        order=started.order,
        num_events=num_events,
        num_tasks=len(tasks),
        num_samples=environments.total(),
        outcomes=dict(outcomes),
        environments=dict(environments),
        slots=slots,
        parallelism=started.parallelism,
        max_samples=started.max_samples,
        spreads=values.spreads(),
    )


class _Values:
    """Values by name, those that are not known counted."""

    def __init__(self) -> None:
        self._known: dict[str, list[float]] = {}
        self._num_unknown: Counter[str] = Counter()

    def add(self, name: str, value: float | None) -> None:
        known = self._known.setdefault(name, [])
        if value is None:
            self._num_unknown[name] += 1
        else:
            known.append(value)

    def add_event(self, event: Event) -> None:
        if isinstance(event, ModelCall) and event.error is None and not event.cancelled:
            self.add("context tokens", event.context_tokens or None)
            self.add("new prompt tokens", event.new_tokens)
            self.add("output tokens", event.output_tokens)
            self.add("model call seconds", event.service_seconds)
        elif isinstance(event, Action):
            self.add(f"{event.kind} seconds", event.seconds)
            self.add("wait for a slot, seconds", event.wait_seconds)

    def spreads(self) -> dict[str, Spread]:
        return {
            name: _spread(sorted(known), self._num_unknown[name])
            for name, known in self._known.items()
        }


def _spread(ordered: list[float], num_unknown: int) -> Spread:
    if not ordered:
        return Spread(count=0, num_unknown=num_unknown)

    def rank(percent: int) -> float:
        return ordered[math.ceil(len(ordered) * percent / 100) - 1]

    return Spread(
        count=len(ordered),
        num_unknown=num_unknown,
        p50=rank(50),
        p90=rank(90),
        p99=rank(99),
        max=ordered[-1],
    )
