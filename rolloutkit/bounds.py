"""How long a sample may still wait: a wait's own limit, and what its turn and attempt have left."""

from __future__ import annotations

import asyncio

from rolloutkit.clock import Watchdog
from rolloutkit.limits import Limits


class Bounds:
    """The limits of one attempt. Active time is charged to turn and attempt, waiting is not."""

    __slots__ = ("_active_seconds", "_limits", "_owner", "_turn_seconds", "_watchdog")

    def __init__(self, limits: Limits, watchdog: Watchdog) -> None:
        self._limits = limits
        self.adopt(watchdog)

    def adopt(self, watchdog: Watchdog) -> None:
        """From here on the calling coroutine, which owns `watchdog`, drives the sample."""
        self._watchdog = watchdog
        self._owner = asyncio.current_task()
        self._active_seconds = 0.0
        self._turn_seconds = 0.0

    def start_turn(self) -> None:
        self._turn_seconds = 0.0

    def charge(self, seconds: float) -> None:
        """Count active time."""
        self._active_seconds += seconds
        self._turn_seconds += seconds

    def watchdog(self) -> Watchdog:
        """The owner's watchdog; a fresh one when a spawned child waits."""
        return self._watchdog if asyncio.current_task() is self._owner else Watchdog(lazy=False)

    def waiting(self, name: str, seconds: float, watchdog: Watchdog | None = None) -> Watchdog:
        """Bound a wait that is not charged: for a slot, for memory, for a scorer."""
        return (watchdog or self.watchdog()).limit(name, seconds)

    def active(self, name: str, seconds: float, watchdog: Watchdog) -> Watchdog:
        """Bound active time by `seconds`, or by what turn and attempt have left if less."""
        left = self._limits.turn - self._turn_seconds
        if left < seconds:
            name, seconds = "turn", max(left, 0.0)
        left = self._limits.sample - self._active_seconds
        if left < seconds:
            name, seconds = "sample", max(left, 0.0)
        return watchdog.limit(name, seconds)
