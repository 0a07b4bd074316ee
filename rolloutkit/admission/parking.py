"""Parking: which samples of one worker stay active when their contexts outgrow its memory. Pure.

The reference concurrency plans for the mean context, and long samples have long contexts: without
parking, longest-first admission overflows the cache (policy study, "Admission and parking"). A
sample that would start its next turn is held back while the active ones need more than the budget
and one that was admitted earlier is active. Invariant: when any is parked, some are active.
Parked samples are looked at when another ends, and not when a context shrinks: that changed the
mean makespans of scenarios S3 and S5 by -0.5 to +1.6 %, which is nothing.
"""

from __future__ import annotations

import heapq
from bisect import insort
from typing import Annotated

import msgspec


class MemoryBudget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the samples of one worker may occupy together, and what one of them needs."""

    capacity_bytes: Annotated[int, msgspec.Meta(gt=0)]
    bytes_per_token: Annotated[int, msgspec.Meta(ge=0)]
    bytes_per_sample: Annotated[int, msgspec.Meta(ge=0)] = 0  # recurrent state, two copies
    fill: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.95  # policy study: leaves room for bursts
    turn_tokens: Annotated[int, msgspec.Meta(ge=0)] = 500  # what a turn adds, as allowance

    def need(self, context_tokens: int) -> int:
        """Bytes to set aside for a sample whose next prompt is so long."""
        return self.bytes_per_token * (context_tokens + self.turn_tokens) + self.bytes_per_sample

    @property
    def usable_bytes(self) -> float:
        return self.capacity_bytes * self.fill


class Parking:
    """The active and the parked samples of one worker, by their order of admission.

    `grow` and `put` cost O(log n). The others look through the parked ones: O(parked), about once
    per sample.
    """

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self.memory_share = 1.0  # of the budget's capacity, what the worker has now
        self._active: dict[int, int] = {}  # bytes needed, by order of admission
        self._needed = 0
        self._eldest: list[int] = []  # heap; holds every active one and some that are not any more
        self._parked: list[tuple[int, int]] = []  # (order of admission, bytes needed), sorted

    def grow(self, seq: int, context_tokens: int) -> bool:
        """A sample's next prompt will be so long: whether it must be parked now.

        The first report makes a sample active and never parks it: it has nothing to give back.
        """
        need = self._budget.need(context_tokens)
        if seq not in self._active:
            self._activate(seq, need)
            return False
        self._needed += need - self._active[seq]
        self._active[seq] = need
        if self._needed <= self._usable_bytes or self._first_active() == seq:
            return False
        self._needed -= self._active.pop(seq)
        insort(self._parked, (seq, need))
        return True

    def take(self, seq: int) -> int | None:
        """Take a sample out, active or parked: the bytes that it needs; None if it is not here."""
        if seq in self._active:
            need = self._active.pop(seq)
            self._needed -= need
            return need
        need = next((need for parked, need in self._parked if parked == seq), None)
        if need is not None:
            self._parked = [entry for entry in self._parked if entry[0] != seq]
        return need

    def put(self, seq: int, need: int, *, is_parked: bool) -> None:
        """Let a sample in that needs so many bytes, as it is."""
        if is_parked:
            insort(self._parked, (seq, need))
        else:
            self._activate(seq, need)

    def resume(self) -> list[int]:
        """The parked ones that fit now, earliest admitted first, active again."""
        resumed: list[int] = []
        waiting: list[tuple[int, int]] = []
        for parked, need in self._parked:
            if not self._active or self._fits(need):
                self._activate(parked, need)
                resumed.append(parked)
            else:
                waiting.append((parked, need))
        self._parked = waiting
        return resumed

    def eldest_parked(self) -> tuple[int, int] | None:
        """Order of admission and bytes needed of the parked one that was admitted first."""
        return self._parked[0] if self._parked else None

    def has_room(self, need: int) -> bool:
        """Whether one more that needs so many bytes can be active; those parked here come first."""
        return not self._parked and (not self._active or self._fits(need))

    def _fits(self, need: int) -> bool:
        return self._needed + need <= self._usable_bytes

    @property
    def _usable_bytes(self) -> float:
        return self._budget.usable_bytes * self.memory_share

    def _activate(self, seq: int, need: int) -> None:
        self._active[seq] = need
        self._needed += need
        heapq.heappush(self._eldest, seq)

    def _first_active(self) -> int:
        while self._eldest[0] not in self._active:
            heapq.heappop(self._eldest)
        return self._eldest[0]
