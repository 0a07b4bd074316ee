"""A simulated server's scheduler: prefill first, then decode, with all its rules. Pure.

The owner calls `submit`, `abort` and the like with the time, and `advance` at `wakes_at`. A batch
that runs is never changed: what arrives meanwhile is looked at when it ends, and decode steps that
nothing interrupts are taken together. What one batch after the other does follows SGLang 0.5.23
(`managers/scheduler.py`); docs/simulation.md lists where it does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from rolloutkit.resources import attended_pairs
from rolloutkit.sim.sglang.batches import Decode, Held, Pause, Prefill, StepTimer
from rolloutkit.sim.sglang.intake import Intake
from rolloutkit.sim.sglang.load import Counters, Load, report
from rolloutkit.sim.sglang.memory import Memory
from rolloutkit.sim.sglang.queue import WaitingQueue
from rolloutkit.sim.sglang.ratio import NewTokenRatio
from rolloutkit.sim.sglang.request import Ending, Request
from rolloutkit.sim.sglang.rules import Retraction, WorkerRules
from rolloutkit.sim.sglang.running import RunningBatch

MAX_STEPS = 32  # of decoding at one go, so that their length follows the contexts
_ROUNDING = 1e-9  # of a step: an arrival that is so nearly at its start is there


class Worker:
    """Costs O(log n) a request, O(length of its path) for its prefix, and evictions."""

    def __init__(self, rules: WorkerRules, timer: StepTimer) -> None:
        self.rules = rules
        self.memory = Memory(rules)
        self.counters = Counters()
        self.version = 0  # of the weights
        self.wakes_at: float | None = None
        self._timer = timer
        self._queue = WaitingQueue(by_priority=rules.by_priority)
        self._running = RunningBatch(rules.page_tokens, rules.clip_new_tokens)
        self._intake = Intake(rules, self.memory, self._queue, self._running, self.counters)
        self._batch: Prefill | Decode | None = None
        self._pause: Pause | None = None
        self._ratio = NewTokenRatio(rules)
        self._aborting: list[Request] = []  # since the scheduler looked last
        self._unshared: list[Request] = []  # prefilled, but not in the tree yet
        self._leaving: list[Request] = []  # ended, but their memory is not free yet
        self._ended: list[Request] = []  # not reported yet

    @property
    def num_waiting(self) -> int:
        """Requests that have not started, or must start anew."""
        return len(self._queue)

    @property
    def num_running(self) -> int:
        """Requests that hold memory."""
        prefilling = self._batch.requests if isinstance(self._batch, Prefill) else ()
        also = {request for request in (*prefilling, self._intake.cut) if request is not None}
        return len(self._running) + len(also) + len(self._leaving)

    def fits(self, request: Request) -> bool:
        """Whether an empty worker could serve the request."""
        return request.num_prompt + request.num_output <= self.rules.max_request_tokens

    def submit(self, request: Request, now: float) -> list[Request]:
        """Queue a request, which must fit. Like the calls below, returns who has ended."""
        assert self.fits(request)
        request.max_new = min(request.max_new, self.rules.max_request_tokens - request.num_prompt)
        self.counters.num_requests += 1
        self._queue.push(request)
        return self._stir(now, must_look=self._intake.preempts or not self._intake.is_full)

    def abort(self, request: Request, now: float) -> list[Request]:
        """Give a request up. One that has started ends with its next token. Idempotent."""
        if request.ending is not None or request.is_aborted:
            return []
        request.is_aborted = True
        self.counters.num_aborted += 1
        if request.node is None:  # it waits
            self._queue.forget()
            self._end(request, Ending.ABORTED)
            return self._report()
        self._aborting.append(request)
        return self._stir(now, must_look=True)

    def pause(self, mode: Pause, now: float) -> list[Request]:
        """Start no more batches after the one that runs; `abort` lets those that run end first."""
        self._pause = mode
        ended: list[Request] = []
        if mode is Pause.ABORT:
            for request in list(self._alive()):
                ended.extend(self.abort(request, now))
        return ended + self._stir(now, must_look=True)

    def resume(self, now: float) -> list[Request]:
        """Go on. Idempotent."""
        self._pause = None
        return self._stir(now, must_look=True)

    def flush(self) -> bool:
        """Forget the cache, unless something runs or, if not paused, waits; whether it was done."""
        if self._batch is not None or self.num_running:
            return False
        if self._queue and self._pause is None:
            return False
        self.memory.clear()
        return True

    def update_weights(self, version: int, *, flush: bool = True) -> bool:
        """Sample by other weights from the next token on; whether the cache was flushed if asked.

        Requests that go on keep their old KV, as on a real server.
        """
        self.version = version
        for request in self._alive():
            said = request.num_generated
            if request in self._running:
                said = self._running.num_generated(request)
            if said:
                request.version_marks.append((version, said))
        return flush and self.flush()

    def load(self) -> Load:
        """The figures that a real server reports."""
        return report(
            self.memory,
            self.counters,
            num_running=self.num_running,
            num_waiting=len(self._queue),
            max_running=self.rules.max_running,
            new_token_ratio=self._ratio.value,
            is_paused=self._pause is not None,
        )

    def held(self) -> Held:
        """What requests hold beside the tree, counted one by one: with it every unit is found."""
        in_flight = isinstance(self._batch, Decode)
        in_flight = in_flight or (isinstance(self._batch, Prefill) and self._batch.decodes_along)
        ahead = 1 if in_flight else 0  # a step's pages are taken when it starts
        page, tokens, slots = self.rules.page_tokens, 0, 0
        for request in {*self._alive(), *self._leaving}:
            kv = request.num_kv
            if request in self._running:
                kv += self._running.step - request.decoded_since + ahead
            tokens += -(-kv // page) * page - request.num_protected
            slots += request.num_slots
        return Held(tokens, slots)

    def advance(self, now: float) -> list[Request]:
        """Let time pass up to `now`; a batch ends if it is due, and the next one starts."""
        if self.wakes_at is None or now < self.wakes_at:
            return []
        batch, self._batch = self._batch, None
        if isinstance(batch, Decode):
            self._end_decode(batch)
        elif batch is not None:
            self._end_prefill(batch)
        self._schedule(now)
        return self._report()

    def _stir(self, now: float, *, must_look: bool) -> list[Request]:
        """Have the scheduler look after the current step, or if nothing runs at the end of this
        moment: what comes at once goes into one batch.
        """
        if self._batch is None:
            self.wakes_at = now
        elif must_look and isinstance(self._batch, Decode):
            started_at, step_seconds, steps, _ = self._batch
            begun = math.ceil((now - started_at) / step_seconds - _ROUNDING)
            steps = min(steps, max(1, begun))
            self._batch = self._batch._replace(steps=steps)
            self.wakes_at = started_at + steps * step_seconds
        return self._report()

    def _report(self) -> list[Request]:
        ended, self._ended = self._ended, []
        return ended

    def _alive(self) -> Iterator[Request]:
        yield from self._running
        if isinstance(self._batch, Prefill):
            yield from self._batch.requests
        elif self._intake.cut is not None:
            yield self._intake.cut
        yield from self._queue

    # The end of a batch.

    def _end_decode(self, batch: Decode) -> None:
        steps = batch.steps
        self.counters.decode.add(steps, batch.num_rows, steps * batch.step_seconds)
        if steps > 1:  # the first one got its pages when it started
            self.memory.grow(self._running.pages(steps) - self._running.pages(1))
            self._ratio.decay(steps - 1)
        self._advance_running(steps)

    def _advance_running(self, steps: int) -> None:
        for request in self._running.advance(steps):
            self.memory.track_decode(request)
            self._settle(request)

    def _end_prefill(self, batch: Prefill) -> None:
        if batch.decodes_along:
            self._advance_running(1)
        for request in batch.requests:
            if request is batch.cut:
                continue
            if not request.num_generated:
                request.version_marks.append((self.version, 0))
            request.num_generated += 1
            if request.is_aborted or request.num_generated >= request.num_output:
                self._settle(request)
                continue
            request.num_prefix = request.num_kv
            self._running.join(request)
            self._unshared.append(request)
        if not self.rules.overlap:
            self._share()

    def _share(self) -> None:
        """Let others use what was prefilled, now that its result is known."""
        for request in self._unshared:
            if request in self._running:
                self.memory.checkpoint(request)
        self._unshared.clear()

    def _settle(self, request: Request) -> None:
        """It has its last token: it is over, and its memory is free now or after the next start."""
        self._end(request, Ending.ABORTED if request.is_aborted else Ending.DONE)
        if self.rules.overlap:
            self._leaving.append(request)
        else:
            self._free(request)

    def _free(self, request: Request) -> None:
        self.memory.finish(request)
        self._intake.is_full = False

    def _free_leaving(self) -> bool:
        leaving, self._leaving = self._leaving, []
        for request in leaving:
            self._free(request)
        return bool(leaving)

    def _end(self, request: Request, ending: Ending) -> None:
        request.ending = ending
        self._ended.append(request)

    # The start of the next one.

    def _schedule(self, now: float) -> None:
        if (dropped := self._intake.settle_cut()) is not None:
            self._end(dropped, Ending.ABORTED)
        for request in self._aborting:
            if request in self._running:
                self._running.end_next(request)
        self._aborting.clear()
        if self._pause in (Pause.IN_PLACE, Pause.RETRACT):
            self._hold()
            return
        self._start_prefill(now)
        if self._batch is None and self._running:
            self._start_decode(now)
        self._share()
        has_freed = self._free_leaving()
        if self._batch is not None:
            return
        self.wakes_at = None
        self._ratio.reset()
        if has_freed and (self._queue or self._running):
            self._schedule(now)

    def _hold(self) -> None:
        """Stay paused."""
        self._share()
        self._free_leaving()
        self.wakes_at = None
        if self._pause is Pause.RETRACT:
            retracted = list(self._running)
            if self._intake.cut is not None:
                retracted.append(self._intake.cut)
                self._intake.cut = None
            for index, request in enumerate(retracted):
                self._intake.drive_out(request, len(retracted) - index)
                self._queue.push(request)
            self._intake.is_full = False

    def _start_prefill(self, now: float) -> None:
        batch = self._intake.take_in(
            now, self._ratio.value, len(self._leaving), is_open=self._pause is not Pause.ABORT
        )
        if not batch:
            return
        self.memory.extend(batch)
        requests = [portion.request for portion in batch]
        num_tokens = sum(request.num_kv - request.num_prefix for request in requests)
        attended = sum(
            attended_pairs(request.num_kv - request.num_prefix, request.num_kv)
            for request in requests
        )
        num_computed = num_tokens
        decodes_along = self.rules.is_mixed and len(self._running) > 0
        decodes_along = decodes_along and self.memory.has_room(self._running.pages(1))
        if decodes_along:
            self.memory.grow(self._running.pages(1))
            num_computed += len(self._running)
            attended += self._running.context_tokens
        seconds = self._timer.prefill(num_computed, attended)
        self.counters.prefill_compute += num_tokens
        self.counters.prefill_busy_us += seconds * 1e6
        self._batch = Prefill(requests, self._intake.cut, decodes_along)
        self.wakes_at = now + seconds

    # Decoding.

    def _start_decode(self, now: float) -> None:
        """Start as many decode steps as nothing is sure to interrupt."""
        running = self._running
        self._make_room_for_step()
        if not running:
            return
        overshooting = self._overshooting()
        self.memory.grow(self._pages_of_step())
        for request in overshooting:
            request.num_kv += 1
        steps = 1 if overshooting else self._steps_at_once()
        rows = len(running) + len(overshooting)
        context = running.context_tokens + rows * (steps - 1) / 2
        context += sum(request.num_kv for request in overshooting)
        seconds = self._timer.decode(rows, context)
        self._batch = Decode(now, seconds, steps, rows)
        self.wakes_at = now + steps * seconds

    def _overshooting(self) -> list[Request]:
        """Requests that have ended unnoticed and decode once more, for nothing.

        An end by length is foreseen.
        """
        return [request for request in self._leaving if not request.ends_by_length]

    def _pages_of_step(self) -> int:
        page = self.rules.page_tokens
        extra = sum(request.num_kv % page == 0 for request in self._overshooting())
        return self._running.pages(1) + extra

    def _steps_at_once(self) -> int:
        steps = min(MAX_STEPS, self._running.steps_left)
        first = self._running.pages(1)
        while steps > 1:
            further = (self._running.pages(steps) - first) * self.rules.page_tokens
            if further <= self.memory.available_tokens:
                break
            steps //= 2
        return steps

    def _make_room_for_step(self) -> None:
        if not self.memory.has_room(self._pages_of_step()):
            self._free_leaving()
            if not self.memory.has_room(self._running.pages(1)):
                self._retract()
                return
        self._ratio.decay(1)

    def _retract(self) -> None:
        """Drive running requests out until a step fits; the last of them is given up."""
        running, memory = self._running, self.memory
        keep = running.by_worth(self.rules)
        retracted: list[Request] = []
        while len(keep) > 1 and not (retracted and memory.has_room(running.pages(1))):
            request = keep.pop()
            self._intake.drive_out(request, len(keep))
            retracted.append(request)
            self.counters.count_retraction(request.num_prompt, request.num_generated)
        if not memory.has_room(running.pages(1)):
            (last,) = keep
            running.leave(last)
            memory.release(last)
            self._end(last, Ending.OUT_OF_MEMORY)
        self._ratio.learn(running)
        for request in retracted:
            self._queue.push(request, first=self.rules.retraction is Retraction.YOUNGEST)
        self._intake.is_full = False
