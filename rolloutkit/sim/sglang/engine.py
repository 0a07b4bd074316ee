"""Simulated SGLang (or vLLM) servers as an engine, on the loop's clock.

A station owns one worker, its callers and the timer that wakes it. Cancelling a call aborts it: its
caller goes at once, and the server frees its memory when it would.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Sequence

from rolloutkit.errors import EngineError, RequestError
from rolloutkit.protocols import Capabilities, OnProgress
from rolloutkit.resources import attended_pairs
from rolloutkit.routing import Fleet, StickyLeastLoaded
from rolloutkit.sim.sglang.batches import Pause
from rolloutkit.sim.sglang.load import Load
from rolloutkit.sim.sglang.pools import PoolExhausted
from rolloutkit.sim.sglang.request import Ending, Request
from rolloutkit.sim.sglang.settings import Server
from rolloutkit.sim.sglang.speech import Speaker, Speech
from rolloutkit.sim.sglang.worker import Worker
from rolloutkit.types import (
    Completion,
    FinishReason,
    GenerateRequest,
    SampleId,
    VersionSpan,
)


class ServersEngine:
    """Workers side by side. A request without a worker goes to the first.

    A completion's `service_seconds` is what the call takes on an idle worker that remembers the
    chain; everything beyond is `queue_seconds`, since sharing a worker is a way of waiting.
    """

    def __init__(
        self, server: Server, num_workers: int, speaker: Speaker, *, says_tokens: bool
    ) -> None:
        """Without `says_tokens` completions are sizes only, as those of recordings are."""
        self._timer = server.timer
        self._speaker = speaker
        self._says_tokens = says_tokens
        self._stations = {
            f"worker-{index}": Station(Worker(server.rules, server.timer))
            for index in range(num_workers)
        }
        self._placement = Fleet(tuple(self._stations), StickyLeastLoaded())
        self._capabilities = Capabilities(
            token_ids=says_tokens,
            logprobs=says_tokens,
            cached_tokens=True,
            priority=server.rules.by_priority,
            max_context=server.rules.max_context if says_tokens else None,
        )

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def placement(self) -> Fleet:
        """Where samples live."""
        return self._placement

    @property
    def workers(self) -> Sequence[Worker]:
        """The workers, to look at."""
        return [station.worker for station in self._stations.values()]

    @property
    def num_running(self) -> int:
        """Requests that wait in a server or hold its memory."""
        return sum(worker.num_running + worker.num_waiting for worker in self.workers)

    def loads(self) -> dict[str, Load]:
        """What each worker says of itself."""
        return {name: station.worker.load() for name, station in self._stations.items()}

    async def generate(
        self, request: GenerateRequest, on_progress: OnProgress | None = None
    ) -> Completion:
        """Wait for the worker. Cancelling aborts the request there."""
        name = request.worker or next(iter(self._stations))
        station = self._stations.get(name)
        if station is None:
            raise RequestError(f"there is no worker {name!r}; known: {', '.join(self._stations)}")
        speech = self._speaker.speak(request)
        if on_progress is not None:
            on_progress(0)
        asked_at = asyncio.get_running_loop().time()
        served = Request(
            speech.tokens,
            speech.num_prompt,
            max_new=request.sampling.max_tokens,
            priority=request.priority,
            ends_by_length=speech.finish_reason is FinishReason.LENGTH,
        )
        if not station.worker.fits(served):
            raise RequestError(
                f"{speech.num_prompt} prompt and {served.num_output} output tokens do not fit "
                f"{name}"
            )
        done_at = await station.serve(served)
        if served.ending is Ending.OUT_OF_MEMORY:
            raise EngineError(f"{name} ran out of KV memory with nothing left to retract")
        if on_progress is not None:
            on_progress(served.num_generated)
        return self._completion(served, speech, name, done_at - asked_at)

    def finish(self, sample_id: SampleId) -> None:
        """Forget what the sample said. Servers keep its cache until others need the room."""
        self._speaker.forget(sample_id)

    async def pause(self, mode: Pause) -> None:
        """Start no more batches on any worker. See `Pause` for what becomes of running requests."""
        for station in self._stations.values():
            station.pause(mode)

    async def resume(self) -> None:
        """Go on. Idempotent."""
        for station in self._stations.values():
            station.resume()

    async def update_weights(self, version: int) -> bool:
        """Sample by other weights from the next token on; whether every cache could be flushed.

        A cache in use is not: the requests that go on keep their old KV.
        """
        flushed = [station.worker.update_weights(version) for station in self._stations.values()]
        return all(flushed)

    def _completion(self, served: Request, speech: Speech, name: str, seconds: float) -> Completion:
        """What the caller gets; of an aborted request, what it had said."""
        num_output = served.num_generated
        prefill, decode = self._alone(speech, num_output)
        service = min(prefill + decode, seconds)
        ids: array[int] = array("i")
        if self._says_tokens:
            ids.frombytes(speech.output[: 4 * num_output])
        is_aborted = served.ending is Ending.ABORTED
        return Completion(
            finish_reason=FinishReason.ABORT if is_aborted else speech.finish_reason,
            token_ids=ids,
            logprobs=array("f", (-1.0,)) * num_output if self._says_tokens else None,
            prompt_tokens=speech.num_prompt,
            cached_tokens=served.num_cached,
            output_tokens=num_output,
            versions=_spans(served),
            worker=name,
            queue_seconds=seconds - service,
            prefill_seconds=min(prefill, service),
            service_seconds=service,
        )

    def _alone(self, speech: Speech, num_output: int) -> tuple[float, float]:
        context = speech.num_prompt
        new = max(1, context - speech.num_known)
        prefill = self._timer.prefill(new, attended_pairs(new, context))
        return prefill, num_output * self._timer.decode(1, context + num_output / 2)


def _spans(served: Request) -> tuple[VersionSpan, ...]:
    """Which weights sampled what; () where they never changed."""
    marks = served.version_marks
    if not any(version for version, _ in marks):
        return ()
    ends = [start for _, start in marks[1:]] + [served.num_generated]
    return tuple(
        VersionSpan(version, start, end)
        for (version, start), end in zip(marks, ends, strict=True)
        if start < end
    )


class Station:
    """A worker, its callers and the one timer that wakes it."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._callers: dict[Request, asyncio.Future[float]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._failure: str | None = None

    async def serve(self, request: Request) -> float:
        """Wait until the request is over; when that was. Raises EngineError if the worker broke."""
        loop = asyncio.get_running_loop()
        if self._failure is not None:
            raise EngineError(self._failure)
        over = self._callers[request] = loop.create_future()
        try:
            self._tell(lambda: self.worker.submit(request, loop.time()))
            return await over
        except asyncio.CancelledError:
            self._callers.pop(request, None)
            self._tell(lambda: self.worker.abort(request, loop.time()))
            raise
        finally:
            self._callers.pop(request, None)

    def pause(self, mode: Pause) -> None:
        """See `Worker.pause`."""
        loop = asyncio.get_running_loop()
        self._tell(lambda: self.worker.pause(mode, loop.time()))

    def resume(self) -> None:
        """See `Worker.resume`."""
        loop = asyncio.get_running_loop()
        self._tell(lambda: self.worker.resume(loop.time()))

    def _tell(self, act: Callable[[], list[Request]]) -> None:
        """Let the worker act, report who is over, and wake it when it wants to be woken."""
        loop = asyncio.get_running_loop()
        try:
            ended = act() if self._failure is None else []
        except PoolExhausted as error:
            self._break(f"the simulated server stopped: {error}: give it more of them")
            return
        now = loop.time()
        for request in ended:
            over = self._callers.get(request)
            if over is not None and not over.done():
                over.set_result(now)
        self._arm(loop)

    def _break(self, failure: str) -> None:
        self._failure = failure
        if self._timer is not None:
            self._timer.cancel()
        for over in self._callers.values():
            if not over.done():
                over.set_exception(EngineError(failure))

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
        self._tell(lambda: self.worker.advance(loop.time()))
