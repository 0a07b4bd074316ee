"""A simulated worker as an engine: a `ReferenceWorker`, its callers, and what may happen to it.

Faults are levers (`kill`, `stall`, `slow_down`, `shrink`, `start`) that take effect at the moment
they are pulled; `worker_faults.py` pulls them at given times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from rolloutkit.errors import EngineError, RequestError, WorkerLost
from rolloutkit.protocols import Capabilities, OnProgress, WorkerLoad
from rolloutkit.sim.timing import ModelTiming
from rolloutkit.sim.worker import Call, ReferenceWorker, Sizes
from rolloutkit.types import Completion, FinishReason, GenerateRequest, SampleId

SizesOf: TypeAlias = Callable[[GenerateRequest], Sizes]
"""Says how large the call of a request is."""


class Station:
    """One worker on the loop's clock.

    A completion's `service_seconds` is what the call takes on an idle worker that remembers the
    sample; everything beyond is `queue_seconds`, since sharing a worker is a way of waiting.
    """

    def __init__(
        self,
        name: str,
        timing: ModelTiming,
        sizes_of: SizesOf,
        *,
        memory_bytes: int,
        max_running: int,
        progress_seconds: float | None = None,
    ) -> None:
        self._name = name
        self._timing = timing
        self._sizes_of = sizes_of
        self._memory_bytes = memory_bytes
        self._max_running = max_running
        self._progress_seconds = progress_seconds
        self._callers: dict[Call, asyncio.Future[float]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_dead = False
        self._is_stalled = False
        self.worker = self._make_worker()
        self._capabilities = Capabilities(
            cached_tokens=True, priority=True, progress=progress_seconds is not None
        )

    @property
    def name(self) -> str:
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def generate(
        self, request: GenerateRequest, on_progress: OnProgress | None = None
    ) -> Completion:
        """Wait for the worker. Cancelling frees its memory at once."""
        loop = asyncio.get_running_loop()
        if self._is_dead:
            raise WorkerLost(f"{self._name} is down")
        asked_at = loop.time()
        call = Call(request.sample_id, self._sizes_of(request), request.priority)
        if not self.worker.fits(call):
            raise RequestError(f"{call.num_final} tokens do not fit the memory of {self._name}")
        if on_progress is None or self._progress_seconds is None:
            done_at = await self._serve(call, loop)
        else:
            done_at = await self._serve_watched(call, on_progress, self._progress_seconds, loop)
        sizes = call.sizes
        prefill = self._timing.prefill_alone_seconds(sizes.new, sizes.context)
        decode = self._timing.decode_alone_seconds(sizes.context, sizes.output)
        service = min(prefill + decode, done_at - asked_at)
        return Completion(
            finish_reason=FinishReason.LENGTH if sizes.is_cut else FinishReason.STOP,
            prompt_tokens=sizes.context,
            cached_tokens=call.num_cached,
            output_tokens=sizes.output,
            worker=self._name,
            queue_seconds=done_at - asked_at - service,
            prefill_seconds=prefill,
            service_seconds=service,
        )

    def finish(self, sample_id: SampleId) -> None:
        """Drop the sample's session."""
        self.worker.finish(sample_id)

    async def probe(self) -> WorkerLoad:
        """Its load. A dead one refuses, a stalled one never answers."""
        if self._is_stalled:
            await asyncio.get_running_loop().create_future()
        if self._is_dead:
            raise EngineError(f"{self._name} is down")
        return WorkerLoad(
            num_running=self.worker.num_running,
            num_waiting=self.worker.num_waiting,
            num_generated=self.worker.num_steps(asyncio.get_running_loop().time()),
            capacity_tokens=self.worker.memory.capacity_bytes // self._timing.kv_bytes_per_token,
        )

    # What may happen to it.

    def kill(self) -> None:
        """It is gone, with its memory; its callers hear of it."""
        self._is_dead = True
        self._disarm()
        for done in self._callers.values():
            if not done.done():
                done.set_exception(WorkerLost(f"{self._name} went down"))

    def stall(self) -> None:
        """It stands still and answers nobody."""
        self._is_stalled = True
        self._disarm()

    def start(self) -> None:
        """It is there, again or for the first time, with empty memory."""
        self._is_dead = self._is_stalled = False
        self._disarm()
        self.worker = self._make_worker()
        for done in self._callers.values():  # of before a stall: their server is another one
            if not done.done():
                done.set_exception(WorkerLost(f"{self._name} was started again"))

    def slow_down(self, factor: float) -> None:
        """It takes `factor` times as long as at first."""
        self._timing = msgspec.structs.replace(self._timing, slowness=factor)
        loop = asyncio.get_running_loop()
        self.worker.retime(self._timing, loop.time())
        self._arm(loop)

    def shrink(self, factor: float) -> None:
        """It has `factor` times its memory of the start."""
        self.worker.memory.resize(int(self._memory_bytes * factor))

    # Inside.

    def _make_worker(self) -> ReferenceWorker:
        return ReferenceWorker(
            self._timing, memory_bytes=self._memory_bytes, max_running=self._max_running
        )

    async def _serve(self, call: Call, loop: asyncio.AbstractEventLoop) -> float:
        """Wait until the call is done; when that was."""
        worker = self.worker
        done = self._callers[call] = loop.create_future()
        try:
            worker.submit(call, loop.time())
            self._arm(loop)
            return await done
        except asyncio.CancelledError:
            if worker is self.worker:
                worker.withdraw(call, loop.time())
                self._arm(loop)
            raise
        finally:
            del self._callers[call]

    async def _serve_watched(
        self,
        call: Call,
        on_progress: OnProgress,
        seconds: float,
        loop: asyncio.AbstractEventLoop,
    ) -> float:
        """Serve the call, and report every so many seconds how far it is."""

        def report() -> None:
            nonlocal timer
            if not self._is_dead and not self._is_stalled:
                on_progress(self.worker.num_generated(call, loop.time()))
            timer = loop.call_later(seconds, report)

        timer = loop.call_later(seconds, report)
        try:
            return await self._serve(call, loop)
        finally:
            timer.cancel()

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._is_dead or self._is_stalled:
            return
        wakes_at = self.worker.wakes_at
        if self._timer is not None:
            if self._timer.when() == wakes_at:
                return
            self._disarm()
        if wakes_at is not None:
            self._timer = loop.call_at(wakes_at, self._wake, loop)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        for call in self.worker.advance(now):
            done = self._callers[call]
            if not done.done():
                done.set_result(now)
        self._arm(loop)
