"""The reference engine: workers with a known cost model and memory, for replays in virtual time.

The acceptance scenarios of the scheduling policies are defined on it, so it stays as it is. What a
call's sizes are it is told (`sizes_of`), since recorded contexts are not append-only: reasoning is
dropped and conversations are compacted. It therefore speaks in lengths, not in token ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, Literal, TypeAlias

import msgspec

from rolloutkit.errors import RequestError
from rolloutkit.protocols import Capabilities, OnProgress
from rolloutkit.sim.timing import MODELS, ModelTiming
from rolloutkit.sim.worker import Call, ReferenceWorker, Sizes
from rolloutkit.types import Completion, FinishReason, GenerateRequest, SampleId

SizesOf: TypeAlias = Callable[[GenerateRequest], Sizes]
"""Says how large the call of a request is."""

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
    def worker_names(self) -> Sequence[str]:
        """What the workers are called."""
        return tuple(f"worker-{index}" for index in range(self.num_workers))

    @property
    def memory_bytes(self) -> int:
        """Cache memory of one worker."""
        return int(self.timing.memory_bytes * self.memory_scale)


class ReferenceEngine:
    """`ReferenceWorker`s on the loop's clock. A request without a worker goes to the first.

    A completion's `service_seconds` is what the call takes on an idle worker that remembers the
    sample; everything beyond is `queue_seconds`, since sharing a worker is a way of waiting.
    """

    Config = ReferenceConfig

    def __init__(self, config: ReferenceConfig, sizes_of: SizesOf) -> None:
        self._sizes_of = sizes_of
        self._timing = config.timing
        self._stations = {
            name: _Station(
                ReferenceWorker(
                    config.timing,
                    memory_bytes=config.memory_bytes,
                    max_running=config.max_running,
                )
            )
            for name in config.worker_names
        }
        self._progress_seconds = config.progress_seconds
        self._capabilities = Capabilities(
            cached_tokens=True, priority=True, progress=config.progress_seconds is not None
        )

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def worker_names(self) -> Sequence[str]:
        return tuple(self._stations)

    @property
    def workers(self) -> Sequence[ReferenceWorker]:
        """The workers, to look at."""
        return [station.worker for station in self._stations.values()]

    async def generate(
        self, request: GenerateRequest, on_progress: OnProgress | None = None
    ) -> Completion:
        """Wait for the worker. Cancelling frees its memory at once."""
        name = request.worker or next(iter(self._stations))
        station = self._stations.get(name)
        if station is None:
            raise RequestError(f"there is no worker {name!r}; known: {', '.join(self._stations)}")
        asked_at = asyncio.get_running_loop().time()
        call = Call(request.sample_id, self._sizes_of(request), request.priority)
        if not station.worker.fits(call):
            raise RequestError(f"{call.num_final} tokens do not fit the memory of {name}")
        if on_progress is None or self._progress_seconds is None:
            done_at = await station.serve(call)
        else:
            done_at = await station.serve_watched(call, on_progress, self._progress_seconds)
        sizes = call.sizes
        prefill = self._timing.prefill_alone_seconds(sizes.new, sizes.context)
        decode = self._timing.decode_alone_seconds(sizes.context, sizes.output)
        service = min(prefill + decode, done_at - asked_at)
        return Completion(
            finish_reason=FinishReason.LENGTH if sizes.is_cut else FinishReason.STOP,
            prompt_tokens=sizes.context,
            cached_tokens=call.num_cached,
            output_tokens=sizes.output,
            worker=name,
            queue_seconds=done_at - asked_at - service,
            prefill_seconds=prefill,
            service_seconds=service,
        )

    def finish(self, sample_id: SampleId) -> None:
        """Drop the sample's session."""
        for station in self._stations.values():
            station.worker.finish(sample_id)


class _Station:
    """A worker, its callers and the one timer that wakes it."""

    def __init__(self, worker: ReferenceWorker) -> None:
        self.worker = worker
        self._callers: dict[Call, asyncio.Future[float]] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def serve(self, call: Call) -> float:
        """Wait until the call is done; when that was."""
        loop = asyncio.get_running_loop()
        done = self._callers[call] = loop.create_future()
        try:
            self.worker.submit(call, loop.time())
            self._arm(loop)
            return await done
        except asyncio.CancelledError:
            self.worker.withdraw(call, loop.time())
            self._arm(loop)
            raise
        finally:
            del self._callers[call]

    async def serve_watched(self, call: Call, on_progress: OnProgress, seconds: float) -> float:
        """Serve the call, and report every so many seconds how far it is."""
        loop = asyncio.get_running_loop()

        def report() -> None:
            nonlocal timer
            on_progress(self.worker.num_generated(call, loop.time()))
            timer = loop.call_later(seconds, report)

        timer = loop.call_later(seconds, report)
        try:
            return await self.serve(call)
        finally:
            timer.cancel()

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        wakes_at = self.worker.wakes_at
        if self._timer is not None:
            if self._timer.when() == wakes_at:
                return
            self._timer.cancel()
            self._timer = None
        if wakes_at is not None:
            self._timer = loop.call_at(wakes_at, self._wake, loop)

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        for call in self.worker.advance(now):
            done = self._callers[call]
            if not done.done():
                done.set_result(now)
        self._arm(loop)
