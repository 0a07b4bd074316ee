"""Counts of a run in progress, from its events. Pure: it observes and never waits."""

from __future__ import annotations

from bisect import insort
from collections import deque

from rolloutkit.record.events import CallHedged, Event, ModelCall, SampleAdmitted, SampleEnded
from rolloutkit.types import Status

_RATE_SECONDS = 30.0  # tokens per second over so long: several turns of a slow engine
_NUM_DURATIONS = 1_000  # finished samples that the estimate remembers


class Progress:
    """An observer. Costs O(log n) an event in the durations it remembers."""

    def __init__(self, num_samples: int | None) -> None:
        self.num_samples = num_samples
        self.counts: dict[Status, int] = dict.fromkeys(Status, 0)
        self.durations: list[float] = []  # of samples that ran to an end of their own, sorted
        self.num_hedges = 0  # model calls and actions that were issued again
        self._latest: deque[float] = deque()
        self._admitted_at: dict[str, float] = {}
        self._calls: deque[tuple[float, int]] = deque()  # end, output tokens
        self._window_tokens = 0

    def __call__(self, event: Event) -> None:
        match event:
            case ModelCall(output_tokens=int(num_tokens)):
                self._calls.append((event.t, num_tokens))
                self._window_tokens += num_tokens
            case CallHedged():
                self.num_hedges += 1
            case SampleAdmitted():
                self._admitted_at[event.sample_id] = event.t
            case SampleEnded():
                self.counts[event.status] += 1
                admitted_at = self._admitted_at.pop(event.sample_id, None)
                if admitted_at is not None and event.status is not Status.CANCELLED:
                    self._remember(event.t - admitted_at)
            case _:
                pass

    @property
    def num_ended(self) -> int:
        return sum(self.counts.values())

    def tokens_per_second(self, t: float) -> float:
        """Output tokens of the calls that ended within the last half minute, per second."""
        while self._calls and self._calls[0][0] < t - _RATE_SECONDS:
            self._window_tokens -= self._calls.popleft()[1]
        return self._window_tokens / min(max(t, 1.0), _RATE_SECONDS)

    def _remember(self, duration: float) -> None:
        insort(self.durations, duration)
        self._latest.append(duration)
        if len(self._latest) > _NUM_DURATIONS:
            self.durations.remove(self._latest.popleft())
