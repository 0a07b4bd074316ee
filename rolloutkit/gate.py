"""The gate before model calls: closed while new weights come. Knows calls, and no engine.

While it is closed nothing passes. Calls that are under way either end by themselves (`drained`) or
are held: their clocks stand still until the gate opens, since they wait for the weights as well.
"""

from __future__ import annotations

import asyncio
from typing import Protocol


class Call(Protocol):
    """The clock of a model call under way. Both are called in turns, and never twice."""

    def hold(self) -> None:
        """Stop counting its time."""
        ...

    def release(self) -> None:
        """Go on counting."""
        ...


class Gate:
    """O(1) a call; `hold` and `open` cost O(calls under way)."""

    def __init__(self) -> None:
        self._calls: dict[Call, None] = {}
        self._held: set[Call] = set()
        self._is_closed = False
        self._waiters: list[asyncio.Future[None]] = []
        self._drained: list[asyncio.Future[None]] = []

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        """Let nothing pass until it is opened."""
        self._is_closed = True

    def open(self) -> None:
        """Let everything pass, and let the clocks of held calls go on. Idempotent."""
        self._is_closed = False
        held, self._held = self._held, set()
        for call in self._calls:
            if call in held:
                call.release()
        _wake(self._waiters)

    async def passed(self) -> None:
        """Wait until it is open."""
        while self._is_closed:
            await _woken(self._waiters)

    def enter(self, call: Call) -> None:
        """A call is sent."""
        self._calls[call] = None

    def leave(self, call: Call) -> None:
        """It is over, however it ended."""
        del self._calls[call]
        if call in self._held:
            self._held.remove(call)
            call.release()
        if not self._calls:
            _wake(self._drained)

    def hold(self) -> None:
        """The calls under way wait too."""
        for call in self._calls:
            if call not in self._held:
                self._held.add(call)
                call.hold()

    async def drained(self) -> None:
        """Wait until no call is under way."""
        while self._calls:
            await _woken(self._drained)


async def _woken(waiters: list[asyncio.Future[None]]) -> None:
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiters.append(waiter)
    await waiter


def _wake(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
    waiters.clear()
