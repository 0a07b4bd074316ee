"""The two memories of a worker, counted: tokens of KV cache, and slots that hold a recurrent state.

Which page or slot holds what has no effect on scheduling, so that counters are exact. Invariant:
`0 <= num_free <= capacity`.
"""

from __future__ import annotations


class PoolExhausted(Exception):
    """Nothing is left where the scheduler was sure there was: a real worker stops here."""


class Pool:
    """Units that are taken and given back; those of the KV cache are tokens of whole pages."""

    __slots__ = ("_name", "capacity", "num_free")

    def __init__(self, name: str, capacity: int) -> None:
        self._name = name
        self.capacity = capacity
        self.num_free = capacity

    @property
    def num_used(self) -> int:
        """Units that somebody holds."""
        return self.capacity - self.num_free

    def take(self, count: int) -> None:
        """Raises PoolExhausted when fewer are free."""
        if count > self.num_free:
            raise PoolExhausted(
                f"{count} {self._name} are needed and {self.num_free} of {self.capacity} are free"
            )
        self.num_free -= count

    def give_back(self, count: int) -> None:
        """Units that were taken."""
        self.num_free += count
        assert 0 <= count
        assert self.num_free <= self.capacity


