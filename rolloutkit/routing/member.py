"""One worker as its router sees it: its health, and the calls that run on it. Never waits.

A worker is ejected when it is lost, when `max_failures` calls or probes in a row fail, and when it
runs calls but no token comes for `stall_seconds`. Probes readmit it: one good answer the first
time, twice as many after each further ejection, so that one that comes and goes is left alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

from rolloutkit.jobs import Job
from rolloutkit.protocols import OnProgress, Worker, WorkerLoad
from rolloutkit.routing.settings import RouterSettings

_MAX_PROBES = 32  # good answers in a row that are asked for at most


class Member:
    """Its index is that of the fleet's ledger."""

    def __init__(
        self, worker: Worker, index: int, settings: RouterSettings, *, is_up: bool = True
    ) -> None:
        self.worker = worker
        self.index = index
        self.is_up = is_up
        self.has_left = False
        self.stack: AsyncExitStack | None = None  # closes the worker and ends its watch
        self.watch: Job[None] | None = None
        self.num_ejections = 0
        self.policy_version: int | None = None  # of its weights, as far as we set them
        self._settings = settings
        self._calls: dict[asyncio.Timeout, float] = {}  # when each was sent
        self._num_failures = 0  # in a row
        self._num_good_probes = 0  # in a row, while it is ejected
        self._progressed_at = 0.0
        self._num_generated: int | None = None
        self._tells_progress = worker.capabilities.progress

    @property
    def name(self) -> str:
        return self.worker.name

    @property
    def num_calls(self) -> int:
        """Calls that run on it."""
        return len(self._calls)

    def begin(self, fuse: asyncio.Timeout, now: float) -> None:
        """A call is sent; the fuse ends it."""
        if not self._calls:
            self._progressed_at = now
        self._calls[fuse] = now

    def end(self, fuse: asyncio.Timeout) -> None:
        """A call is over."""
        self._calls.pop(fuse, None)

    def watched(self, on_progress: OnProgress | None, time: Callable[[], float]) -> OnProgress:
        """`on_progress`, and a note of the time when it tells of another token."""
        most = 0

        def progressed(num_tokens: int) -> None:
            nonlocal most
            if num_tokens > most:
                most = num_tokens
                self._progressed_at = time()
            if on_progress is not None:
                on_progress(num_tokens)

        return progressed

    def answered(self, now: float) -> None:
        """A call ended well."""
        self._num_failures = 0
        self._progressed_at = now

    def failed(self) -> bool:
        """A call or probe failed: whether that was one too many."""
        self._num_failures += 1
        return self.is_up and self._num_failures >= self._settings.max_failures

    def heard(self, load: WorkerLoad, now: float) -> None:
        """It answered a probe."""
        if load.num_generated is not None:
            self._tells_progress = True
            if load.num_generated != self._num_generated:
                self._num_generated = load.num_generated
                self._progressed_at = now

    def is_stalled(self, now: float) -> bool:
        """Whether calls run and none has got a token for too long."""
        waited = now - self._progressed_at
        return bool(self._tells_progress and self._calls and waited > self._settings.stall_seconds)

    def eject(self, now: float) -> None:
        """End what runs on it; the callers go elsewhere."""
        self.is_up = False
        self.num_ejections += 1
        self._num_failures = self._num_good_probes = 0
        self._num_generated = None
        for fuse in list(self._calls):
            if not fuse.expired():
                fuse.reschedule(now)

    def is_well_again(self, *, is_good: bool) -> bool:
        """Count a probe of an ejected worker: whether it may come back."""
        self._num_good_probes = self._num_good_probes + 1 if is_good else 0
        wanted = min(2 ** max(0, self.num_ejections - 1), _MAX_PROBES)
        return self._num_good_probes >= wanted

    def readmit(self) -> None:
        """It takes calls again."""
        self.is_up = True
        self._num_failures = 0
