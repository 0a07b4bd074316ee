"""Runs an operation, and beside it at most one more of it at a time. The first to lead is kept.

The first runs in the caller's own coroutine, so that an operation that nobody hedges costs no job;
the rival runs in a job of the run's group. Whoever loses is cancelled and awaited. It decides
nothing: when to challenge and who leads its owner says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

from rolloutkit.jobs import GroupEnded, Job, Outcome, spawn

T = TypeVar("T")


class Race(Generic[T]):
    """Exactly one value comes out of `run`, whatever finishes late.

    `on_rival_failed` hears of a rival that ended in an error, after which another may be sent.
    """

    __slots__ = ("_bound", "_lost", "_on_rival_failed", "_rival", "rival_won")

    def __init__(self, on_rival_failed: Callable[[], None]) -> None:
        self._bound: asyncio.Timeout | None = None  # None: the first does not run
        self._rival: Job[T] | None = None
        self._lost: list[Job[T]] = []
        self._on_rival_failed = on_rival_failed
        self.rival_won = False

    async def run(self, first: Awaitable[T]) -> T:
        """The value of the first, or of the rival that took the lead.

        When one fails the other may still do it; when both do, the first's error is raised.
        Cancelling cancels both.
        """
        try:
            return await self._run(first)
        finally:
            if self._rival is not None:
                self._rival.cancel()

    def challenge(self, rival: Coroutine[Any, Any, T], name: str) -> bool:
        """Start a rival; False where nothing can be started any more."""
        assert self._rival is None, "one rival at a time"
        if self._bound is None:
            rival.close()
            return False
        try:
            job = self._rival = spawn(rival, name=name)
        except GroupEnded:
            return False
        job.on_end(lambda outcome: self._on_rival_end(job, outcome))
        return True

    def rival_leads(self) -> None:
        """The rival is the one to wait for: abort the first."""
        if self._bound is not None and not self._bound.expired():
            self._bound.reschedule(asyncio.get_running_loop().time())
            self._bound = None

    def first_leads(self) -> bool:
        """Keep the first: abort the rival, if there is one and it does not lead."""
        if self._bound is None or self._rival is None:
            return False
        self._drop_rival(self._rival)
        return True

    def _drop_rival(self, rival: Job[T]) -> None:
        self._rival = None
        self._lost.append(rival)
        rival.cancel()

    async def _run(self, first: Awaitable[T]) -> T:
        bound = asyncio.timeout(None)
        try:
            value = await self._first(first, bound)
        except Exception as error:  # noqa: BLE001 - what failed is the caller's, unless the rival wins
            return await self._follow(None if bound.expired() else error)
        if self._rival is not None:
            self._drop_rival(self._rival)
        for job in self._lost:
            await job.outcome()
        return value

    async def _first(self, first: Awaitable[T], bound: asyncio.Timeout) -> T:
        self._bound = bound
        try:
            async with bound:
                return await first
        finally:
            self._bound = None

    async def _follow(self, failure: Exception | None) -> T:
        """Wait for the rival; without one, or when it fails too, raise what the first raised."""
        rival = self._rival
        if rival is not None:
            outcome = await rival.outcome()
            if outcome.error is None:
                self.rival_won = True
                return outcome.unwrap()
            failure = failure or _as_error(outcome)
        assert failure is not None, "the first is aborted only for a rival"
        raise failure

    def _on_rival_end(self, job: Job[T], outcome: Outcome[T]) -> None:
        if job is not self._rival or self._bound is None:
            return
        if outcome.error is None:
            self.rival_leads()
        else:
            self._rival = None
            self._on_rival_failed()


def _as_error(outcome: Outcome[Any]) -> Exception:
    """A rival that was cancelled although it led: somebody else's doing, and an error here."""
    if isinstance(outcome.error, Exception):
        return outcome.error
    return RuntimeError(f"the re-issue ended by {type(outcome.error).__name__}")
