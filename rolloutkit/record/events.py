"""What happened in a run, as typed and versioned events.

One event per model call, action and change of a sample's state, in the order in which they ended.
Times are seconds since the run started; queueing is apart from service, since a replay must not
repeat the queueing of the run it was recorded in. A field may be added, never re-used;
`SCHEMA_VERSION` grows when old readers would misread a trace.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeAlias

import msgspec

from rolloutkit.types import CancelReason, FailureKind, FinishReason, Message, Status, StopReason

SCHEMA_VERSION = 1


class ActionOutcome(StrEnum):
    """How an action ended."""

    OK = "ok"
    ERROR = "error"
    LIMIT = "limit"
    CANCELLED = "cancelled"


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", omit_defaults=True):
    t: float  # seconds since the run started at which it ended


class RunStarted(_Event, frozen=True, kw_only=True, tag="run_started", omit_defaults=False):
    """First event: what a reader needs to interpret the rest.

    Written in full: a later version's defaults must not stand in for this one's values.
    """

    schema_version: int = SCHEMA_VERSION
    time: str = "real"  # or "virtual"
    seed: int = 0
    num_samples: int | None = None  # None = the source is a stream
    max_samples: int | None = None  # admission limit
    slots: dict[str, int] = {}  # kind of action -> slots; kinds without a limit are absent
    pools: dict[str, int] = {}  # places of the pools with a name
    parallelism: int | None = None  # requests the engine serves at once
    order: str = "fifo"
    admission_order: str = "dataset"
    service_times: str = "observed"  # or "uncontended": simulated and replayed durations
    oversampled: int = 0  # samples of each task beyond those asked for: groups keep their fastest


class PoolOpened(_Event, frozen=True, kw_only=True, tag="pool_opened"):
    """A kind of action that `RunStarted` did not name was asked for and has this capacity."""

    kind: str
    slots: int


class SampleAdmitted(_Event, frozen=True, kw_only=True, tag="sample_admitted"):
    sample_id: str
    environment: str
    seq: int  # order of admission
    wait_seconds: float = 0.0
    worker: str | None = None
    key: float | None = None  # by which it was chosen; larger is sooner


class AttemptStarted(_Event, frozen=True, kw_only=True, tag="attempt_started"):
    sample_id: str
    attempt: int


class ModelCall(_Event, frozen=True, kw_only=True, tag="model_call"):
    """One engine call; `t` is its end, `t - seconds` the moment it was sent."""

    sample_id: str
    attempt: int = 0
    chain: int = 0
    turn: int = 0
    worker: str | None = None
    parked_seconds: float = 0.0  # waited for memory before it was sent
    seconds: float = 0.0  # as seen from here, the engine's own queue included
    queue_seconds: float | None = None  # inside the engine
    service_seconds: float | None = None  # prefill and decode
    prefill_seconds: float | None = None  # of that, the prompt
    context_tokens: int = 0  # prompt length
    new_tokens: int = 0  # of those, not part of the previous prompt and completion
    cached_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: FinishReason | None = None  # None when it failed
    num_retries: int = 0
    error: FailureKind | None = None
    cancelled: bool = False


class Action(_Event, frozen=True, kw_only=True, tag="action"):
    """One action, stages included; `t` is its end, `t - seconds` its start, waiting came before."""

    sample_id: str
    attempt: int = 0
    turn: int = 0  # finished turns when it was asked for
    kind: str
    wait_seconds: float = 0.0  # for a slot
    seconds: float = 0.0  # service
    outcome: ActionOutcome = ActionOutcome.OK
    responses: tuple[Message, ...] = ()  # what the environment answered, where that is recorded
    key: float | None = None  # by which it was chosen, where it waited; larger is sooner
    slots: int = 1  # of its kind that it took; 0 inside an action that held one, or if it never ran
    needs: dict[str, int] = {}  # places that it took in pools with a name


class CallHedged(_Event, frozen=True, kw_only=True, tag="call_hedged"):
    """A model call or an action that made no progress was issued again beside itself.

    `t` is when it was settled which of the two is kept, `t - seconds` when it was issued again. The
    `ModelCall` or `Action` itself is written once, with what came of both.
    """

    sample_id: str
    attempt: int = 0
    chain: int = 0
    turn: int = 0
    kind: str  # "model_call", or the kind of action
    stalled_seconds: float  # without progress before it was issued again
    seconds: float
    outcome: str  # "first", "reissue" or "neither": whose result was kept
    received_tokens: int = 0  # from which the re-issue went on
    prompt_tokens: int | None = None  # that the re-issue had to read
    lost_tokens: int = 0  # generated by the loser, as far as it was heard, and thrown away


class SampleParked(_Event, frozen=True, kw_only=True, tag="sample_parked"):
    sample_id: str


class SampleResumed(_Event, frozen=True, kw_only=True, tag="sample_resumed"):
    sample_id: str
    parked_seconds: float = 0.0


class WorkerChanged(_Event, frozen=True, kw_only=True, tag="worker_changed"):
    """A worker of the engine came, went, or was found to be unwell or well again."""

    worker: str
    change: str  # joined, ejected, readmitted or left
    reason: str = ""


class WeightsUpdated(_Event, frozen=True, kw_only=True, tag="weights_updated"):
    """The engine serves other weights; `t` is the end of the pause, `t - seconds` its start."""

    version: int
    mode: str  # what became of the calls under way: finish, abort or hold
    seconds: float


class OrderChosen(_Event, frozen=True, kw_only=True, tag="order_chosen"):
    """The guard of `actions.order=auto` chose, at the start or anew."""

    order: str
    fifo_lane: float
    reason: str
    tail_recall: float | None = None  # of the history's predictions
    residual_grows: bool | None = None  # with progress; by the work seen so far
    queue_share: float | None = None  # of turn time, spent waiting


class WindowChanged(_Event, frozen=True, kw_only=True, tag="window_changed"):
    """`admission.control=adaptive` lets more or fewer samples be active on a worker."""

    worker: str | None
    window: int
    cause: str  # waste | retraction | room
    waste: float | None = None  # share of the tokens of resumed turns that were computed again


class SampleEnded(_Event, frozen=True, kw_only=True, tag="sample_ended"):
    """The sample's terminal state; exactly one per sample given to the run."""

    sample_id: str
    environment: str
    status: Status
    stop_reason: StopReason
    failure: FailureKind | None = None
    failure_message: str | None = None
    cancel_reason: CancelReason | None = None
    score: float | None = None
    num_turns: int = 0
    attempt: int = 0
    output_tokens: int = 0
    admitted: bool = True


class RunEnded(_Event, frozen=True, kw_only=True, tag="run_ended"):
    """Last event of a complete trace."""

    reason: str = "finished"  # or why it ended early
    scheduler_cpu_seconds: float | None = None
    lag_p99_seconds: float | None = None
    lag_max_seconds: float | None = None
    order: str | None = None  # of actions, in force at the end
    order_reason: str | None = None
    tail_recall: float | None = None
    explained_variance: float | None = None  # of the logarithm of work, by the estimates made
    queue_share: float | None = None  # of turn time, spent waiting
    binding_share: float | None = None  # of the run, in which actions waited


Event: TypeAlias = (
    RunStarted
    | PoolOpened
    | SampleAdmitted
    | AttemptStarted
    | OrderChosen
    | WindowChanged
    | ModelCall
    | Action
    | CallHedged
    | SampleParked
    | SampleResumed
    | WorkerChanged
    | WeightsUpdated
    | SampleEnded
    | RunEnded
)

Observer: TypeAlias = Callable[[Any], None]
"""Receives each event as it happens. Must not wait and must not raise."""
