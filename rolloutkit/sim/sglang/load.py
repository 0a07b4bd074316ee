"""What a simulated server says of itself: the figures of a real one, with their blind spots.

KV and states of idle samples count as free, since they could be evicted: usage does not show how
full the cache is. Names are those of SGLang 0.5.23 (`/v1/loads` and `/metrics`).
"""

from __future__ import annotations

import msgspec

from rolloutkit.sim.sglang.memory import Memory


class DecodeMoments(msgspec.Struct, kw_only=True):
    """Sums over decode steps: how many, batch sizes b, times t in microseconds, generated tokens.

    They suffice for a least-squares line of t over b.
    """

    n: int = 0
    b: int = 0
    t: float = 0.0
    bb: int = 0
    bt: float = 0.0
    generated: int = 0

    def add(self, steps: int, batch: int, seconds: float) -> None:
        """So many steps of one batch, which took so long together."""
        micros = seconds * 1e6
        self.n += steps
        self.b += steps * batch
        self.t += micros
        self.bb += steps * batch * batch
        self.bt += batch * micros
        self.generated += steps * batch


class Counters(msgspec.Struct, kw_only=True):
    """What a server counts from its start on; tokens unless the name says otherwise."""

    prompt_tokens: int = 0  # of admitted requests, retracted ones left out
    cached_tokens: int = 0
    prefill_compute: int = 0  # retracted requests included
    prefill_busy_us: float = 0.0
    num_requests: int = 0
    num_aborted: int = 0
    num_retracted_requests: int = 0
    num_retracted_input_tokens: int = 0
    num_retracted_output_tokens: int = 0
    num_preempted_requests: int = 0
    decode: DecodeMoments = msgspec.field(default_factory=DecodeMoments)

    def count_retraction(self, num_input: int, num_output: int) -> None:
        """A request that must start anew."""
        self.num_retracted_requests += 1
        self.num_retracted_input_tokens += num_input
        self.num_retracted_output_tokens += num_output


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """A moment of a server. `num_used_tokens` and `mamba_used_slots` leave idle samples out."""

    num_running_reqs: int
    num_waiting_reqs: int
    max_total_num_tokens: int
    max_running_requests: int
    num_used_tokens: int
    kv_available_tokens: int
    kv_evictable_tokens: int
    mamba_capacity_slots: int | None = None  # None: the model has no states
    mamba_used_slots: int | None = None
    mamba_available_slots: int | None = None
    mamba_evictable_slots: int | None = None
    new_token_ratio: float
    evicted_tokens_total: int  # of KV; evicted states are not reported
    num_retracted_requests_total: int
    is_paused: bool = False
    counters: Counters

    @property
    def token_usage(self) -> float:
        """Share of the KV pool that is not free, as `/v1/loads` has it."""
        return self.num_used_tokens / self.max_total_num_tokens

    @property
    def mamba_usage(self) -> float | None:
        """The same of state slots."""
        if self.mamba_used_slots is None or not self.mamba_capacity_slots:
            return None
        return self.mamba_used_slots / self.mamba_capacity_slots


def report(
    memory: Memory,
    counters: Counters,
    *,
    num_running: int,
    num_waiting: int,
    max_running: int,
    new_token_ratio: float,
    is_paused: bool,
) -> Load:
    """The figures of this moment."""
    states, tree = memory.states, memory.tree
    return Load(
        num_running_reqs=num_running,
        num_waiting_reqs=num_waiting,
        max_total_num_tokens=memory.kv.capacity,
        max_running_requests=max_running,
        num_used_tokens=memory.kv.num_used - tree.evictable_tokens,
        kv_available_tokens=memory.kv.num_free,
        kv_evictable_tokens=tree.evictable_tokens,
        mamba_capacity_slots=None if states is None else states.capacity,
        mamba_used_slots=None if states is None else states.num_used - tree.evictable_states,
        mamba_available_slots=None if states is None else states.num_free,
        mamba_evictable_slots=None if states is None else tree.evictable_states,
        new_token_ratio=new_token_ratio,
        evicted_tokens_total=tree.num_evicted_tokens,
        num_retracted_requests_total=counters.num_retracted_requests,
        is_paused=is_paused,
        counters=msgspec.structs.replace(counters, decode=msgspec.structs.replace(counters.decode)),
    )
