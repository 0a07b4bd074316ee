"""The steady state of one worker with so many samples alive: throughput, hits, who waits for what.

A sample alternates between a turn (queue, prefill, decode) and a pause. Idle samples survive in the
cache for a characteristic time (Che, Tung and Wang 2002): that in which new entries fill what the
running ones leave. A turn that resumes later than that pays its whole prompt again. The fixed point
is found from the side of hits, so that of two steady states the good one is told.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from rolloutkit.resources.timing import StepTime
from rolloutkit.resources.workload import Workload

MAX_ROUNDS = 60
TOLERANCE = 1e-4  # of a hit rate; and of samples and seconds, as a share
USABLE = 0.97  # of the memory: pages, tails and what the allocator cannot place
SPREAD_SIGMAS = 1.28  # contexts add up to more in one case of ten
SOON = 1e-3  # seconds
FOREVER = 1e9  # seconds


class Rules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the engine uses its memory. Defaults: SGLang 0.5.23, `extra_buffer`, overlap on."""

    slots_pinned: int = 4  # states that a running request holds: its own, two to copy, its source
    slots_required: int = 5  # states that must exist for each running request
    chunk_tokens: int = 8_192  # of a prefill batch
    lost_tokens: int = 128  # recomputed on a hit: states are kept every 256 tokens
    page_tokens: int = 1
    max_running: int = 4_096
    states_per_path: int | None = 1  # None: all that were ever made; superseded ones wait for LRU
    keeps_finished: bool = True  # finished samples stay until LRU reaches them

    def dead_states(self, new_tokens: float) -> float:
        """States that a turn leaves behind and nobody uses: of each chunk, and the last end."""
        made = math.ceil(max(1.0, new_tokens) / self.chunk_tokens) + 1
        return made if self.states_per_path is None else min(made, self.states_per_path - 1)


class Memory(NamedTuple):
    """What a worker's pools hold, per GPU. `slots` None: one pool for both, shared as needed."""

    pool_bytes: float
    kv_bytes_per_token: float
    state_bytes: float = 0.0
    window_bytes: float = 0.0  # of a sequence, kept as tokens are
    slots: int | None = None

    @property
    def kv_tokens(self) -> float:
        """Tokens that fit beside the slots."""
        rest = self.pool_bytes - self.state_bytes * (self.slots + 1 if self.slots else 0)
        return max(0.0, rest) / self.kv_bytes_per_token if self.kv_bytes_per_token else math.inf


class Point(NamedTuple):
    """A steady state. Rates are per second of one worker."""

    num_samples: float
    turns_per_second: float
    hit_rate: float  # of turns that resume
    num_running: float  # that decode, or are prefilled
    num_waiting: float  # for the engine to admit them
    prefill_share: float  # of the time
    survival_seconds: float  # of an idle sample's cache
    state_survives: float  # seconds, apart: states
    kv_survives: float  # and keys and values


class _Flow(NamedTuple):
    in_engine: float  # requests
    rate: float  # turns a second
    waiting: float  # requests
    share: float  # of the time, in prefill


class Worker:
    """One worker under one workload. Each question costs a few thousand floating-point steps."""

    def __init__(self, step: StepTime, memory: Memory, workload: Workload, rules: Rules) -> None:
        self.step = step
        self.memory = memory
        self.workload = workload
        self.rules = rules
        lost = rules.lost_tokens if memory.state_bytes else 0
        resume, chunk = workload.resume_context, rules.chunk_tokens
        fresh_tokens = min(workload.new_tokens + lost, max(resume, workload.new_tokens))
        self.fresh_seconds = step.prefill_share(fresh_tokens, max(resume, fresh_tokens), chunk)
        self.miss_seconds = max(0.0, step.prefill_share(resume, resume, chunk) - self.fresh_seconds)
        self.resumed_share = 1 - 1 / max(1.0, workload.turns)
        self._dead = rules.dead_states(workload.new_tokens) if memory.state_bytes else 0.0
        self._page = rules.page_tokens / 2
        self._window = (
            memory.window_bytes / memory.kv_bytes_per_token if memory.kv_bytes_per_token else 0.0
        )
        self.max_running = self._max_running()

    @property
    def idle_tokens(self) -> float:
        """Tokens that an idle sample keeps for itself."""
        return self.workload.private_idle + self._page + self._window

    @property
    def running_tokens(self) -> float:
        """The same of a running one, with what it is generating."""
        return self.workload.private_running + self._page + self._window

    @property
    def idle_bytes(self) -> float:
        memory = self.memory
        return memory.state_bytes + memory.kv_bytes_per_token * self.idle_tokens

    @property
    def running_bytes(self) -> float:
        memory = self.memory
        return (
            self.rules.slots_pinned * memory.state_bytes
            + memory.kv_bytes_per_token * self.running_tokens
        )

    @property
    def reserved_tokens(self) -> float:
        """What the engine sets aside for a request before it starts."""
        return self.running_tokens + self.workload.output_tokens

    def _max_running(self) -> float:
        """Requests that the engine runs at once."""
        memory, most, whole = self.memory, float(self.rules.max_running), self.reserved_tokens
        if memory.slots is not None:
            most = min(most, memory.slots // self.rules.slots_required, memory.kv_tokens / whole)
        elif memory.kv_bytes_per_token or memory.state_bytes:
            each = self.rules.slots_required * memory.state_bytes
            most = min(most, memory.pool_bytes / (each + memory.kv_bytes_per_token * whole))
        return max(1.0, most)

    def turn_rate(self, num_decoding: float, prefill_seconds: float) -> float:
        """Turns a second with so many decoding and so many GPU seconds of prefill a turn."""
        batch = max(1.0, num_decoding)
        step = self.step.decode(batch, batch * self.workload.running_context)
        return 1 / (self.workload.output_tokens * step / num_decoding + prefill_seconds)

    def peak_rate(self) -> float:
        """Turns a second if memory were no limit and enough samples lived."""
        most = float(self.rules.max_running)
        return self.turn_rate(most, self.fresh_seconds)

    def at(self, num_samples: float) -> Point:
        """The steady state with so many samples alive."""
        hit, point = 1.0, self._settle(num_samples, 1.0)
        for _ in range(MAX_ROUNDS):
            found = point.hit_rate
            if abs(found - hit) < TOLERANCE:
                break
            hit += 0.5 * (found - hit)
            point = self._settle(num_samples, hit)
        return point._replace(hit_rate=hit)

    def num_running(self, num_samples: float) -> float:
        """Of so many samples, those that the engine works on when nothing is lost."""
        return min(num_samples, self._flow(num_samples, 1.0).in_engine)

    def spread_tokens(self, num_samples: float) -> float:
        """Room for contexts that add up to more than their mean says."""
        return SPREAD_SIGMAS * self.workload.context_deviation * math.sqrt(num_samples)

    def _settle(self, num_samples: float, hit: float) -> Point:
        """What follows from a hit rate, the hit rate that follows from it included."""
        running, rate, waiting, share = self._flow(num_samples, hit)
        delay = waiting / rate
        kv, state = self._survival(num_samples, running, rate, delay)
        survives = min(kv, state)
        return Point(
            num_samples=num_samples,
            turns_per_second=rate,
            hit_rate=self.workload.pauses.share_within(survives - delay),
            num_running=running,
            num_waiting=waiting,
            prefill_share=share,
            survival_seconds=survives,
            state_survives=state,
            kv_survives=kv,
        )

    def _flow(self, num_samples: float, hit: float) -> _Flow:
        prefill = self.fresh_seconds + self.resumed_share * (1 - hit) * self.miss_seconds
        pause = self.resumed_share * self.workload.pauses.mean

        def samples(decoding: float) -> float:
            rate = self.turn_rate(decoding, prefill)
            share = min(rate * prefill, 1 - 1e-9)
            return decoding + share / (1 - share) + rate * pause

        low, high = 1e-6, self.max_running
        if samples(high) > num_samples:
            while high - low > TOLERANCE * high:
                middle = (low + high) / 2
                low, high = (middle, high) if samples(middle) < num_samples else (low, middle)
        rate = self.turn_rate(high, prefill)
        share = min(rate * prefill, 1 - 1e-9)
        in_engine = min(self.max_running, high + share / (1 - share))
        waiting = max(0.0, num_samples - in_engine - rate * pause)
        return _Flow(in_engine, rate, waiting, share)

    def _survival(
        self, num_samples: float, running: float, rate: float, delay: float
    ) -> tuple[float, float]:
        """Seconds that keys and values, and states, stay after their last use."""
        memory, rules, workload = self.memory, self.rules, self.workload
        k, s = memory.kv_bytes_per_token, memory.state_bytes
        ended = rate / max(1.0, workload.turns) if rules.keeps_finished else 0.0
        resumed = rate * self.resumed_share

        def idle(seconds: float) -> float:
            return resumed * (min(seconds, delay) + workload.pauses.mean_within(seconds - delay))

        def tokens(seconds: float) -> float:
            return idle(seconds) * self.idle_tokens + ended * workload.final_context * seconds

        def states(seconds: float) -> float:
            return idle(seconds) + (rate * self._dead + ended) * seconds

        spread = self.spread_tokens(num_samples)
        used = running * self.running_tokens + spread
        if memory.slots is None:
            room = USABLE * memory.pool_bytes - running * rules.slots_pinned * s - k * used
            both = _longest(lambda seconds: k * tokens(seconds) + s * states(seconds), room)
            return both, both
        kv = _longest(tokens, USABLE * memory.kv_tokens - used) if k else FOREVER
        if not s:
            return kv, FOREVER
        return kv, _longest(states, memory.slots - running * rules.slots_pinned)

    def slots_for(self, point: Point) -> float:
        """States that live as long as they survive in `point`, and that running requests need."""
        rate, seconds = point.turns_per_second, point.survival_seconds
        delay = point.num_waiting / rate
        pauses = self.workload.pauses
        seconds = min(seconds, delay + max(pauses.longest, 1.0))
        ended = rate / max(1.0, self.workload.turns) if self.rules.keeps_finished else 0.0
        idle = (
            rate * self.resumed_share * (min(seconds, delay) + pauses.mean_within(seconds - delay))
        )
        kept = idle + (rate * self._dead + ended) * seconds
        running = point.num_running
        return max(self.rules.slots_pinned * running + kept, self.rules.slots_required * running)


def _longest(need: Callable[[float], float], room: float) -> float:
    """The longest time for which the need fits; needs grow with time."""
    if room <= 0:
        return 0.0
    if need(FOREVER) <= room:
        return FOREVER
    if need(SOON) > room:
        return 0.0
    low, high = SOON, FOREVER
    while high - low > TOLERANCE * high:
        middle = (low + high) / 2 if high < 4 * low else math.sqrt(low * high)
        low, high = (middle, high) if need(middle) <= room else (low, middle)
    return low
