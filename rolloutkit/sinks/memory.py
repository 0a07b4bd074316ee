"""Sinks that need no file: a list in memory, and one sink made of several."""

from __future__ import annotations

from collections.abc import Iterable

from rolloutkit.protocols import Sink
from rolloutkit.types import SampleId, Trajectory


class CollectSink:
    """Keeps every trajectory in memory, in the order in which they ended. `put` never waits."""

    def __init__(self) -> None:
        self.trajectories: list[Trajectory] = []
        self._is_closed = False

    async def put(self, trajectory: Trajectory) -> None:
        if self._is_closed:
            raise RuntimeError("put after close: the list is complete")
        self.trajectories.append(trajectory)

    async def close(self) -> None:
        self._is_closed = True

    def in_order(self, sample_ids: Iterable[SampleId]) -> list[Trajectory]:
        """The trajectories in the order of `sample_ids`; KeyError for one that has not ended."""
        by_id = {trajectory.sample_id: trajectory for trajectory in self.trajectories}
        return [by_id[sample_id] for sample_id in sample_ids]


class TeeSink:
    """Puts each trajectory into every one of `sinks`, in their order: the most durable first.

    A `put` that is cancelled or fails on the way has reached the sinks before that point only.
    """

    def __init__(self, *sinks: Sink) -> None:
        self._sinks = sinks

    async def put(self, trajectory: Trajectory) -> None:
        for sink in self._sinks:
            await sink.put(trajectory)

    async def close(self) -> None:
        """Close every sink, also when one fails; raises the first failure."""
        errors: list[Exception] = []
        for sink in self._sinks:
            try:
                await sink.close()
            except Exception as error:  # noqa: BLE001 - the others must be closed; raised below
                errors.append(error)
        if errors:
            raise errors[0]
