"""Corrects the concurrency of one worker by what it reports: cut on waste, grow where it pays.

Pure. The reference concurrency comes from a plan (`resources/`) whose inputs are estimates; the
corrector keeps the window of samples between half and one and a half times of it. Cuts are
multiplicative and at most one per survival time, since caches answer that slowly; growth is
additive ("resource model", 6.4, after AIMD; its constants are judgements, not measurements).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

import msgspec

WASTE_CUT = 0.15  # of the tokens that should have been cached: above, samples are too many
WASTE_GROW = 0.03  # below, there may be room for more
CUT_SLACK = 0.12  # the same beyond what is wasted on purpose where recomputing pays
GROW_SLACK = 0.05
CUT = 0.8
CUT_ON_RETRACTION = 0.7  # running requests were thrown out: memory is overrun now
GROWTH = 0.02  # of the window, one sample at least
LEAST, MOST = 0.5, 1.5  # of the reference
MAX_QUEUE = 1.0  # requests; more wait inside the engine: samples do not lack
WORTHWHILE = 1.01  # of predicted throughput
MIN_PERIOD_SECONDS = 10.0


class Cause(StrEnum):
    """Why a window was changed, or kept."""

    WASTE = "waste"
    RETRACTION = "retraction"
    ROOM = "room"
    HOLD = "hold"


class Signals(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker did in a period. None = not known, which is never taken for zero."""

    cycle_seconds: float  # mean time from one turn of a sample to its next, queueing included
    waste: float | None = None  # share of tokens of resumed turns computed again, in 0..1
    retractions: int | None = None
    queue: float | None = None  # requests that waited inside the engine, on average
    is_full: bool = False  # the window was used up
    is_draining: bool = False  # nobody waits to be admitted


class Decision(NamedTuple):
    """The window from here on, and what it rests on."""

    window: int
    cause: Cause
    waste: float | None


class Corrector:
    """The window of one worker: samples that may be active on it.

    `reference` is the planned concurrency and `expected_hits` the share of turns that should find
    their cache there: below 1 where recomputing some is the best one can do. `predicted` gives
    throughput by concurrency, where a plan knows it. `most` caps the window.
    """

    def __init__(
        self,
        reference: int,
        *,
        expected_hits: float = 1.0,
        most: int | None = None,
        predicted: Callable[[int], float] | None = None,
    ) -> None:
        by_plan = max(1, int(MOST * reference))
        self._most = by_plan if most is None else min(by_plan, most)
        self._least = min(self._most, max(1, int(LEAST * reference)))
        on_purpose = 1.0 - expected_hits
        self._cut_above = max(WASTE_CUT, on_purpose + CUT_SLACK)
        self._grow_below = max(WASTE_GROW, on_purpose - GROW_SLACK)
        self._predicted = predicted
        self._cut_allowed_at = float("-inf")
        self.window = min(max(reference, self._least), self._most)

    def update(self, signals: Signals, now: float) -> Decision:
        """The decision after a period that ends now. O(1)."""
        cause, window = self._judge(signals, now)
        if cause in (Cause.WASTE, Cause.RETRACTION):
            self._cut_allowed_at = now + 2 * signals.cycle_seconds
        self.window = min(max(window, self._least), self._most)
        return Decision(self.window, cause, signals.waste)

    def flushed(self, now: float, cycle_seconds: float) -> None:
        """The caches were emptied on purpose: no cut for what is computed again now."""
        self._cut_allowed_at = max(self._cut_allowed_at, now + 2 * cycle_seconds)

    def _judge(self, signals: Signals, now: float) -> tuple[Cause, int]:
        window = self.window
        retracted = bool(signals.retractions)
        wastes = signals.waste is not None and signals.waste > self._cut_above
        if retracted or wastes:
            if now < self._cut_allowed_at or window <= self._least:
                return Cause.HOLD, window
            share = CUT_ON_RETRACTION if retracted else CUT
            return Cause.RETRACTION if retracted else Cause.WASTE, int(share * window)
        if self._may_grow(signals):
            return Cause.ROOM, window + max(1, int(GROWTH * window))
        return Cause.HOLD, window

    def _may_grow(self, signals: Signals) -> bool:
        """Whether more would be used, would fit and would pay, as far as is known."""
        if signals.is_draining or not signals.is_full or self.window >= self._most:
            return False
        if signals.waste is None or signals.waste >= self._grow_below:
            return False
        if signals.queue is not None and signals.queue > MAX_QUEUE:
            return False
        if self._predicted is None:
            return True
        more = self.window + max(1, int(GROWTH * self.window))
        return self._predicted(more) > WORTHWHILE * self._predicted(self.window)
