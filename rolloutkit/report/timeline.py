"""The run as a picture: a trace in the Trace Event Format, for Perfetto or chrome://tracing.

One track per place of every worker and per slot of every kind of action, one flow per sample
through them, and one track per sample that shows its waits too. Which slot an action had is not
recorded: it gets the first track that was free, as many tracks as there were actions at once.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rolloutkit.record.events import Action, Event, ModelCall, SampleAdmitted, SampleEnded

MAX_OPERATIONS = 200_000  # about 100 MB of JSON, which Perfetto opens
MAX_SAMPLE_TRACKS = 1_000  # of the samples that ended last

_SAMPLES = "samples"


def write_timeline(
    events: Iterable[Event], path: Path, *, max_operations: int = MAX_OPERATIONS
) -> None:
    """Write the timeline of a run to `path`; equal events give equal bytes. Raises OSError.

    Of a run with more model calls and actions than `max_operations` the last ones are drawn.
    """
    batch = _Batch(max_operations)
    for event in events:
        batch.add(event)
    encoder = msgspec.json.Encoder()
    with path.open("wb") as file:
        file.write(b'{"displayTimeUnit":"ms","otherData":')
        file.write(encoder.encode({"omitted_operations": batch.num_omitted}))
        file.write(b',"traceEvents":[')
        separator = b"\n"
        for trace_event in batch.trace_events():
            file.write(separator + encoder.encode(trace_event))
            separator = b",\n"
        file.write(b"\n]}\n")


class _Slice(NamedTuple):
    """Something that went on from `start` to `end`, in nanoseconds so that neighbours touch."""

    start: int
    end: int
    sample_id: str
    name: str
    category: str
    details: dict[str, Any] | None = None


class _Batch:
    """The operations and samples that are drawn."""

    def __init__(self, max_operations: int) -> None:
        self.num_omitted = 0
        self._operations: deque[ModelCall | Action] = deque(maxlen=max_operations)
        self._admissions: dict[str, SampleAdmitted] = {}
        self._drawn: deque[SampleAdmitted] = deque(maxlen=MAX_SAMPLE_TRACKS)

    def add(self, event: Event) -> None:
        match event:
            case ModelCall() | Action():
                self.num_omitted += len(self._operations) == self._operations.maxlen
                self._operations.append(event)
            case SampleAdmitted():
                self._admissions[event.sample_id] = event
            case SampleEnded():
                if (admission := self._admissions.pop(event.sample_id, None)) is not None:
                    self._drawn.append(admission)
            case _:
                pass

    def trace_events(self) -> Iterator[dict[str, Any]]:
        """Events in the Trace Event Format: the samples' tracks first, then those of the places."""
        yield from _process(1, _SAMPLES)
        tid = 1
        for sample_id, slices in self._sample_slices().items():
            lanes = _lanes(slices)
            for number in range(max(lanes) + 1):
                name = sample_id if number == 0 else f"{sample_id} (at the same time)"
                yield from _thread(1, tid + number, name)
            for slice_, lane in zip(slices, lanes, strict=True):
                yield _complete(slice_, 1, tid + lane)
            tid += max(lanes) + 1
        yield from self._places()

    def _sample_slices(self) -> dict[str, list[_Slice]]:
        drawn = (*self._drawn, *self._admissions.values())[-MAX_SAMPLE_TRACKS:]
        slices = {
            admission.sample_id: list(_admission_wait(admission))
            for admission in sorted(drawn, key=lambda it: it.seq)
        }
        for operation in self._operations:
            if operation.sample_id in slices:
                slices[operation.sample_id].extend(_states(operation))
        return {it: sorted(found, key=_by_time) for it, found in slices.items() if found}

    def _places(self) -> Iterator[dict[str, Any]]:
        tracks: defaultdict[str, list[_Slice]] = defaultdict(list)
        num_left: Counter[str] = Counter()
        for operation in self._operations:
            tracks[_place(operation)].append(_occupation(operation))
            num_left[operation.sample_id] += 1
        placed: list[tuple[_Slice, int, int]] = []
        for pid, name in enumerate(sorted(tracks), start=2):
            slices = sorted(tracks[name], key=_by_time)
            lanes = _lanes(slices)
            yield from _process(pid, name)
            for lane in range(max(lanes) + 1):
                yield from _thread(pid, lane + 1, f"{name} [{lane}]")
            placed.extend((it, pid, lane + 1) for it, lane in zip(slices, lanes, strict=True))
        flow_ids: dict[str, int] = {}
        for slice_, pid, tid in sorted(placed, key=lambda it: (_by_time(it[0]), it[1:])):
            yield _complete(slice_, pid, tid)
            is_first = slice_.sample_id not in flow_ids
            flow_id = flow_ids.setdefault(slice_.sample_id, len(flow_ids) + 1)
            num_left[slice_.sample_id] -= 1
            is_last = num_left[slice_.sample_id] == 0
            if not (is_first and is_last):
                phase = "s" if is_first else "f" if is_last else "t"
                yield _flow(slice_, pid, tid, phase, flow_id)


def _place(operation: ModelCall | Action) -> str:
    if isinstance(operation, Action):
        return f"environment {operation.kind}"
    return f"worker {operation.worker}" if operation.worker else "engine"


def _occupation(operation: ModelCall | Action) -> _Slice:
    """The time for which an operation held its place, named by its sample."""
    sample_id = operation.sample_id
    details: dict[str, Any] = {"attempt": operation.attempt, "turn": operation.turn}
    if isinstance(operation, Action):
        details |= {"outcome": operation.outcome, "wait_seconds": operation.wait_seconds}
        started_at, category = operation.t - operation.seconds, "action"
    else:
        details |= {
            "chain": operation.chain,
            "context_tokens": operation.context_tokens or None,
            "cached_tokens": operation.cached_tokens,
            "output_tokens": operation.output_tokens,
            "finish_reason": operation.finish_reason,
            "error": operation.error,
        }
        started_at = operation.t - operation.seconds + (operation.queue_seconds or 0.0)
        category = "model_call"
    return _slice(started_at, operation.t, sample_id, sample_id, category, details)


def _admission_wait(admission: SampleAdmitted) -> Iterator[_Slice]:
    asked_at = admission.t - admission.wait_seconds
    yield from _wait(asked_at, admission.t, admission.sample_id, "waits for admission")


def _states(operation: ModelCall | Action) -> Iterator[_Slice]:
    """What an operation's sample went through for it, waits included."""
    sample_id, started_at = operation.sample_id, operation.t - operation.seconds
    if isinstance(operation, Action):
        asked_at = started_at - operation.wait_seconds
        name = f"waits for {operation.kind}"
        yield from _wait(asked_at, started_at, sample_id, name)
        yield _slice(started_at, operation.t, sample_id, operation.kind, "action")
    else:
        served_at = started_at + (operation.queue_seconds or 0.0)
        yield from _wait(started_at - operation.parked_seconds, started_at, sample_id, "parked")
        yield from _wait(started_at, served_at, sample_id, "waits in the engine")
        yield _slice(served_at, operation.t, sample_id, "generates", "model_call")


def _wait(start: float, end: float, sample_id: str, name: str) -> Iterator[_Slice]:
    wait = _slice(start, end, sample_id, name, "wait")
    if wait.end > wait.start:
        yield wait


def _slice(
    start: float,
    end: float,
    sample_id: str,
    name: str,
    category: str,
    details: dict[str, Any] | None = None,
) -> _Slice:
    end_ns = round(end * 1e9)
    return _Slice(min(round(start * 1e9), end_ns), end_ns, sample_id, name, category, details)


def _by_time(slice_: _Slice) -> tuple[int, int, str, str]:
    return slice_[:4]


def _lanes(slices: list[_Slice]) -> list[int]:
    """A lane for each slice, in order of starts, such that slices in one lane do not overlap.

    Greedy: the lowest lane that is free. Uses as many lanes as slices overlap at most; O(n log n).
    """
    free: list[int] = []
    busy: list[tuple[int, int]] = []  # (end, lane), a heap
    lanes: list[int] = []
    for slice_ in slices:
        while busy and busy[0][0] <= slice_.start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (slice_.end, lane))
        lanes.append(lane)
    return lanes


def _process(pid: int, name: str) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": name}}
    yield {
        "ph": "M",
        "pid": pid,
        "tid": 0,
        "name": "process_sort_index",
        "args": {"sort_index": pid},
    }


def _thread(pid: int, tid: int, name: str) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}
    yield {
        "ph": "M",
        "pid": pid,
        "tid": tid,
        "name": "thread_sort_index",
        "args": {"sort_index": tid},
    }


def _complete(slice_: _Slice, pid: int, tid: int) -> dict[str, Any]:
    event: dict[str, Any] = {
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "ts": slice_.start / 1000,
        "dur": (slice_.end - slice_.start) / 1000,
        "name": slice_.name,
        "cat": slice_.category,
    }
    if slice_.details is not None:
        event["args"] = slice_.details
    return event


def _flow(slice_: _Slice, pid: int, tid: int, phase: str, flow_id: int) -> dict[str, Any]:
    event: dict[str, Any] = {
        "ph": phase,
        "pid": pid,
        "tid": tid,
        "ts": slice_.start / 1000,
        "name": slice_.sample_id,
        "cat": "sample",
        "id": flow_id,
    }
    if phase == "f":
        event["bp"] = "e"  # ends at the slice around it, not at the next one
    return event
