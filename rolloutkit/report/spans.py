"""Turns events into what each sample was doing when: one row of spans per sample.

Owns the states that the report colours, and the intervals for which each pool was busy. Holds the
raw spans of living samples only; of an ended one 9 bytes a span. How it is drawn is left to others.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from rolloutkit.record.events import (
    Action,
    Event,
    ModelCall,
    PoolOpened,
    RunStarted,
    SampleAdmitted,
    SampleEnded,
)

ENGINE = "engine"
UNFINISHED = "unfinished"  # outcome of a sample whose run was killed

_DECIMALS = 6  # microseconds, so that spans which follow each other touch


class State(IntEnum):
    """What a sample does; where several hold at once the largest is shown."""

    IDLE = 0
    ADMISSION = 1
    PARKED = 2
    ENGINE_QUEUE = 3
    SLOT = 4
    SCORING = 5
    SET_UP = 6
    GENERATING = 7
    ACTING = 8


STATE_NAMES = {
    State.IDLE: "between operations",
    State.ADMISSION: "waiting for admission",
    State.PARKED: "parked",
    State.ENGINE_QUEUE: "waiting in the engine",
    State.SLOT: "waiting for a slot",
    State.SCORING: "scoring",
    State.SET_UP: "setting up",
    State.GENERATING: "generating",
    State.ACTING: "acting",
}
_STAGES = {"set_up": State.SET_UP, "score": State.SCORING, "close": State.IDLE}


class Row(NamedTuple):
    """A sample's time: `states[i]` holds from `edges[i]` to `edges[i + 1]`."""

    sample_id: str
    seq: int
    outcome: str
    edges: array[float]
    states: array[int]

    @property
    def ended_at(self) -> float:
        return self.edges[-1]

    def seconds_by_state(self) -> list[float]:
        seconds = [0.0] * len(State)
        for state, start, end in zip(self.states, self.edges, self.edges[1:], strict=False):
            seconds[state] += end - start
        return seconds


class Intervals:
    """Starts and ends, 16 bytes an interval."""

    def __init__(self) -> None:
        self.starts = array("d")
        self.ends = array("d")

    def add(self, start: float, end: float) -> None:
        self.starts.append(start)
        self.ends.append(end)


class _Life:
    """A living sample."""

    def __init__(self, event: SampleAdmitted) -> None:
        self.seq = event.seq
        self.asked_at = event.t - event.wait_seconds
        self.spans: list[_Span] = []
        self.add(self.asked_at, event.t, State.ADMISSION)

    def add(self, start: float, end: float, state: State) -> None:
        if end > start and state is not State.IDLE:
            self.spans.append(_Span(start, end, state))

    def close(self, sample_id: str, ended_at: float, outcome: str) -> Row:
        return Row(sample_id, self.seq, outcome, *_flatten(self.spans, self.asked_at, ended_at))


class _Span(NamedTuple):
    start: float
    end: float
    state: State


class BatchSpans:
    """A fold over the events of a run, O(1) an event and O(k log k) for a sample of k spans."""

    def __init__(self) -> None:
        self.started = RunStarted(t=0.0)
        self.slots: dict[str, int] = {}
        self.rows: list[Row] = []  # of ended samples, the last one last
        self.pools: defaultdict[str, Intervals] = defaultdict(Intervals)
        self.action_seconds = array("d")  # of tool calls, not of stages
        self._alive: dict[str, _Life] = {}
        self._now = 0.0

    def add(self, event: Event) -> None:
        self._now = event.t
        match event:
            case ModelCall():
                self._add_call(event)
            case Action():
                self._add_action(event)
            case SampleAdmitted():
                self._alive[event.sample_id] = _Life(event)
            case SampleEnded():
                if (life := self._alive.pop(event.sample_id, None)) is not None:
                    self.rows.append(life.close(event.sample_id, event.t, event.status))
            case RunStarted():
                self.started = event
                self.slots = dict(event.slots)
            case PoolOpened():
                self.slots[event.kind] = event.slots
            case _:
                pass

    def cut_off(self) -> None:
        """End the rows of samples whose end the trace does not tell, where the trace ends."""
        for sample_id, life in self._alive.items():
            self.rows.append(life.close(sample_id, self._now, UNFINISHED))
        self._alive.clear()

    def _add_call(self, call: ModelCall) -> None:
        sent_at = call.t - call.seconds
        served_at = sent_at + min(call.seconds, call.queue_seconds or 0.0)
        self.pools[ENGINE].add(served_at, call.t)
        if (life := self._alive.get(call.sample_id)) is not None:
            life.add(sent_at - call.parked_seconds, sent_at, State.PARKED)
            life.add(sent_at, served_at, State.ENGINE_QUEUE)
            life.add(served_at, call.t, State.GENERATING)

    def _add_action(self, action: Action) -> None:
        state = _STAGES.get(action.kind.rpartition(".")[2], State.ACTING)
        started_at = action.t - action.seconds
        self.pools[action.kind].add(started_at, action.t)
        if state is State.ACTING:
            self.action_seconds.append(action.seconds)
        if (life := self._alive.get(action.sample_id)) is not None:
            life.add(started_at - action.wait_seconds, started_at, State.SLOT)
            life.add(started_at, action.t, state)


_Change: TypeAlias = tuple[float, int, int]  # when, how many spans more, of which state


class _Flat(NamedTuple):
    edges: array[float]
    states: array[int]


def _flatten(spans: list[_Span], start: float, end: float) -> _Flat:
    """One state at a time between `start` and `end`: the largest of those that hold."""
    start, end = round(start, _DECIMALS), max(round(start, _DECIMALS), round(end, _DECIMALS))
    changes: list[_Change] = []
    for span in spans:
        changes.append((max(start, round(span.start, _DECIMALS)), 1, int(span.state)))
        changes.append((min(end, round(span.end, _DECIMALS)), -1, int(span.state)))
    changes.sort()
    edges, states = array("d", [start]), array("B")
    num_open = [0] * len(State)
    open_states = 1 << State.IDLE  # a set as bits, so that the largest is found at once
    shown: int = State.IDLE
    for at, change, state in changes:
        num_open[state] += change
        bit = 1 << state
        open_states = open_states | bit if num_open[state] > 0 else open_states & ~bit
        largest = open_states.bit_length() - 1
        if largest != shown:
            _close_span(edges, states, at, shown)
            shown = largest
    _close_span(edges, states, end, shown)
    return _Flat(edges, states)


def _close_span(edges: array[float], states: array[int], at: float, state: int) -> None:
    if at <= edges[-1]:
        return
    if states and states[-1] == state:
        edges[-1] = at
    else:
        edges.append(at)
        states.append(state)
