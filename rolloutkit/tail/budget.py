"""How often something may be issued again. Pure."""

from __future__ import annotations

MAX_SAVED = (
    10.0  # hedges at once after a long calm: what stalls together is not helped by more load
)


class HedgeBudget:
    """Each call earns `share` of a hedge: `hedges <= 1 + share x calls`, at most 10 in a burst.

    The one in advance lets a small batch have one at all.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._saved = 1.0
        self.num_calls = 0
        self.num_hedges = 0

    def earn(self) -> None:
        """A call was made."""
        self.num_calls += 1
        self._saved = min(MAX_SAVED, self._saved + self._share)

    def take(self) -> bool:
        """Whether there is a hedge left; if so it is spent."""
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        self.num_hedges += 1
        return True
