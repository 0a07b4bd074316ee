"""How long an attempt may still take: its clock stands still while it does nothing but wait.

Waiting for a slot or for memory is charged to limits of its own. Everything else counts: model
calls, actions (side by side ones once), and what a program does in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rolloutkit.clock import Watchdog
from rolloutkit.limits import Limits


class Bounds:
    """The limits of one attempt, and the clock that `limits.turn` and `limits.sample` go by."""

    __slots__ = (
        "_active_seconds",
        "_limits",
        "_num_waiting",
        "_num_working",
        "_owner",
        "_running_since",
        "_time",
        "_turn_began",
        "_watchdog",
        "_whole",
    )

    def __init__(self, limits: Limits, watchdog: Watchdog, time: Callable[[], float]) -> None:
        self._limits = limits
        self._time = time
        self._whole: Watchdog | None = None  # bounds the attempt as a whole
        self._num_waiting = 0
        self._num_working = 0
        self._active_seconds = 0.0  # until `_running_since`
        self._running_since: float | None = time()  # None = the clock stands still
        self._turn_began: float | None = None  # on the attempt's own clock
        self.adopt(watchdog)

    def adopt(self, watchdog: Watchdog) -> None:
        """From here on the calling coroutine, which owns `watchdog`, drives the sample."""
        self._watchdog = watchdog
        self._owner = asyncio.current_task()

    @contextmanager
    def attempt(self) -> Generator[None]:
        """Bound everything inside the block by `limits.sample`, on the attempt's own clock."""
        whole = self._whole = Watchdog()
        try:
            with whole.limit("sample", self._limits.sample):
                yield
        finally:
            self._whole = None
            whole.close()

    def watchdog(self) -> Watchdog:
        """A watchdog of the calling coroutine that bounds nothing at the moment."""
        own = self._watchdog
        if asyncio.current_task() is self._owner and not own.is_busy:
            return own
        return Watchdog(lazy=False)

    def start_turn(self, watchdog: Watchdog) -> None:
        """A model call begins, bounded by `watchdog`; a turn is that and what follows it.

        Only the owner has turns: children are bounded by their own limits and the attempt's.
        """
        if watchdog is self._watchdog:
            self._turn_began = self.seconds()

    def begin_wait(self) -> None:
        self._num_waiting += 1
        if not self._num_working:
            self._update()

    def end_wait(self) -> None:
        self._num_waiting -= 1
        if not self._num_working:
            self._update()

    def begin_work(self) -> None:
        self._num_working += 1
        if self._num_waiting:
            self._update()

    def end_work(self) -> None:
        self._num_working -= 1
        if self._num_waiting:
            self._update()

    def within_turn(self, name: str, seconds: float, watchdog: Watchdog) -> Watchdog:
        """Bound work by `seconds`, or by what the turn has left if that is less."""
        if self._turn_began is None or watchdog is not self._watchdog:
            return watchdog.limit(name, seconds)
        left = self._limits.turn - (self.seconds() - self._turn_began)
        if left < seconds:
            return watchdog.limit("turn", max(left, 0.0), self._limits.turn)
        return watchdog.limit(name, seconds)

    def call(self, watchdog: Watchdog) -> CallClock:
        """The clock of a model call that begins, bounded by `watchdog`."""
        return CallClock(self, watchdog)

    def seconds(self) -> float:
        """What the attempt's clock shows."""
        if self._running_since is None:
            return self._active_seconds
        return self._active_seconds + self._time() - self._running_since

    def _update(self) -> None:
        runs = self._num_waiting == 0 or self._num_working > 0
        if runs == (self._running_since is not None):
            return
        if runs:
            self._running_since = self._time()
        else:
            self._active_seconds = self.seconds()
            self._running_since = None
        if self._whole is not None:
            self._whole.resume() if runs else self._whole.pause()


class CallClock:
    """Lets a model call's limits stand still while it waits for new weights inside the engine."""

    __slots__ = ("_bounds", "_watchdog")

    def __init__(self, bounds: Bounds, watchdog: Watchdog) -> None:
        self._bounds = bounds
        self._watchdog = watchdog

    def hold(self) -> None:
        """From here on the call waits."""
        self._bounds.end_work()
        self._bounds.begin_wait()
        if self._watchdog.is_busy:
            self._watchdog.pause()

    def release(self) -> None:
        """It works again, or is over."""
        if self._watchdog.is_busy:
            self._watchdog.resume()
        self._bounds.end_wait()
        self._bounds.begin_work()
