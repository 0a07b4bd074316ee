"""The requests that wait in a server: by priority if it has them, then by arrival."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator

from rolloutkit.sim.sglang.request import Request

_REFRESH_INTERVAL = 32  # looks at the queue between two refreshes of prefixes, of at most...
_REFRESH_MOST = 128  # ...so many requests


class WaitingQueue:
    """Costs O(log n) a call; those that were aborted stay inside until their turn."""

    def __init__(self, *, by_priority: bool) -> None:
        self._by_priority = by_priority
        self._entries: list[tuple[float, int, Request]] = []
        self._arrivals = itertools.count()
        self._returns = itertools.count(-1, -1)
        self._num_waiting = 0
        self._num_looks = 0

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[Request]:
        return (request for _, _, request in self._entries if request.ending is None)

    def push(self, request: Request, *, first: bool = False) -> None:
        """Queue behind the others of its priority, or before all of them."""
        request.queue_order = next(self._returns if first else self._arrivals)
        urgency = -request.priority if self._by_priority else 0.0
        heapq.heappush(self._entries, (urgency, request.queue_order, request))
        self._num_waiting += 1

    def head(self) -> Request | None:
        """The request whose turn it is."""
        while self._entries:
            request = self._entries[0][2]
            if request.ending is None:
                return request
            heapq.heappop(self._entries)
        return None

    def pop(self) -> None:
        """Take the head out."""
        heapq.heappop(self._entries)
        self._num_waiting -= 1

    def forget(self) -> None:
        """One that waited has ended."""
        self._num_waiting -= 1

    def to_refresh(self) -> list[Request]:
        """Requests whose prefixes are to be touched, so that the next to run outlives the rest.

        The head comes last. Mostly there are none: it is done now and then (`schedule_policy.py`).
        """
        self._num_looks += 1
        if (self._num_looks - 1) % _REFRESH_INTERVAL or not self._num_waiting:
            return []
        waiting = [entry for entry in self._entries if entry[2].ending is None]
        return [request for _, _, request in reversed(heapq.nsmallest(_REFRESH_MOST, waiting))]
