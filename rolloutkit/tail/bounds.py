"""A bound that follows what was observed: a multiple of a high quantile. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque

NUM_REMEMBERED = 500  # values; policy study, section 5: the last 500 calls
MIN_KNOWN = 50  # values without which the quantile is anybody's guess; ibid.


class AdaptiveBound:
    """`max(floor, factor x quantile)` of the last values; `until_known` before 50 were observed.

    A value that the bound itself cut off is not known. It counts as the value that would leave the
    bound where it is, so that the bound neither runs away when many are cut off nor forgets that
    they exist. Costs a move of at most 500 numbers an observation, about 1 us.
    """

    __slots__ = ("_factor", "_floor", "_latest", "_ordered", "_quantile", "_value")

    def __init__(self, *, quantile: float, factor: float, floor: float, until_known: float) -> None:
        self._quantile = quantile
        self._factor = factor
        self._floor = floor
        self._value = until_known
        self._latest: deque[float] = deque()
        self._ordered: list[float] = []

    def value(self) -> float:
        """The bound."""
        return self._value

    def observe(self, value: float, *, was_cut: bool = False) -> None:
        """Take a value into account; `was_cut` says that the bound ended it."""
        if was_cut:
            value = min(value, self.value() / self._factor)
        insort(self._ordered, value)
        self._latest.append(value)
        if len(self._latest) > NUM_REMEMBERED:
            del self._ordered[bisect_left(self._ordered, self._latest.popleft())]
        count = len(self._ordered)
        if count >= MIN_KNOWN:
            rank = math.ceil(self._quantile * count) - 1  # nearest rank
            self._value = max(self._floor, self._factor * self._ordered[rank])
