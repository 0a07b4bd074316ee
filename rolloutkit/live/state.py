"""One look at a run that is going on: what its samples do, and how long it may still take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from rolloutkit.live.eta import seconds_left
from rolloutkit.live.progress import Progress
from rolloutkit.orchestrator import Orchestrator
from rolloutkit.routing import WorkerView
from rolloutkit.sample import Life
from rolloutkit.types import Status

_NUM_OLDEST = 5
_MAX_AGES = 500  # of so many living samples, evenly spread, the ages enter the estimate

GENERATING, WAITING, ACTING, PARKED = "generating", "waiting for an action", "acting", "parked"
_WAITS = "waiting for "


class OldSample(NamedTuple):
    """One of the samples that live longest."""

    sample_id: str
    num_turns: int
    activity: str
    activity_seconds: float
    age_seconds: float


class Snapshot(NamedTuple):
    """Everything that a view shows."""

    elapsed_seconds: float
    num_samples: int | None
    num_queued: int
    num_alive: int
    ended: dict[Status, int]
    activities: dict[str, int]
    tokens_per_second: float
    seconds_left: float | None
    oldest: list[OldSample]
    num_hedges: int = 0
    workers: Sequence[WorkerView] = ()

    @property
    def num_ended(self) -> int:
        return sum(self.ended.values())


def look(orchestrator: Orchestrator, progress: Progress, now: float, started_at: float) -> Snapshot:
    """O(samples alive), cheaply: two reads and a count for each."""
    lives = list(orchestrator.alive.values())
    elapsed = now - started_at
    num_queued = _num_queued(orchestrator, progress, len(lives))
    step = len(lives) // _MAX_AGES + 1
    ages = [now - life.permit.admitted_at for life in lives[::step]]
    return Snapshot(
        elapsed_seconds=elapsed,
        num_samples=progress.num_samples,
        num_queued=num_queued,
        num_alive=len(lives),
        ended=dict(progress.counts),
        activities=_activities(lives),
        tokens_per_second=progress.tokens_per_second(elapsed),
        seconds_left=seconds_left(progress.durations, ages, num_queued // step),
        oldest=[_old(life, now) for life in islice(lives, _NUM_OLDEST)],
        num_hedges=progress.num_hedges,
        workers=orchestrator.workers,
    )


def _num_queued(orchestrator: Orchestrator, progress: Progress, num_alive: int) -> int:
    """All that are to come, where their number is known; the source may be read in part only."""
    if progress.num_samples is None:
        return orchestrator.num_queued
    return max(0, progress.num_samples - num_alive - progress.num_ended)


def _activities(lives: Sequence[Life]) -> dict[str, int]:
    raw = Counter(
        life.context.activity if life.context is not None else "starting" for life in lives
    )
    counts: dict[str, int] = dict.fromkeys((GENERATING, WAITING, ACTING, PARKED), 0)
    for activity, count in raw.items():
        counts[_kind(activity)] += count
    return counts


def _kind(activity: str) -> str:
    if activity.startswith(_WAITS):
        return WAITING
    return activity if activity in (GENERATING, PARKED) else ACTING


def _old(life: Life, now: float) -> OldSample:
    context, permit = life.context, life.permit
    age = now - permit.admitted_at
    sample_id = str(permit.demand.sample_id)
    if context is None:
        return OldSample(sample_id, 0, "starting", age, age)
    return OldSample(
        sample_id, context.num_turns, context.activity, now - context.activity_since, age
    )
