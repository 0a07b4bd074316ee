"""The two memories of a worker, counted: tokens of KV cache, and slots that hold a recurrent state.

Which page or slot holds what has no effect on scheduling, so that counters are exact. Invariant:
`0 <= num_free <= capacity`.
"""

from __future__ import annotations


class PoolExhausted(Exception):
    """Nothing is left where the scheduler was sure there was: a real worker stops here."""


class Pool:
    """Units that are taken and given back; those of the KV cache are tokens of whole pages.

    With `made_of`, a unit is `size` units of that pool, so that two pools share one memory.
    """

    __slots__ = ("_made_of", "_name", "_size", "capacity", "num_used")

    def __init__(
        self, name: str, capacity: int, *, made_of: Pool | None = None, size: int = 1
    ) -> None:
        self._name = name
        self._made_of = made_of
        self._size = size
        self.capacity = capacity
        self.num_used = 0

    @property
    def num_free(self) -> int:
        """Units that can be taken now."""
        own = self.capacity - self.num_used
        if self._made_of is None:
            return own
        return min(own, self._made_of.num_free // self._size)

    def take(self, count: int) -> None:
        """Raises PoolExhausted when fewer are free."""
        if count > self.num_free:
            raise PoolExhausted(
                f"{count} {self._name} are needed and {self.num_free} of {self.capacity} are free"
            )
        self.num_used += count
        if self._made_of is not None:
            self._made_of.take(count * self._size)

    def give_back(self, count: int) -> None:
        """Units that were taken."""
        self.num_used -= count
        assert count >= 0
        assert self.num_used >= 0
        if self._made_of is not None:
            self._made_of.give_back(count * self._size)
