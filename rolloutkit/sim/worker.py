"""One simulated worker: prefill first, decode as a fluid, the head of the line blocks. Pure.

Calls are taken by priority, then by arrival. Those that fit in memory are prefilled in chunks of at
most `CHUNK_TOKENS` together, of which the last call may be cut; meanwhile nothing decodes. Then
each running call gains one token a decode step, whose length follows from batch and contexts.
The owner calls `submit`, `withdraw` and `advance` with the time, and `advance` again at `wakes_at`.
"""

from __future__ import annotations

import heapq
import itertools
from typing import NamedTuple

from rolloutkit.sim.sessions import Grant, SessionMemory
from rolloutkit.sim.timing import ModelTiming, attended_tokens
from rolloutkit.types import SampleId

CHUNK_TOKENS = 8_192
# A timer may come early by rounding; a token that is so nearly there counts as generated.
_TOLERANCE_STEPS = 1e-6


class Sizes(NamedTuple):
    """Tokens of one call: the prompt, the part of it that no earlier call had, and the output."""

    context: int
    new: int
    output: int


class Call:
    """One request on its way through a worker; only the worker changes it."""

    __slots__ = (
        "done_at_step",
        "is_over",
        "num_cached",
        "num_prefilled",
        "priority",
        "sample_id",
        "sizes",
        "started_at",
    )

    def __init__(self, sample_id: SampleId, sizes: Sizes, priority: float) -> None:
        self.sample_id = sample_id
        self.sizes = sizes
        self.priority = priority
        self.is_over = False  # done or withdrawn
        self.started_at: float | None = None  # None while it waits
        self.num_cached = 0
        self.num_prefilled = 0  # of the prompt, cached tokens included
        self.done_at_step: float | None = None  # set once it decodes

    @property
    def num_final(self) -> int:
        """Tokens of context at its end."""
        return self.sizes.context + self.sizes.output


class ReferenceWorker:
    """Costs O(log n) a call in the calls that wait and run."""

    def __init__(self, timing: ModelTiming, *, memory_bytes: int, max_running: int) -> None:
        self._timing = timing
        self.memory = SessionMemory(memory_bytes)
        self._max_running = max_running
        self._arrivals = itertools.count()
        self._waiting: list[tuple[float, int, Call]] = []  # heap: largest priority, then arrival
        self._chunk: list[Call] = []  # being prefilled
        self._cut: Call | None = None  # prefilled in part, goes on in the next chunk
        self._running: list[tuple[float, int, Call]] = []  # heap by the step at which it is done
        self._num_reserved = 0  # calls in chunk, cut or running
        self._num_running = 0
        self._context_tokens = 0.0  # of the running calls, with what they have generated
        self._step = 0.0  # decode steps so far
        self._num_chunks = 0
        self._step_seconds = 0.0
        self._time = 0.0  # up to which the decoding was followed
        self.wakes_at: float | None = None

    @property
    def num_waiting(self) -> int:
        """Calls that wait for memory or their turn."""
        return sum(not call.is_over for _, _, call in self._waiting)

    @property
    def num_running(self) -> int:
        """Calls that hold memory."""
        return self._num_reserved

    def num_steps(self, now: float) -> int:
        """Chunks and decode steps so far: stands still only when it does nothing."""
        steps = self._step
        if self._num_running and not self._chunk:
            steps += (now - self._time) / self._step_seconds
        return self._num_chunks + int(steps)

    def fits(self, call: Call) -> bool:
        """Whether an empty worker has memory for the call."""
        return self._timing.running_bytes(call.num_final) <= self.memory.capacity_bytes

    def submit(self, call: Call, now: float) -> None:
        """Queue a call, which must fit: one that does not would block the others for ever."""
        assert self.fits(call)
        heapq.heappush(self._waiting, (-call.priority, next(self._arrivals), call))
        self._follow(now)
        self._go_on(now)

    def withdraw(self, call: Call, now: float) -> None:
        """Give a call up, wherever it is; what it held is free at once. Idempotent."""
        if call.is_over:
            return
        call.is_over = True
        if call.started_at is None:
            return  # skipped when its turn comes
        self._follow(now)
        self._free(call)
        if call.done_at_step is not None:
            self._num_running -= 1
            self._context_tokens -= call.num_final - (call.done_at_step - self._step)
        if call is self._cut:
            self._cut = None
        self._go_on(now)

    def finish(self, sample_id: SampleId) -> None:
        """The sample is over: drop its session."""
        self.memory.drop(sample_id)

    def retime(self, timing: ModelTiming, now: float) -> None:
        """From now on it is as fast as `timing` says, but for the chunk that is being prefilled."""
        self._follow(now)
        self._timing = timing
        self._go_on(now)

    def advance(self, now: float) -> list[Call]:
        """Let time pass up to `now`; the calls that are done by then."""
        done: list[Call] = []
        if self._chunk:
            if self.wakes_at is not None and now < self.wakes_at:
                return done
            self._end_chunk(now)
        else:
            self._follow(now)
            done = self._pop_done()
        self._go_on(now)
        return done

    def _follow(self, now: float) -> None:
        """Decode up to `now`; while a chunk is prefilled nothing decodes."""
        if self._num_running and not self._chunk:
            steps = (now - self._time) / self._step_seconds
            self._step += steps
            self._context_tokens += steps * self._num_running
        self._time = now

    def _go_on(self, now: float) -> None:
        """Start the next chunk, or decode; decide when to wake."""
        if self._chunk:
            return
        chunk_seconds = self._start_chunk(now)
        if self._chunk:
            self.wakes_at = now + chunk_seconds
            return
        while self._running and self._running[0][2].is_over:
            heapq.heappop(self._running)
        if not self._running:
            self._context_tokens = 0.0
            self.wakes_at = None
            return
        self._step_seconds = self._timing.decode_seconds(self._num_running, self._context_tokens)
        steps_left = max(0.0, self._running[0][0] - self._step)
        self.wakes_at = now + steps_left * self._step_seconds

    def _start_chunk(self, now: float) -> float:
        """Fill a chunk with waiting calls that fit in memory; how long it takes."""
        room, attended = CHUNK_TOKENS, 0.0
        while room:
            call = self._next_call(now)
            if call is None:
                break
            count = min(room, call.sizes.context - call.num_prefilled)
            call.num_prefilled += count
            attended += attended_tokens(count, call.num_prefilled)
            room -= count
            self._chunk.append(call)
            if call.num_prefilled < call.sizes.context:
                self._cut = call
        return self._timing.prefill_seconds(CHUNK_TOKENS - room, attended) if self._chunk else 0.0

    def _next_call(self, now: float) -> Call | None:
        """The call that was cut, or else the first that waits; one that may not run blocks all."""
        if self._cut is not None:
            call, self._cut = self._cut, None
            return call
        while self._waiting and self._waiting[0][2].is_over:
            heapq.heappop(self._waiting)
        if not self._waiting or self._num_reserved >= self._max_running:
            return None
        call = self._waiting[0][2]
        grant = self.memory.reserve(call.sample_id, self._timing.running_bytes(call.num_final))
        if grant is Grant.REFUSED:
            return None
        heapq.heappop(self._waiting)
        self._num_reserved += 1
        call.started_at = now
        if grant is Grant.HIT:
            computed = min(call.sizes.context, call.sizes.new + self._timing.miss_tokens)
            call.num_cached = call.num_prefilled = call.sizes.context - computed
        return call

    def _end_chunk(self, now: float) -> None:
        self._time = now
        self._num_chunks += 1
        for call in self._chunk:
            if call.is_over or call is self._cut:
                continue
            call.done_at_step = self._step + call.sizes.output
            self._num_running += 1
            self._context_tokens += call.sizes.context
            heapq.heappush(self._running, (call.done_at_step, next(self._arrivals), call))
        self._chunk.clear()

    def _pop_done(self) -> list[Call]:
        done: list[Call] = []
        while self._running and self._running[0][0] <= self._step + _TOLERANCE_STEPS:
            call = heapq.heappop(self._running)[2]
            if call.is_over:
                continue
            call.is_over = True
            self._num_running -= 1
            self._context_tokens -= call.num_final
            self._free(call)
            self.memory.keep(call.sample_id, self._timing.idle_bytes(call.num_final))
            done.append(call)
        return done

    def _free(self, call: Call) -> None:
        self._num_reserved -= 1
        self.memory.release(self._timing.running_bytes(call.num_final))
