"""Watches whether the event loop still turns, and names the code that stops it.

One callback of the loop beats every 50 ms and notes how late it was. A daemon thread notices when
the beats stay away and looks at what the loop's thread is doing meanwhile: after the fact nobody
could tell.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
import sysconfig
import threading
from collections import Counter
from contextvars import Context
from pathlib import Path
from types import FrameType
from typing import NamedTuple, Self

from rolloutkit.clock import is_virtual

logger = logging.getLogger(__name__)

_BEAT_SECONDS = 0.05
_BLOCKED_SECONDS = 0.25  # worth a warning: 1,000 samples stood still for that long
_SMALLEST_SECONDS = 1e-4  # below this a lag is noise
_GROWTH = 1.2  # of one bucket over the one before: percentiles are at most 20 % too high
_EMPTY = Context()  # a timer needs no variables


class Culprit(NamedTuple):
    """Code that was found blocking the loop, and how often."""

    place: str  # function (file:line)
    num_times: int


class LagSnapshot(NamedTuple):
    """Lag so far; None before the first beat and in virtual time, where there is no lag."""

    p99_seconds: float | None
    max_seconds: float | None
    culprits: tuple[Culprit, ...]


class LoopLagMonitor:
    """Measures the running loop for as long as it is entered. In virtual time it does nothing."""

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()  # lags by logarithm
        self._max_seconds: float | None = None
        self._culprits: Counter[str] = Counter()
        self._num_beats = 0  # written by the loop, read by the thread
        self._due_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = threading.Event()

    async def __aenter__(self) -> Self:
        if not is_virtual():
            self._schedule(asyncio.get_running_loop())
            thread = threading.Thread(  # noqa: TID251 - it watches the loop, so it cannot be on it
                target=self._watch,
                args=(threading.get_ident(),),
                name="rolloutkit-lag",
                daemon=True,
            )
            thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_over.set()
        if self._timer is not None:
            self._timer.cancel()

    def snapshot(self) -> LagSnapshot:
        """What was measured so far; cheap enough to be asked for once a second."""
        return LagSnapshot(
            self._percentile(0.99),
            self._max_seconds,
            tuple(Culprit(*found) for found in self._culprits.most_common()),
        )

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due_at = loop.time() + _BEAT_SECONDS
        self._timer = loop.call_at(self._due_at, self._beat, loop, context=_EMPTY)

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._num_beats += 1
        lag = max(0.0, loop.time() - self._due_at)
        self._max_seconds = max(lag, self._max_seconds or 0.0)
        while lag >= 0.0:  # also the beats that fell out meanwhile: they would have been late, too
            self._buckets[_bucket(lag)] += 1
            lag -= _BEAT_SECONDS
        self._schedule(loop)

    def _percentile(self, share: float) -> float | None:
        left = share * self._buckets.total()
        for bucket, count in sorted(self._buckets.items()):
            left -= count
            if left <= 0:
                return min(_SMALLEST_SECONDS * _GROWTH**bucket, self._max_seconds or 0.0)
        return None

    def _watch(self, loop_thread: int) -> None:
        """Runs in the thread. Two looks without a beat in between mean that the loop is blocked."""
        num_beats = looks = 0
        while not self._is_over.wait(_BLOCKED_SECONDS / 2):
            looks = looks + 1 if self._num_beats == num_beats else 0
            num_beats = self._num_beats
            if looks == 2:
                frame = _frame_of(loop_thread)
                self._accuse(_culprit(frame))

    def _accuse(self, place: str) -> None:
        self._culprits[place] += 1
        if self._culprits[place] == 1:  # log an event once
            logger.warning(
                "every sample stands still: %s has blocked the event loop for more than %g s; "
                "if it is an environment's, declare that blocking: where=thread or where=process",
                place,
                _BLOCKED_SECONDS,
            )


def _frame_of(thread: int) -> FrameType | None:
    # Public in spite of its name: https://docs.python.org/3/library/sys.html#sys._current_frames
    frames = sys._current_frames()  # type: ignore[reportPrivateUsage] # noqa: SLF001 - see above
    return frames.get(thread)


def _bucket(lag: float) -> int:
    if lag <= _SMALLEST_SECONDS:
        return 0
    return math.ceil(math.log(lag / _SMALLEST_SECONDS, _GROWTH))


def _culprit(innermost: FrameType | None) -> str:
    """The innermost code that is neither the standard library's nor that of a foreign package."""
    frame = innermost
    while frame is not None and _is_library(frame.f_code.co_filename):
        frame = frame.f_back
    frame = frame or innermost
    if frame is None:
        return "unknown code"
    code = frame.f_code
    return f"{code.co_qualname} ({code.co_filename}:{frame.f_lineno})"


def _is_library(file_name: str) -> bool:
    """Whether the file is installed, rolloutkit and its integrations excepted."""
    path = Path(file_name)
    for place in ("purelib", "platlib"):
        root = Path(sysconfig.get_path(place))
        if path.is_relative_to(root):
            return not path.relative_to(root).parts[0].startswith("rolloutkit")
    standard = (Path(sysconfig.get_path(place)) for place in ("stdlib", "platstdlib"))
    return file_name.startswith("<frozen") or any(path.is_relative_to(root) for root in standard)
