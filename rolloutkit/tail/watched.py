"""One operation under watch: alone at first, and beside its re-issue once a hedge has fired.

Joins the silence of the operation, the one timer that judges it and the race of the two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from rolloutkit.clock import timer
from rolloutkit.tail.hedging import HedgeOutcome, Silence, Stalls
from rolloutkit.tail.race import Race

T = TypeVar("T")

_TOLERANCE_SECONDS = 1e-3  # by which a timer may be early: real loops count whole milliseconds


class Settled(NamedTuple):
    """What became of a re-issue."""

    outcome: HedgeOutcome
    stalled_seconds: float  # without progress, when it was issued again
    seconds: float  # from then until it was settled


OnSettled: TypeAlias = Callable[[Settled], None]


class Watched(Generic[T]):
    """Runs once. `reissue` makes the second run; `on_settled` hears of each and must not raise."""

    __slots__ = (
        "_hedged_at",
        "_loop",
        "_on_settled",
        "_race",
        "_reissue",
        "_silence",
        "_stalled",
        "_time",
        "_timer",
    )

    def __init__(
        self, stalls: Stalls, reissue: Callable[[], Coroutine[Any, Any, T]], on_settled: OnSettled
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._time = timer()
        self._silence = Silence(stalls, self._time())
        self._reissue = reissue
        self._on_settled = on_settled
        self._race: Race[T] = Race(self._on_reissue_failed)
        self._timer: asyncio.TimerHandle | None = None
        self._hedged_at: float | None = None  # None: it runs alone
        self._stalled = 0.0

    @property
    def num_tokens(self) -> int:
        """What the first run has been heard to generate."""
        return self._silence.num_tokens

    async def run(self, first: Awaitable[T]) -> T:
        """The value of whichever run is kept. Cancelling cancels both."""
        outcome = HedgeOutcome.NEITHER
        self._watch(self._silence.due_at())
        try:
            value = await self._race.run(first)
            outcome = HedgeOutcome.REISSUE if self._race.rival_won else HedgeOutcome.FIRST
            self._silence.ended(self._time())
            return value
        finally:
            self._stop()
            self._settle(outcome)

    def heard_first(self, num_tokens: int) -> bool:
        """The first run reports so many tokens. Progress aborts a re-issue that has shown none."""
        time = self._time()
        if not self._silence.heard(num_tokens, time):
            return False
        if self._race.first_leads():
            self._settle(HedgeOutcome.FIRST)
            self._watch(self._silence.due_at())
        return True

    def heard_reissue(self) -> None:
        """The re-issue has made progress: the first run, which has not, is aborted."""
        self._race.rival_leads()

    def _watch(self, due_at: float) -> None:
        seconds = max(0.0, due_at - self._time())
        self._timer = self._loop.call_later(seconds, self._on_timer)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        time, due_at = self._time(), self._silence.due_at()
        if time < due_at - _TOLERANCE_SECONDS:  # there was progress, or the bound has risen
            self._watch(due_at)
        elif not self._silence.hedge():
            self._watch_later()
        elif self._race.challenge(self._reissue(), "hedge"):
            self._hedged_at, self._stalled = time, self._silence.seconds(time)

    def _watch_later(self) -> None:
        """Look again when it has been silent for twice as long."""
        time = self._time()
        self._watch(time + self._silence.seconds(time))

    def _on_reissue_failed(self) -> None:
        self._settle(HedgeOutcome.FIRST)
        self._watch_later()

    def _settle(self, outcome: HedgeOutcome) -> None:
        if self._hedged_at is not None:
            seconds, self._hedged_at = self._time() - self._hedged_at, None
            self._on_settled(Settled(outcome, self._stalled, seconds))
