"""Decides what orders a run's actions under `actions.order=auto`, and says why.

A pure state machine. An order by estimate is used only where earlier epochs showed that it sees the
long tail coming; without that, progress is a good key only while samples that have come far have as
much left as fresh ones. What cannot be known is FIFO (policy.md, section 6).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

import msgspec

from rolloutkit.estimate import SurvivalCurve, residual_grows

# policy.md, section 6: frozen before they were checked on fresh seeds and held-out chains.
TRUSTED_RECALL = 0.8  # from here on the estimate alone
USEFUL_RECALL = 0.65  # from here on with the FIFO lane
MIN_QUEUE_SHARE = 0.05  # of turn time spent waiting; below, an order has nothing to do
FIRST_REVIEW = 64  # turns
REVIEW_GROWTH = 1.5  # in turns from one review to the next: O(log n) of them in a run


class Rule(StrEnum):
    """What the guard chooses from."""

    REMAINING = "remaining"
    CAAS = "caas"
    FIFO = "fifo"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The choice, what it rests on, and the sentence for people. None = not known."""

    rule: Rule
    fifo_lane: float
    reason: str
    recall: float | None = None
    residual_grows: bool | None = None
    queue_share: float | None = None  # of turn time, so far


class _Choice(NamedTuple):
    rule: Rule
    fifo_lane: float
    reason: str


class Guard:
    """Told of turns, asked for a verdict; `recall` is what the history says and stays."""

    def __init__(self, recall: float | None, fifo_lane: float) -> None:
        self._recall = recall
        self._fifo_lane = fifo_lane
        self._num_turns = 0
        self._next_review = FIRST_REVIEW
        self._wait_seconds = 0.0
        self._turn_seconds = 0.0

    @property
    def trusts_estimate(self) -> bool:
        """Whether the estimate may order anything, admission included."""
        return self._recall is not None and self._recall >= USEFUL_RECALL

    def turn_ended(self, wait_seconds: float, active_seconds: float) -> bool:
        """A turn waited (for slots, or parked) and was active; whether a review is due."""
        self._num_turns += 1
        self._wait_seconds += wait_seconds
        self._turn_seconds += wait_seconds + active_seconds
        if self._num_turns < self._next_review:
            return False
        self._next_review = int(self._next_review * REVIEW_GROWTH)
        return True

    @property
    def queue_share(self) -> float | None:
        """Share of turn time spent waiting; None before the first review."""
        if self._num_turns < FIRST_REVIEW or not self._turn_seconds:
            return None
        return self._wait_seconds / self._turn_seconds

    def review(self, see: Callable[[], SurvivalCurve | None]) -> Verdict:
        """The verdict on what is known; `see` makes the curve of the work seen so far, where the
        verdict depends on it.
        """
        share = self.queue_share
        choice = self._without_curve(share)
        grows = None
        if choice is None:
            curve = see()
            grows = None if curve is None else residual_grows(curve)
            choice = self._by_progress(grows=grows)
        return Verdict(
            rule=choice.rule,
            fifo_lane=choice.fifo_lane,
            reason=choice.reason,
            recall=self._recall,
            residual_grows=grows,
            queue_share=share,
        )

    def _without_curve(self, share: float | None) -> _Choice | None:
        if share is not None and share < MIN_QUEUE_SHARE:
            return _Choice(
                Rule.FIFO, 0.0, f"nothing to order, actions wait {share:.0%} of turn time"
            )
        if self._recall is not None and self._recall >= TRUSTED_RECALL:
            return _Choice(
                Rule.REMAINING, 0.0, f"earlier epochs foresaw {self._recall:.0%} of the tail"
            )
        if self._recall is not None and self._recall >= USEFUL_RECALL:
            reason = f"earlier epochs foresaw {self._recall:.0%} of the tail, so with the FIFO lane"
            return _Choice(Rule.REMAINING, self._fifo_lane, reason)
        return None

    def _by_progress(self, *, grows: bool | None) -> _Choice:
        known = "no history of the tail" if self._recall is None else f"recall {self._recall:.0%}"
        if grows:
            return _Choice(Rule.CAAS, self._fifo_lane, f"{known}; long samples have most left")
        if grows is None:
            return _Choice(Rule.FIFO, 0.0, f"{known}; too few endings to tell who has most left")
        return _Choice(Rule.FIFO, 0.0, f"{known}; long samples have less left than fresh ones")
