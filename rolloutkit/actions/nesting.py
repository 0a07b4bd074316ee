"""Which pools an action may ask for inside another one: pure.

An action that holds places while it waits for others could wait for one that waits for it. Two
rules exclude it. Of a pool that the outer action holds, the inner one uses what is held. And pools
have an order in which they are taken, so that whoever holds the last of them never waits (Havender,
"Avoiding deadlock in multitasking systems", IBM Systems Journal 7, 1968). The order is not
declared but learnt from what was asked for inside what, as the lock validator of Linux does; what
would contradict it is refused, whether or not somebody would wait just then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

from rolloutkit.actions.pools import Needs, Pool
from rolloutkit.errors import ProgramError


class NestingOrder:
    """An order of all pools that agrees with every nesting so far: `Pool.rank`.

    Pools that nothing was nested in come as they were added, those of kinds first. A nesting that
    was seen before costs O(1), a new one O(pools + nestings).
    """

    def __init__(self) -> None:
        self._outer: dict[Pool, dict[Pool, None]] = {}  # by inner pool; sets, but in order

    def add(self, pool: Pool) -> None:
        """A pool that may be asked for from here on."""
        self._outer[pool] = {}
        self._rank()

    def inner_needs(self, wanted: Needs, held: Mapping[Pool, int]) -> Needs:
        """What is left to ask for inside an action that holds places.

        Raises ProgramError for more of a held pool, and for an order of pools that others
        contradict.
        """
        needs: list[tuple[Pool, int]] = []
        for pool, weight in wanted:
            has = held.get(pool, 0)
            if not has:
                needs.append((pool, weight))
            elif weight > has and pool.is_limited:
                raise ProgramError(
                    f"an action asks for {weight} of {pool.name} inside one that holds {has}: let "
                    "the outer one ask for as much, since two of them could wait for each other"
                )
        self._nest(held, [pool for pool, _ in needs])
        return tuple(needs)

    def _nest(self, held: Iterable[Pool], asked: list[Pool]) -> None:
        for outer in held:
            for inner in asked:
                if not (outer.is_limited and inner.is_limited) or outer in self._outer[inner]:
                    continue
                self._outer[inner][outer] = None
                try:
                    self._rank()
                except CycleError as error:
                    del self._outer[inner][outer]
                    names = [pool.name for pool in reversed(error.args[1])]
                    raise ProgramError(
                        f"an action asks for {inner.name} inside one that holds {outer.name}, and "
                        f"others nest them the other way round ({' in '.join(names)}), so that "
                        "they could wait for each other: nest them one way, or let the outer "
                        "action ask for both"
                    ) from None

    def _rank(self) -> None:
        kinds_first = dict(sorted(self._outer.items(), key=lambda one: not one[0].is_kind))
        for rank, pool in enumerate(TopologicalSorter(kinds_first).static_order()):
            pool.rank = rank
