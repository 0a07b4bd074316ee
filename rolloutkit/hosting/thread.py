"""A session whose plain methods run in daemon threads, one call at a time.

A thread cannot be killed. Closing waits a moment for an abandoned call and then closes beside it.
Should that call come back later, its thread closes once more, since a set-up may have opened
something in the meantime.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from rolloutkit.errors import EnvironmentFailed
from rolloutkit.hosting.protocols import BlockingSession
from rolloutkit.jobs import blocking
from rolloutkit.types import Observation, Reply, SampleId, Score

T = TypeVar("T")

_GRACE_SECONDS = 1.0  # for a call that was abandoned just before its end


class Run(Protocol):
    """Calls a plain function somewhere and waits for its value."""

    def __call__(self, call: Callable[..., T], *arguments: Any) -> Awaitable[T]: ...


class ThreadSession:
    """Wraps a session with plain methods; coroutine functions among them are awaited."""

    def __init__(
        self,
        session: BlockingSession,
        sample_id: SampleId,
        run: Run = blocking,
    ) -> None:
        self._session: Any = session
        self._sample_id = sample_id
        self._run = run
        self._inside = threading.Lock()  # held by the thread that is in a method other than close
        self._is_abandoned = False
        self._is_closed = False
        self._close_began = False  # written by the thread that closes, read by that of a late call

    async def reset(self) -> Observation:
        return await self._call(self._session.reset)

    async def step(self, reply: Reply) -> Observation:
        return await self._call(self._session.step, reply)

    async def score(self) -> Score | float | None:
        return await self._call(self._session.score)

    async def close(self) -> None:
        """Close the session. Cancelling ends the wait, not the closing. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if inspect.iscoroutinefunction(self._session.close):
            await self._session.close()
        else:
            await self._run(self._close)

    async def _call(self, method: Callable[..., Any], *arguments: object) -> Any:
        if self._is_closed:
            raise EnvironmentFailed(f"the session of {self._sample_id} is closed")
        if self._is_abandoned:
            raise EnvironmentFailed(f"the session of {self._sample_id} broke: a call was abandoned")
        try:
            if inspect.iscoroutinefunction(method):
                return await method(*arguments)
            return await self._run(self._enter, method, *arguments)
        except asyncio.CancelledError:
            self._is_abandoned = True
            raise

    def _enter(self, method: Callable[..., T], *arguments: object) -> T:
        with self._inside:
            try:
                return method(*arguments)
            finally:
                if self._close_began:
                    self._session.close()

    def _close(self) -> None:
        if self._inside.acquire(timeout=_GRACE_SECONDS):
            self._inside.release()
        self._close_began = True
        self._session.close()
