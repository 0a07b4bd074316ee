"""Which slot of the server serves which sample: a prefix cache belongs to a slot.

Owns the table of slots and the queue for them. It sends nothing; a slot granted here is idle on the
server.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from rolloutkit.types import SampleId


class SlotTable:
    """Slots that remember their last sample. Requests beyond them wait, first come first served."""

    def __init__(self, num_slots: int) -> None:
        # Idle slots in the order in which they are given to strangers: forgotten, then longest
        # unused.
        self._idle: OrderedDict[int, SampleId | None] = OrderedDict.fromkeys(range(num_slots))
        self._slot_of: dict[SampleId, int] = {}
        self._waiters: OrderedDict[asyncio.Future[int], SampleId] = OrderedDict()

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    @asynccontextmanager
    async def hold(self, sample_id: SampleId) -> AsyncGenerator[int]:
        """Hold a slot: the sample's own if it is idle, else the one that is missed least."""
        slot = self._take(sample_id) if self._idle else await self._wait(sample_id)
        try:
            yield slot
        finally:
            self._give_back(slot, sample_id)

    def forget(self, sample_id: SampleId) -> None:
        """The sample is over: its slot is the next to be given away. Idempotent."""
        slot = self._slot_of.pop(sample_id, None)
        if slot is not None and slot in self._idle:
            self._idle[slot] = None
            self._idle.move_to_end(slot, last=False)

    async def _wait(self, sample_id: SampleId) -> int:
        granted: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiters[granted] = sample_id
        try:
            return await granted
        except asyncio.CancelledError:
            self._waiters.pop(granted, None)
            if granted.done() and not granted.cancelled():  # granted, and cancelled before waking
                self._give_back(granted.result(), sample_id)
            raise

    def _take(self, sample_id: SampleId) -> int:
        own = self._slot_of.get(sample_id)
        slot = own if own is not None and own in self._idle else next(iter(self._idle))
        previous = self._idle.pop(slot)
        if previous is not None and self._slot_of.get(previous) == slot:
            del self._slot_of[previous]
        self._slot_of[sample_id] = slot
        return slot

    def _give_back(self, slot: int, sample_id: SampleId) -> None:
        is_kept = self._slot_of.get(sample_id) == slot
        self._idle[slot] = sample_id if is_kept else None
        if not is_kept:
            self._idle.move_to_end(slot, last=False)
        while self._idle and self._waiters:
            granted, waiting_id = self._waiters.popitem(last=False)
            if not granted.done():
                granted.set_result(self._take(waiting_id))
