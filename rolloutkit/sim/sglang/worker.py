"""A simulated server's scheduler: prefill first, then decode, with all its rules. Pure.

The owner calls `submit`, `abort` and the like with the time, and `advance` at `wakes_at`. A batch
that runs is never changed: what arrives meanwhile is looked at when it ends, and decode steps that
nothing interrupts are taken together. What one batch after the other does follows SGLang 0.5.23
(`managers/scheduler.py`); docs/simulation.md lists where it does not.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple, Protocol

import msgspec

from rolloutkit.sim.sglang.budget import PrefillBudget, Verdict
from rolloutkit.sim.sglang.load import Counters, Load
from rolloutkit.sim.sglang.memory import Memory
from rolloutkit.sim.sglang.request import Ending, Request
from rolloutkit.sim.sglang.rules import Retraction, WorkerRules
from rolloutkit.sim.sglang.running import RunningBatch
from rolloutkit.sim.timing import attended_tokens

MAX_STEPS = 32  # of decoding at one go, so that their length follows the contexts
_REFRESH_INTERVAL = 32  # passes between two refreshes of waiting prefixes, of at most...
_REFRESH_MOST = 128  # ...so many requests
_ROUNDING = 1e-9  # of a step: an arrival that is so nearly at its start is there


class StepTimer(Protocol):
    """How long a worker takes for a batch, in seconds."""

    def decode_seconds(self, num_running: int, context_tokens: float) -> float:
        """One decode step of requests with so many tokens of context in all."""
        ...

    def prefill_seconds(self, num_tokens: int, attended: float) -> float:
        """One prefill; `attended` counts pairs of a computed token and one that it attends to."""
        ...


class Pause(StrEnum):
    """What becomes of the requests of a server that is paused."""

    ABORT = "abort"
    RETRACT = "retract"  # they start anew, with what they have said
    IN_PLACE = "in_place"  # they go on from where they are


class _Prefill(NamedTuple):
    requests: list[Request]
    cut: Request | None  # of them, the one that goes on in the next batch
    decodes_along: bool


class _Decode(NamedTuple):
    started_at: float
    step_seconds: float
    steps: int
    num_rows: int


class Worker:
    """Costs O(log n) a request, O(path) for its prefix, and O(running) for a prefill batch."""

    def __init__(self, rules: WorkerRules, timer: StepTimer) -> None:
        self.rules = rules
        self.memory = Memory(rules)
        self._timer = timer
        self._waiting: list[tuple[float, int, Request]] = []  # heap; those that ended stay in it
        self._num_waiting = 0
        self._arrivals = itertools.count()
        self._returns = itertools.count(-1, -1)  # to the head of the queue
        self._running = RunningBatch(rules.page_tokens, rules.clip_new_tokens)
        self._chunked: Request | None = None  # prefilled in part
        self._giving_up: list[Request] = []  # aborted while a batch runs
        self._unshared: list[Request] = []  # prefilled, not in the tree yet
        self._leaving: list[Request] = []  # ended, but their memory is not free yet
        self._batch: _Prefill | _Decode | None = None
        self._is_full = False  # nobody is taken in until somebody leaves
        self._pause: Pause | None = None
        self._ratio = rules.first_new_token_ratio
        self._passes = 0
        self._ended: list[Request] = []  # not reported yet
        self.counters = Counters()
        self.version = 0
        self.wakes_at: float | None = None

    @property
    def num_waiting(self) -> int:
        """Requests that have not started, or must start anew."""
        return self._num_waiting

    @property
    def num_running(self) -> int:
        """Requests that hold memory."""
        prefilling = self._batch.requests if isinstance(self._batch, _Prefill) else ()
        also = {request for request in (*prefilling, self._chunked) if request is not None}
        return len(self._running) + len(also) + len(self._leaving)

    def fits(self, request: Request) -> bool:
        """Whether an empty worker could serve the request."""
        return request.num_prompt + request.num_output <= self.rules.max_request_tokens

    def submit(self, request: Request, now: float) -> list[Request]:
        """Queue a request, which must fit. Like all the calls below, the requests that ended."""
        assert self.fits(request)
        request.max_new = min(request.max_new, self.rules.max_request_tokens - request.num_prompt)
        self.counters.num_requests += 1
        self._queue(request)
        return self._stir(now, must_look=not self._is_full or self._may_preempt(request))

    def abort(self, request: Request, now: float) -> list[Request]:
        """Give a request up. One that has started ends with its next token. Idempotent."""
        if request.ending is not None or request.is_aborted:
            return []
        request.is_aborted = True
        self.counters.num_aborted += 1
        if not self._has_started(request):
            self._num_waiting -= 1
            self._end(request, Ending.ABORTED)
            return self._report()
        self._giving_up.append(request)
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
        """Go on."""
        self._pause = None
        return self._stir(now, must_look=True)

    def flush(self) -> bool:
        """Forget the cache, unless something runs or, if not paused, waits; whether it was done."""
        if self._batch is not None or self.num_running:
            return False
        if self._num_waiting and self._pause is None:
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
        memory, states = self.memory, self.memory.states
        evictable = memory.tree.evictable_tokens
        slots = memory.tree.evictable_states if states is not None else 0
        return Load(
            num_running_reqs=self.num_running,
            num_waiting_reqs=self._num_waiting,
            max_total_num_tokens=memory.kv.capacity,
            max_running_requests=self.rules.max_running,
            num_used_tokens=memory.kv.num_used - evictable,
            kv_available_tokens=memory.kv.num_free,
            kv_evictable_tokens=evictable,
            mamba_capacity_slots=None if states is None else states.capacity,
            mamba_used_slots=None if states is None else states.num_used - slots,
            mamba_available_slots=None if states is None else states.num_free,
            mamba_evictable_slots=None if states is None else slots,
            new_token_ratio=self._ratio,
            evicted_tokens_total=memory.tree.num_evicted_tokens,
            num_retracted_requests_total=self.counters.num_retracted_requests,
            is_paused=self._pause is not None,
            counters=msgspec.structs.replace(
                self.counters, decode=msgspec.structs.replace(self.counters.decode)
            ),
        )

    def advance(self, now: float) -> list[Request]:
        """Let time pass up to `now`; a batch ends if it is due."""
        if self.wakes_at is None or now < self.wakes_at:
            return []
        self._end_batch()
        self._schedule(now)
        return self._report()

    # What arrives while a batch runs.

    def _stir(self, now: float, *, must_look: bool) -> list[Request]:
        """Schedule if nothing runs; else have the scheduler look after the current step."""
        if self._batch is None:
            self._schedule(now)
        elif must_look and isinstance(self._batch, _Decode):
            started_at, step_seconds, steps, rows = self._batch
            begun = math.ceil((now - started_at) / step_seconds - _ROUNDING)
            steps = min(steps, max(1, begun))
            self._batch = _Decode(started_at, step_seconds, steps, rows)
            self.wakes_at = started_at + steps * step_seconds
        return self._report()

    def _may_preempt(self, request: Request) -> bool:
        threshold = self.rules.preemption_threshold
        if threshold is None or not self.rules.by_priority:
            return False
        return any(request.priority - other.priority > threshold for other in self._running)

    def _report(self) -> list[Request]:
        ended, self._ended = self._ended, []
        return ended

    def _has_started(self, request: Request) -> bool:
        return request.node is not None

    def _alive(self) -> Iterator[Request]:
        yield from self._running
        if isinstance(self._batch, _Prefill):
            yield from self._batch.requests
        if self._chunked is not None and self._batch is None:
            yield self._chunked
        for _, order, request in self._waiting:
            if request.ending is None and request.queue_order == order:
                yield request

    # The end of a batch.

    def _end_batch(self) -> None:
        batch, self._batch = self._batch, None
        if isinstance(batch, _Decode):
            self._end_decode(batch)
        elif batch is not None:
            self._end_prefill(batch)

    def _end_decode(self, batch: _Decode) -> None:
        steps = batch.steps
        self.counters.decode.add(steps, batch.num_rows, steps * batch.step_seconds)
        if steps > 1:  # the first one got its pages when it started
            self.memory.grow(self._running.pages(steps) - self._running.pages(1))
            self._decay(steps - 1)
        self._settle_decoded(steps)

    def _settle_decoded(self, steps: int) -> None:
        for request in self._running.advance(steps):
            self.memory.track_decode(request)
            self._settle(request)

    def _end_prefill(self, batch: _Prefill) -> None:
        if batch.decodes_along:
            self._settle_decoded(1)
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
        """Let others use what was prefilled, now that the result is known."""
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
        self._is_full = False

    def _end(self, request: Request, ending: Ending) -> None:
        request.ending = ending
        self._ended.append(request)

    def _decay(self, steps: int) -> None:
        rules = self.rules
        per_step = (rules.first_new_token_ratio - rules.least_new_token_ratio) / (
            rules.ratio_decay_steps
        )
        self._ratio = max(rules.least_new_token_ratio, self._ratio - steps * per_step)

    # The start of the next one.

    def _schedule(self, now: float) -> None:
        self._settle_chunk()
        for request in self._giving_up:
            if request in self._running:
                self._running.end_next(request)
        self._giving_up.clear()
        if self._pause in (Pause.IN_PLACE, Pause.RETRACT):
            self._hold()
            return
        self._start_prefill(now)
        if self._batch is None and self._running:
            self._start_decode(now)
        self._share()
        freed = self._free_leaving()
        if self._batch is not None:
            return
        self.wakes_at = None
        self._ratio = self.rules.first_new_token_ratio
        if freed and (self._num_waiting or self._running):
            self._schedule(now)

    def _free_leaving(self) -> bool:
        leaving, self._leaving = self._leaving, []
        for request in leaving:
            self._free(request)
        return bool(leaving)

    def _hold(self) -> None:
        """Stay paused."""
        self._share()
        self._free_leaving()
        self.wakes_at = None
        if self._pause is Pause.RETRACT:
            retracted = list(self._running)
            if self._chunked is not None:
                retracted.append(self._chunked)
                self._chunked = None
            for index, request in enumerate(retracted):
                self._let_go(request, len(retracted) - index)
                self._queue(request)
            self._is_full = False

    def _settle_chunk(self) -> None:
        """Share the chunk that was just computed, or drop its request."""
        request = self._chunked
        if request is None:
            return
        if request.is_aborted:
            self._chunked = None
            self.memory.release(request)
            self._end(request, Ending.ABORTED)
        elif request.num_kv > request.num_prefix:
            self.memory.checkpoint(request)
            request.num_prefix = request.num_kv

    def _start_prefill(self, now: float) -> None:
        batch = self._take_in(now)
        if not batch:
            return
        self.memory.extend(batch)
        requests = [request for request, _ in batch]
        num_tokens = sum(request.num_kv - request.num_prefix for request in requests)
        attended = sum(
            attended_tokens(request.num_kv - request.num_prefix, request.num_kv)
            for request in requests
        )
        computed, num_decoding = num_tokens, len(self._running)
        along = self.rules.is_mixed and num_decoding > 0
        along = along and self.memory.has_room(self._running.pages(1))
        if along:
            self.memory.grow(self._running.pages(1))
            computed += num_decoding
            attended += self._running.context_tokens
        seconds = self._timer.prefill_seconds(computed, attended)
        self.counters.prefill_compute += num_tokens
        self.counters.prefill_busy_us += seconds * 1e6
        self._batch = _Prefill(requests, self._chunked, along)
        self.wakes_at = now + seconds

    def _take_in(self, now: float) -> list[tuple[Request, int]]:
        """Put a prefill batch together: requests, and how far each of them is computed."""
        rules = self.rules
        preempts = rules.by_priority and rules.preemption_threshold is not None
        rows = len(self._running) + len(self._leaving)
        if preempts or not rows:
            self._is_full = False
        if self._chunked is None:
            if self._is_full or not self._num_waiting:
                return []
            if rows >= rules.max_running and not preempts:
                self._is_full = True
                return []
        self._refresh_waiting()
        promised = self._running.promised(self._ratio)
        budget = PrefillBudget(rules, promised, len(self._running) if rules.is_mixed else 0)
        batch: list[tuple[Request, int]] = []
        if self._chunked is not None:
            self._go_on_with_chunk(self._chunked, budget, batch)
        preempted: list[Request] = []
        while (request := self._head()) is not None:
            if budget.verdict(self.memory.available_tokens) is Verdict.SPENT:
                break
            if len(batch) >= rules.max_running - len(self._running) - len(self._leaving):
                self._is_full = True
            if self._is_full:
                victims = self._preempt_for(request, budget) if preempts else []
                if not victims:
                    break
                preempted.extend(victims)
            if not self._take(request, budget, batch, now):
                break
        for request in preempted:
            self._queue(request)
        return batch

    def _head(self) -> Request | None:
        """The request that is next to be taken in."""
        if self._pause is Pause.ABORT:
            return None
        while self._waiting:
            request = self._waiting[0][2]
            if request.ending is None:
                return request
            heapq.heappop(self._waiting)
        return None

    def _go_on_with_chunk(
        self, request: Request, budget: PrefillBudget, batch: list[tuple[Request, int]]
    ) -> None:
        rest = request.num_fill - request.num_prefix
        extend = budget.go_on(rest, self.memory.available_tokens)
        budget.charge(extend, request.max_new if extend == rest else 0)
        batch.append((request, request.num_prefix + extend))
        if extend == rest:
            self._chunked = None

    def _take(
        self,
        request: Request,
        budget: PrefillBudget,
        batch: list[tuple[Request, int]],
        now: float,
    ) -> bool:
        """Take the first of the queue in, if it fits; whether the next one may try."""
        memory = self.memory
        memory.match(request)
        memory.lock(request)
        rest = request.num_fill - request.num_prefix
        fits = budget.fits(rest, request.max_new - request.num_generated, memory.available_tokens)
        extend = budget.cut(rest) if fits else 0
        if not extend or (extend < rest and self._chunked is not None):
            memory.unlock(request)
            memory.reject(request)
            self._is_full = not fits and (bool(batch) or self._has_rows)
            return False
        heapq.heappop(self._waiting)
        self._num_waiting -= 1
        if request.started_at is None:
            request.started_at = now
        if request.num_cached is None:
            request.num_cached = request.num_prefix
            self.counters.prompt_tokens += request.num_prompt
            self.counters.cached_tokens += request.num_cached
        budget.charge(extend, request.max_new if extend == rest else 0)
        batch.append((request, request.num_prefix + extend))
        if extend < rest:
            self._chunked = request
        verdict = budget.verdict(memory.available_tokens)
        if verdict is Verdict.NO_TOKENS:
            self._is_full = True
        return verdict is Verdict.CONTINUE

    @property
    def _has_rows(self) -> bool:
        return bool(self._running or self._leaving)

    def _refresh_waiting(self) -> None:
        """Now and then, touch the prefixes of those that wait, so that the next outlives the rest.

        The first of the queue is touched last.
        """
        if self._passes % _REFRESH_INTERVAL == 0 and self._num_waiting:
            waiting = [entry for entry in self._waiting if entry[2].ending is None]
            for _, _, request in reversed(heapq.nsmallest(_REFRESH_MOST, waiting)):
                self.memory.touch(request)
        self._passes += 1

    def _queue(self, request: Request, *, first: bool = False) -> None:
        request.queue_order = next(self._returns if first else self._arrivals)
        urgency = -request.priority if self.rules.by_priority else 0.0
        heapq.heappush(self._waiting, (urgency, request.queue_order, request))
        self._num_waiting += 1

    def _preempt_for(self, request: Request, budget: PrefillBudget) -> list[Request]:
        """Make running requests that are far less urgent start anew, if that is enough."""
        threshold = self.rules.preemption_threshold
        assert threshold is not None
        missing = budget.missing(
            request.num_fill, request.max_new, self.memory.available_tokens
        )
        victims: list[Request] = []
        for other in sorted(self._running, key=lambda one: (one.priority, -one.queue_order)):
            if request.priority - other.priority <= threshold:
                break
            victims.append(other)
            missing -= self._running.promised_to(other, self._ratio)
            if missing <= 0:
                break
        if not victims or missing > 0:
            return []
        for other in victims:
            budget.promise_less(self._running.promised_to(other, self._ratio))
            self._let_go(other, len(self._running) - 1)
        self.counters.num_preempted_requests += len(victims)
        return victims

    # Decoding.

    def _start_decode(self, now: float) -> None:
        """Start as many decode steps as nothing is sure to interrupt."""
        running, page = self._running, self.rules.page_tokens
        if not self.memory.has_room(self._pages_of_step()):
            self._free_leaving()
            if not self.memory.has_room(running.pages(1)):
                self._retract()
                if not running:
                    return
            else:
                self._decay(1)
        else:
            self._decay(1)
        overshoots = [request for request in self._leaving if not request.ends_by_length]
        self.memory.grow(self._pages_of_step())
        for request in overshoots:
            request.num_kv += 1
        steps = 1 if overshoots else min(MAX_STEPS, running.steps_left)
        first = running.pages(1)
        while steps > 1 and (running.pages(steps) - first) * page > self.memory.available_tokens:
            steps //= 2
        rows = len(running) + len(overshoots)
        context = running.context_tokens + rows * (steps - 1) / 2
        context += sum(request.num_kv for request in overshoots)
        seconds = self._timer.decode_seconds(rows, context)
        self._batch = _Decode(now, seconds, steps, rows)
        self.wakes_at = now + steps * seconds

    def _pages_of_step(self) -> int:
        """Pages of the next step, with those of requests that have ended unnoticed."""
        return self._running.pages(1) + sum(
            request.num_kv % self.rules.page_tokens == 0
            for request in self._leaving
            if not request.ends_by_length
        )

    def _retract(self) -> None:
        """Make running requests start anew until a step fits; the last of them is given up."""
        running = self._running
        keep = sorted(running, key=self._worth, reverse=True)
        retracted: list[Request] = []
        while len(keep) > 1 and (
            not retracted or not self.memory.has_room(running.pages(1))
        ):
            request = keep.pop()
            self._let_go(request, len(keep))
            retracted.append(request)
            counters = self.counters
            counters.num_retracted_requests += 1
            counters.num_retracted_input_tokens += request.num_prompt
            counters.num_retracted_output_tokens += request.num_generated
        if not self.memory.has_room(running.pages(1)):
            (last,) = keep
            self._let_go(last, 0)
            self._end(last, Ending.OUT_OF_MEMORY)
        said = sum(running.num_generated(request) for request in running)
        wanted = sum(request.max_new for request in running)
        self._ratio = min(1.0, (said + self.rules.retract_steps * len(running)) / (wanted + 1))
        is_first = self.rules.retraction is Retraction.YOUNGEST
        for request in retracted:
            self._queue(request, first=is_first)
        self._is_full = False

    def _worth(self, request: Request) -> tuple[float, ...]:
        """By which it is decided who stays; larger stays."""
        length = (self._running.num_generated(request), -request.num_prompt)
        match self.rules.retraction:
            case Retraction.LENGTH:
                return length
            case Retraction.PRIORITY:
                return (request.priority, *length)
            case Retraction.YOUNGEST:
                urgency = request.priority if self.rules.by_priority else 0.0
                return (urgency, -request.join_order)

    def _let_go(self, request: Request, num_left: int) -> None:
        """Free what a request holds; it will start anew."""
        if request in self._running:
            self._running.leave(request)
        if self.rules.shares_retracted:
            self.memory.finish(request)
        else:
            self.memory.release(request)
        self.memory.make_room(num_left * self.rules.retract_steps)
        request.num_retractions += 1
