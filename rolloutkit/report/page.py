"""The content of `report.html` as a record: what a run's events and summary come to in pictures.

Bounded whatever the run's size: of many samples an even choice is drawn, and of many spans a
coarser picture. Curves, distributions and counts cover every sample. How it looks is left to the
assets.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from rolloutkit.record.events import Event, OrderChosen, RunStarted, SampleEnded
from rolloutkit.report.advice import advise, verdict
from rolloutkit.report.curves import (
    NUM_BINS,
    Histogram,
    count_spread,
    count_whole,
    mean_in_state,
    mean_open,
    num_ended,
)
from rolloutkit.report.spans import ENGINE, STATE_NAMES, BatchSpans, Row, State
from rolloutkit.report.summary import Summary
from rolloutkit.report.tail import Tail

MAX_ROWS = 2_000  # more than a screen has lines
MAX_SPANS = 160_000  # about 2 MB
_FINEST_TICKS = 1 << 15  # of the makespan: 0.1 s in an hour
_MAX_ENDINGS = 40  # lines of the table of endings
_MAX_MESSAGE = 300  # characters of a failure's message
_MAX_ORDERS = 20  # of the guard's choices


class Gantt(msgspec.Struct, frozen=True, kw_only=True):
    """Rows in order of admission; a row is state, length, state, length, ... from its start."""

    num_samples: int
    seconds_per_tick: float
    ids: list[str]
    outcomes: list[str]
    starts: list[int]  # in ticks
    spans: list[list[int]]  # lengths in ticks


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """How many places of a pool were busy over time."""

    name: str
    capacity: int | None  # None = no limit is known
    busy: list[float]


class TailRow(msgspec.Struct, frozen=True, kw_only=True):
    sample_id: str
    ended_at: float
    seconds: list[float]  # by state
    advice: str


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """Samples that ended alike."""

    status: str
    reason: str
    message: str
    count: int
    example: str  # the first sample's id


class Order(msgspec.Struct, frozen=True, kw_only=True):
    t: float
    order: str
    reason: str


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Times are seconds; curves have `NUM_BINS` parts of `seconds`."""

    kind: str = "run"
    run: RunStarted
    summary: Summary
    verdict: str
    seconds: float  # what the time axes show
    states: list[str]
    gantt: Gantt
    doing: list[list[float]]  # samples by state, over time
    num_ended: list[int]  # over time
    pools: list[Pool]
    tail: list[TailRow]
    distributions: dict[str, Histogram]
    endings: list[Ending]
    num_other_endings: int
    orders: list[Order]


def build_page(events: Iterable[Event], summary: Summary) -> Page:
    """Fold a run's events, `summary` being theirs; equal runs give equal pages."""
    spans, endings, orders = BatchSpans(), _Endings(), list[Order]()
    for event in events:
        spans.add(event)
        match event:
            case SampleEnded():
                endings.add(event)
            case OrderChosen():
                orders.append(Order(t=event.t, order=event.order, reason=event.reason))
            case _:
                pass
    tail = spans.rows[-Tail.LENGTH :]
    spans.cut_off()
    seconds = max((row.ended_at for row in spans.rows), default=0.0)
    return Page(
        run=spans.started,
        summary=summary,
        verdict=verdict(summary),
        seconds=seconds,
        states=[STATE_NAMES[it] for it in State],
        gantt=_gantt(spans.rows, tail, seconds),
        doing=mean_in_state(spans.rows, seconds),
        num_ended=num_ended(spans.rows, seconds),
        pools=_pools(spans, seconds),
        tail=[_tail_row(row, summary) for row in reversed(tail)],
        distributions={
            "turns per sample": count_whole(endings.num_turns),
            "output tokens per sample": count_spread(endings.output_tokens),
            "seconds per action": count_spread(spans.action_seconds),
        },
        endings=endings.most_common(),
        num_other_endings=endings.num_left_out,
        orders=orders[-_MAX_ORDERS:],
    )


class _Ending(NamedTuple):
    status: str
    reason: str
    message: str


class _Endings:
    """How samples ended, those that ended alike together."""

    def __init__(self) -> None:
        self.num_turns = array("q")
        self.output_tokens = array("q")
        self._counts: Counter[_Ending] = Counter()
        self._examples: dict[_Ending, str] = {}

    def add(self, event: SampleEnded) -> None:
        ending = _Ending(
            event.status,
            event.failure or event.cancel_reason or event.stop_reason,
            (event.failure_message or "")[:_MAX_MESSAGE],
        )
        self._counts[ending] += 1
        self._examples.setdefault(ending, event.sample_id)
        if event.admitted:
            self.num_turns.append(event.num_turns)
            self.output_tokens.append(event.output_tokens)

    @property
    def num_left_out(self) -> int:
        return max(0, len(self._counts) - _MAX_ENDINGS)

    def most_common(self) -> list[Ending]:
        return [
            Ending(**ending._asdict(), count=count, example=self._examples[ending])
            for ending, count in self._counts.most_common(_MAX_ENDINGS)
        ]


def _gantt(rows: Sequence[Row], tail: Sequence[Row], seconds: float) -> Gantt:
    drawn = _drawn(sorted(rows, key=lambda row: row.seq), tail)
    seconds_per_tick = seconds / _FINEST_TICKS
    spans = [_ticks(row, seconds_per_tick) for row in drawn]
    while sum(map(len, spans)) > 2 * MAX_SPANS:
        seconds_per_tick *= 2
        spans = [_ticks(row, seconds_per_tick) for row in drawn]
    return Gantt(
        num_samples=len(rows),
        seconds_per_tick=seconds_per_tick,
        ids=[row.sample_id for row in drawn],
        outcomes=[row.outcome for row in drawn],
        starts=[_tick(row.edges[0], seconds_per_tick) for row in drawn],
        spans=spans,
    )


def _drawn(rows: Sequence[Row], tail: Sequence[Row]) -> list[Row]:
    """All rows, or an even choice with the tail among it, in the same order."""
    if len(rows) <= MAX_ROWS:
        return list(rows)
    last = {row.sample_id for row in tail}
    chosen = {len(rows) * number // MAX_ROWS for number in range(MAX_ROWS)}
    return [row for i, row in enumerate(rows) if i in chosen or row.sample_id in last]


def _ticks(row: Row, seconds_per_tick: float) -> list[int]:
    """State and length by turns; what is shorter than a tick goes to its neighbour."""
    spans: list[int] = []
    at = _tick(row.edges[0], seconds_per_tick)
    for state, edge in zip(row.states, row.edges[1:], strict=True):
        end = _tick(edge, seconds_per_tick)
        if end == at:
            continue
        if spans and spans[-2] == state:
            spans[-1] += end - at
        else:
            spans += (state, end - at)
        at = end
    return spans


def _tick(seconds: float, seconds_per_tick: float) -> int:
    return round(seconds / seconds_per_tick) if seconds_per_tick > 0 else 0


def _pools(spans: BatchSpans, seconds: float) -> list[Pool]:
    """Those that were used, the busiest first; without a known capacity they come last."""
    capacities = {**spans.slots, ENGINE: spans.started.parallelism}
    pools = [
        Pool(name=name, capacity=capacities.get(name), busy=mean_open(intervals, seconds))
        for name, intervals in sorted(spans.pools.items())
    ]
    return sorted(pools, key=lambda pool: -sum(pool.busy) / NUM_BINS / (pool.capacity or math.inf))


def _tail_row(row: Row, summary: Summary) -> TailRow:
    seconds = row.seconds_by_state()
    return TailRow(
        sample_id=row.sample_id,
        ended_at=row.ended_at,
        seconds=[round(it, 3) for it in seconds],
        advice=advise(seconds, summary),
    )
