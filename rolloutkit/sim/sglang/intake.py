"""Which waiting requests are prefilled next, and how far: the batches of SGLang's scheduler.

One request at a time may be prefilled in part; it goes first. Nobody overtakes the head of the
queue: if there is no memory for it, nobody is taken in until somebody leaves.
"""

from __future__ import annotations

from typing import NamedTuple

from rolloutkit.sim.sglang.budget import PrefillBudget, Verdict
from rolloutkit.sim.sglang.load import Counters
from rolloutkit.sim.sglang.memory import Memory
from rolloutkit.sim.sglang.queue import WaitingQueue
from rolloutkit.sim.sglang.request import Request
from rolloutkit.sim.sglang.rules import WorkerRules
from rolloutkit.sim.sglang.running import RunningBatch


class Portion(NamedTuple):
    """A request in a prefill batch, computed up to `end`."""

    request: Request
    end: int


class Intake:
    """Owns the request that is prefilled in part, and whether the worker is full."""

    def __init__(
        self,
        rules: WorkerRules,
        memory: Memory,
        queue: WaitingQueue,
        running: RunningBatch,
        counters: Counters,
    ) -> None:
        self._rules = rules
        self._memory = memory
        self._queue = queue
        self._running = running
        self._counters = counters
        self.cut: Request | None = None  # prefilled in part
        self.is_full = False  # nobody is taken in until somebody leaves

    @property
    def preempts(self) -> bool:
        """Whether urgent requests drive others out."""
        return self._rules.by_priority and self._rules.preemption_threshold is not None

    def settle_cut(self) -> Request | None:
        """Share the part that was computed last. Returns the request if it was aborted instead."""
        request = self.cut
        if request is None:
            return None
        if request.is_aborted:
            self.cut = None
            self._memory.release(request)
            return request
        if request.num_kv > request.num_prefix:
            self._memory.checkpoint(request)
            request.num_prefix = request.num_kv
        return None

    def take_in(
        self, now: float, ratio: float, num_leaving: int, *, is_open: bool
    ) -> list[Portion]:
        """Put a batch together. `ratio` of what running requests may still say is set aside.

        `num_leaving` requests have ended and still hold memory. Unless `is_open` only the request
        that was cut goes on.
        """
        rows = len(self._running) + num_leaving
        if not self._should_look(rows):
            return []
        for request in self._queue.to_refresh():
            self._memory.touch(request)
        num_decoding = len(self._running) if self._rules.is_mixed else 0
        budget = PrefillBudget(self._rules, self._running.promised(ratio), num_decoding)
        batch: list[Portion] = []
        if self.cut is not None:
            self._go_on(self.cut, budget, batch)
        if is_open:
            self._take_waiting(budget, batch, now, ratio, num_leaving)
        return batch

    def drive_out(self, request: Request, num_left: int) -> None:
        """Free what a running request holds; it is to start anew. `num_left` others go on.

        A little more room is made for these, so that they are not driven out at once.
        """
        if request in self._running:
            self._running.leave(request)
        if self._rules.shares_retracted:
            self._memory.finish(request)
        else:
            self._memory.release(request)
        self._memory.make_room(num_left * self._rules.retract_steps)
        request.num_retractions += 1

    def _should_look(self, rows: int) -> bool:
        if self.preempts or not rows:
            self.is_full = False
        if self.cut is not None:
            return True
        if self.is_full or not self._queue:
            return False
        if rows >= self._rules.max_running and not self.preempts:
            self.is_full = True
            return False
        return True

    def _go_on(self, request: Request, budget: PrefillBudget, batch: list[Portion]) -> None:
        rest = request.num_fill - request.num_prefix
        extend = budget.go_on(rest, self._memory.available_tokens)
        budget.charge(extend, request.max_new if extend == rest else 0)
        batch.append(Portion(request, request.num_prefix + extend))
        if extend == rest:
            self.cut = None

    def _take(
        self,
        request: Request,
        budget: PrefillBudget,
        batch: list[Portion],
        now: float,
        *,
        has_rows: bool,
    ) -> bool:
        """Take the head of the queue in, if it fits; whether the next one may try."""
        memory = self._memory
        memory.match(request)
        memory.lock(request)
        rest = request.num_fill - request.num_prefix
        fits = budget.fits(rest, request.max_new - request.num_generated, memory.available_tokens)
        extend = self._stop(request, budget.cut(rest)) if fits else 0
        if not extend or (extend < rest and self.cut is not None):
            memory.unlock(request)
            memory.reject(request)
            self.is_full = not fits and (bool(batch) or has_rows)
            return False
        self._queue.pop()
        self._start(request, now)
        budget.charge(extend, request.max_new if extend == rest else 0)
        batch.append(Portion(request, request.num_prefix + extend))
        if extend < rest:
            self.cut = request
        verdict = budget.verdict(memory.available_tokens)
        if verdict is Verdict.NO_TOKENS:
            self.is_full = True
        return verdict is Verdict.CONTINUE

    def _stop(self, request: Request, extend: int) -> int:
        """Stop a prefill where paths part, if the state there is to be kept."""
        states, branch = self._rules.states, request.branch_at
        if states is None or not states.stops_at_branches or branch is None or self.cut is not None:
            return extend
        return min(extend, branch - request.num_prefix)

    def _take_waiting(
        self,
        budget: PrefillBudget,
        batch: list[Portion],
        now: float,
        ratio: float,
        num_leaving: int,
    ) -> None:
        preempted: list[Request] = []
        while (request := self._queue.head()) is not None:
            if budget.verdict(self._memory.available_tokens) is Verdict.SPENT:
                break
            rows = len(self._running) + num_leaving
            if len(batch) >= self._rules.max_running - rows:
                self.is_full = True
            if self.is_full:
                driven_out = self._preempt_for(request, budget, ratio)
                if not driven_out:
                    break
                preempted.extend(driven_out)
            if not self._take(request, budget, batch, now, has_rows=rows > 0):
                break
        for request in preempted:
            self._queue.push(request)

    def _start(self, request: Request, now: float) -> None:
        """Note what a request had cached when it first started."""
        if request.started_at is None:
            request.started_at = now
            request.num_cached = request.num_prefix
            self._counters.prompt_tokens += request.num_prompt
            self._counters.cached_tokens += request.num_cached

    def _preempt_for(self, request: Request, budget: PrefillBudget, ratio: float) -> list[Request]:
        """Drive far less urgent requests out, if that is enough: the least urgent, newest first."""
        threshold = self._rules.preemption_threshold
        if threshold is None or not self.preempts:
            return []
        missing = budget.missing(request.num_fill, request.max_new, self._memory.available_tokens)
        victims: list[Request] = []
        for other in sorted(self._running, key=lambda one: (one.priority, -one.queue_order)):
            if request.priority - other.priority <= threshold:
                break
            victims.append(other)
            missing -= self._running.promised_to(other, ratio)
            if missing <= 0:
                break
        if not victims or missing > 0:
            return []
        for other in victims:
            budget.promise_less(self._running.promised_to(other, ratio))
            self.drive_out(other, len(self._running) - 1)
        self._counters.num_preempted_requests += len(victims)
        return victims
