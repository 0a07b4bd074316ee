"""Keeps a run's concurrency: from what each model call found in the cache to samples alive.

The shell around the correctors of `admission.control=adaptive`, one for each worker. It waits for
nothing and sets no timer: a period is judged when a call ends after it. The queue holds the sum of
the windows; the placement shares it out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rolloutkit.admission import AdmissionQueue, Corrector, Decision, Signals
from rolloutkit.admission.corrector import MIN_PERIOD_SECONDS

LOST_TOKENS = 256  # of a prefix that a hit does not cover: pages, and states kept every so often


class Call(NamedTuple):
    """What a finished model call says. None = the engine did not tell."""

    known_tokens: int  # of the prompt, seen by the engine before
    cached_tokens: int | None
    cycle_seconds: float | None  # since the sample's last call began; None: its first


class _Period:
    """Sums over one worker's calls since `began`."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.known = 0
        self.wasted = 0
        self.is_counted = True  # every call so far told what was cached
        self.num_cycles = 0
        self.cycle_seconds = 0.0
        self.was_full = False

    def add(self, call: Call) -> None:
        if call.cycle_seconds is not None:
            self.num_cycles += 1
            self.cycle_seconds += call.cycle_seconds
        if call.cached_tokens is None:
            self.is_counted = False
        else:
            self.known += call.known_tokens
            self.wasted += max(0, call.known_tokens - call.cached_tokens - LOST_TOKENS)

    @property
    def waste(self) -> float | None:
        """Of tokens that had been computed before; None where that is not known."""
        return self.wasted / self.known if self.is_counted and self.known else None


class Pacer:
    """Tell it of every model call. `on_change` hears of each window that changed."""

    def __init__(
        self,
        queue: AdmissionQueue,
        workers: Sequence[str | None],
        *,
        reference: int,
        expected_hits: float,
        most: int,
        now: float,
        on_change: Callable[[str | None, Decision], None] | None = None,
    ) -> None:
        self._queue = queue
        self._most = most
        self._on_change = on_change
        self._correctors = {
            worker: Corrector(reference, expected_hits=expected_hits, most=most)
            for worker in workers
        }
        self._periods = {worker: _Period(now) for worker in workers}
        self._apply()

    def called(self, worker: str | None, call: Call, now: float) -> None:
        """A model call on `worker` ended. O(1)."""
        period = self._periods.get(worker)
        if period is None:  # a worker that joined, or one that nobody is placed on
            return
        period.add(call)
        period.was_full = period.was_full or self._queue.num_alive >= self._queue.max_samples
        if not period.num_cycles:
            return
        cycle = period.cycle_seconds / period.num_cycles
        if now - period.began >= max(MIN_PERIOD_SECONDS, cycle):
            self._judge(worker, period, cycle, now)

    def flushed(self, now: float) -> None:
        """The caches were emptied on purpose, as after a change of weights."""
        for worker, corrector in self._correctors.items():
            period = self._periods[worker]
            corrector.flushed(now, period.cycle_seconds / max(1, period.num_cycles))
            self._periods[worker] = _Period(now)

    def _judge(self, worker: str | None, period: _Period, cycle: float, now: float) -> None:
        corrector = self._correctors[worker]
        before = corrector.window
        signals = Signals(
            cycle_seconds=cycle,
            waste=period.waste,
            is_full=period.was_full,
            is_draining=not len(self._queue),
        )
        decision = corrector.update(signals, now)
        self._periods[worker] = _Period(now)
        if decision.window != before:
            self._apply()
            if self._on_change is not None:
                self._on_change(worker, decision)

    def _apply(self) -> None:
        windows = sum(corrector.window for corrector in self._correctors.values())
        self._queue.max_samples = min(self._most, windows)
