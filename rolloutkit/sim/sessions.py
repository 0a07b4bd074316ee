"""Memory of one simulated worker: reservations of running requests, and idle sessions by last use.

Owns the byte counts and their invariant, `reserved + idle <= capacity`. A session is what a sample
leaves in the cache between two requests; the least recently used goes first when room is needed.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum

from rolloutkit.types import SampleId


class Grant(Enum):
    """How a reservation was answered."""

    HIT = "hit"  # the sample's session was there, and has become part of the reservation
    MISS = "miss"  # its whole context must be computed
    REFUSED = "refused"  # not even without idle sessions; nothing was changed


class SessionMemory:
    """Every operation costs O(1), but for evictions, of which each session has at most one."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.reserved_bytes = 0
        self.idle_bytes = 0
        self._idle: OrderedDict[SampleId, int] = OrderedDict()  # least recently used first

    def resize(self, capacity_bytes: int) -> None:
        """Other capacity from now on: idle sessions go, reservations stay until they end."""
        self.capacity_bytes = capacity_bytes
        while self._idle and self.reserved_bytes + self.idle_bytes > capacity_bytes:
            self.idle_bytes -= self._idle.popitem(last=False)[1]

    def reserve(self, sample_id: SampleId, num_bytes: int) -> Grant:
        """Reserve for a request of the sample, evicting idle sessions of others as needed."""
        if self.reserved_bytes + num_bytes > self.capacity_bytes:
            return Grant.REFUSED
        is_hit = sample_id in self._idle
        self.drop(sample_id)
        self.reserved_bytes += num_bytes
        while self._idle and self.reserved_bytes + self.idle_bytes > self.capacity_bytes:
            self.idle_bytes -= self._idle.popitem(last=False)[1]
        return Grant.HIT if is_hit else Grant.MISS

    def release(self, num_bytes: int) -> None:
        """Give a reservation back."""
        self.reserved_bytes -= num_bytes

    def keep(self, sample_id: SampleId, num_bytes: int) -> None:
        """Keep a session, the most recently used, in room that was just released."""
        self.drop(sample_id)
        self._idle[sample_id] = num_bytes
        self.idle_bytes += num_bytes

    def drop(self, sample_id: SampleId) -> None:
        """Forget the sample's session, if it is there."""
        self.idle_bytes -= self._idle.pop(sample_id, 0)

    def __contains__(self, sample_id: object) -> bool:
        return sample_id in self._idle
