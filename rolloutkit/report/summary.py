"""What a run amounted to: the record behind `summary.json`, whose keys are a contract.

Figures that are not known are None, in the file null, never 0.
"""

from __future__ import annotations

import msgspec


class WaitSeconds(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles by nearest rank: each is a wait that occurred."""

    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None


class LagSeconds(msgspec.Struct, frozen=True, kw_only=True):
    """How late the event loop came to what was due; known in real time only."""

    p99: float | None = None
    max: float | None = None


class TailSample(msgspec.Struct, frozen=True, kw_only=True):
    """Where one of the last samples lost its time, all its attempts counted.

    `recompute_seconds` is 0 where the engine reported every prefix as cached, and else unknown.
    """

    sample_id: str
    finished_at: float
    generate_seconds: float
    act_seconds: float
    slot_wait_seconds: float
    admission_wait_seconds: float
    parked_seconds: float
    recompute_seconds: float | None


class WorkerFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker did. `num_arrivals` counts samples that came from another worker."""

    worker: str
    num_calls: int
    output_tokens: int | None
    cached_share: float | None  # of the prompt tokens
    num_arrivals: int
    num_ejections: int


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The end-of-run figures. Tokens and seconds count every attempt, `num_turns` the last one.

    `environment_utilization` is that of the most used kind of action among those with a limit,
    `engine_utilization` that of the engine's parallelism. Of a total in which a call did not report
    its part nothing is known. `score_mean` is over the samples that have a score.
    """

    num_samples: int
    num_completed: int
    num_failed: int
    num_cancelled: int
    stop_reasons: dict[str, int]
    failure_kinds: dict[str, int]
    cancel_reasons: dict[str, int]
    ended_early: str | None  # why; None = every sample ran to its end
    order: str | None  # in which actions were served, at the end
    order_reason: str | None  # why, and what the estimates behind it were worth
    score_mean: float | None
    makespan_seconds: float | None  # start of the run to the end of its last sample
    lower_bound_seconds: float | None
    bound_kind: str | None  # "uncontended", or "observed" where service times were shared
    binding_resource: str | None
    gap: float | None  # makespan / lower bound
    num_turns: int
    prompt_tokens: int | None
    cached_tokens: int | None
    recomputed_tokens: int | None  # seen before by the same chain, yet not in the cache
    output_tokens: int | None
    environment_utilization: float | None
    engine_utilization: float | None
    action_wait_seconds: WaitSeconds
    event_loop_lag_seconds: LagSeconds
    scheduler_cpu_seconds: float | None
    workers: tuple[WorkerFigures, ...]  # where the engine names them
    num_moves: int  # of samples, from one worker to another
    tail: tuple[TailSample, ...]  # the last first
    trace_complete: bool
