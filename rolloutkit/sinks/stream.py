"""Trajectories as they end, for `async for`."""

from __future__ import annotations

import asyncio
from typing import Self

from rolloutkit.types import Trajectory


class StreamSink:
    """A bounded queue between the run and one consumer, who iterates over it.

    `put` waits while `max_waiting` trajectories wait for the consumer. Iteration ends once the sink
    is closed and empty. A consumer that leaves early calls `abandon`, or the run waits for it.
    """

    def __init__(self, max_waiting: int = 16) -> None:
        self._queue: asyncio.Queue[Trajectory | None] = asyncio.Queue(max_waiting)
        self._is_closed = False
        self._is_abandoned = False

    async def put(self, trajectory: Trajectory) -> None:
        """Queue the trajectory; waits while the queue is full. Cancelled, it was not queued."""
        if self._is_closed:
            raise RuntimeError("put after close: the stream has ended")
        if self._is_abandoned:
            return
        await self._queue.put(trajectory)
        if self._is_abandoned:  # makes room for the next that waits
            self._discard_all()

    async def close(self) -> None:
        """End the iteration once the consumer has taken what is queued. Does not wait for it."""
        self._is_closed = True
        if not self._queue.full():  # a full queue has the consumer awake already
            self._queue.put_nowait(None)

    def abandon(self) -> None:
        """Nobody takes anything any more: drop what is queued, now and from here on."""
        self._is_abandoned = True
        self._discard_all()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Trajectory:
        if self._is_closed and self._queue.empty():
            raise StopAsyncIteration
        trajectory = await self._queue.get()
        if trajectory is None:
            raise StopAsyncIteration
        return trajectory

    def _discard_all(self) -> None:
        while not self._queue.empty():
            self._queue.get_nowait()
