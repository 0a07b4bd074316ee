"""What Ctrl-C does to a run: first drain, then cancel, then give up.

The first SIGINT or SIGTERM stops admission and lets the living samples finish within the grace
limit; the second cancels them, and their sessions are closed; from the third on the former handlers
decide.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

from rolloutkit.orchestrator import Orchestrator
from rolloutkit.types import CancelReason

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Entered around a run, on its loop. Only a process's main thread can hear of signals."""

    def __init__(
        self, orchestrator: Orchestrator, grace_seconds: float, say: Callable[[str], None]
    ) -> None:
        self._orchestrator = orchestrator
        self._grace_seconds = grace_seconds
        self._say = say
        self._loop = asyncio.get_running_loop()
        self._former: dict[signal.Signals, Any] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.count = 0

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            # Not `loop.add_signal_handler`: the virtual loop never reads the pipe that this needs.
            self._former = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()
        if self._timer is not None:
            self._timer.cancel()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._loop.call_soon_threadsafe(self._interrupt)

    def _interrupt(self) -> None:
        self.count += 1
        if self.count == 1:
            num_alive = len(self._orchestrator.alive)
            self._orchestrator.drain()
            self._say(
                f"interrupted: {num_alive} samples may finish within {self._grace_seconds:g} s; "
                "interrupt again to stop them"
            )
            self._timer = self._loop.call_later(self._grace_seconds, self._cancel)
        elif self.count == 2:
            self._restore()
            self._say("interrupted again: closing the environments and writing what there is")
            self._cancel()

    def _cancel(self) -> None:
        self._orchestrator.cancel(CancelReason.INTERRUPTED)

    def _restore(self) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        self._former = {}
