"""The reference engine: workers with a known cost model and memory, for replays in virtual time.

The acceptance scenarios of the scheduling policies are defined on it, so it stays as it is. What a
call's sizes are it is told (`sizes_of`), since recorded contexts are not append-only: reasoning is
dropped and conversations are compacted. It therefore speaks in lengths, not in token ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

import msgspec

from rolloutkit.errors import RequestError
from rolloutkit.protocols import Capabilities, OnProgress
from rolloutkit.routing import Fleet, StickyLeastLoaded
from rolloutkit.sim.station import SizesOf, Station
from rolloutkit.sim.timing import MODELS, ModelTiming
from rolloutkit.sim.worker import ReferenceWorker
from rolloutkit.types import Completion, GenerateRequest, SampleId

Model: TypeAlias = Literal["ling-3.0-flash", "qwen3-32b"]


class ReferenceConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which model on how many workers."""

    model: Model = "qwen3-32b"
    num_workers: Annotated[int, msgspec.Meta(ge=1)] = 1
    memory_scale: Annotated[float, msgspec.Meta(gt=0)] = 1.0  # of a worker's cache memory
    max_running: Annotated[int, msgspec.Meta(ge=1)] = 256  # requests of one worker
    # Between two reports of progress to somebody who watches; each costs a timer. None = none.
    progress_seconds: Annotated[float, msgspec.Meta(gt=0)] | None = None

    @property
    def timing(self) -> ModelTiming:
        """The model's cost model."""
        return MODELS[self.model]

    @property
    def memory_bytes(self) -> int:
        """Cache memory of one worker."""
        return int(self.timing.memory_bytes * self.memory_scale)


class ReferenceEngine:
    """Stations side by side, to which samples stick; a request without a worker goes to the first.

    Put `make_workers()` behind a router for other policies, or where workers come and go.
    """

    Config = ReferenceConfig

    def __init__(self, config: ReferenceConfig, sizes_of: SizesOf) -> None:
        names = [f"worker-{index}" for index in range(config.num_workers)]
        self._stations = {
            name: Station(
                name,
                config.timing,
                sizes_of,
                memory_bytes=config.memory_bytes,
                max_running=config.max_running,
                progress_seconds=config.progress_seconds,
            )
            for name in names
        }
        self._placement = Fleet(names, StickyLeastLoaded())
        self._capabilities = self._stations[names[0]].capabilities

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def placement(self) -> Fleet:
        """Where samples live when there is no router."""
        return self._placement

    @property
    def workers(self) -> Sequence[ReferenceWorker]:
        """The workers, to look at."""
        return [station.worker for station in self._stations.values()]

    def make_workers(self) -> Sequence[Station]:
        """The workers, for a router."""
        return list(self._stations.values())

    async def generate(
        self, request: GenerateRequest, on_progress: OnProgress | None = None
    ) -> Completion:
        """Wait for the worker. Cancelling frees its memory at once."""
        name = request.worker or next(iter(self._stations))
        station = self._stations.get(name)
        if station is None:
            raise RequestError(f"there is no worker {name!r}; known: {', '.join(self._stations)}")
        return await station.generate(request, on_progress)

    def finish(self, sample_id: SampleId) -> None:
        """Drop the sample's session."""
        for station in self._stations.values():
            station.finish(sample_id)
