"""What all samples of a run share, and the names of the stages that need a slot."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from rolloutkit.actions import ActionScheduler
from rolloutkit.foresight import Foresight
from rolloutkit.gate import Gate
from rolloutkit.limits import Limits, RetryPolicy
from rolloutkit.pacing import Pacer
from rolloutkit.protocols import (
    AgentProgram,
    Capabilities,
    Engine,
    Environment,
    Priority,
    Renderer,
    Stage,
)
from rolloutkit.record.events import Event
from rolloutkit.record.recorder import Recorder
from rolloutkit.tail import HedgedActions
from rolloutkit.types import SamplingParams


class Services(msgspec.Struct, frozen=True, kw_only=True):
    """Made once per run by whoever puts it together; nothing here changes while it runs."""

    engine: Engine
    capabilities: Capabilities
    renderer: Renderer | None  # None: observations bring token ids and replies are not parsed
    environments: dict[str, Environment]
    program: AgentProgram | None  # None: the built-in loop over the task's environment
    actions: ActionScheduler
    foresight: Foresight
    pacer: Pacer | None  # None: the concurrency is what the settings say
    limits: Limits
    retry: RetryPolicy
    sampling: SamplingParams
    recorder: Recorder | None
    time: Callable[[], float]  # the loop's clock
    started_at: float  # when the run started, on that clock
    seed: int
    gate: Gate  # before model calls, closed while new weights come
    constrain_calls: bool = False  # sample tool calls under a JSON schema
    priority: Priority | None = None  # of model calls; None = first come, first served
    hedged_actions: HedgedActions | None = None  # None: no action runs twice
    keep_messages: bool = True
    record_responses: bool = False

    def elapsed(self) -> float:
        """Seconds since the run started: the time base of events and trajectories."""
        return self.time() - self.started_at

    def record(self, event: Event) -> None:
        """Tell the recorder, if there is one. Where events are frequent, ask for it first."""
        if self.recorder is not None:
            self.recorder.emit(event)


def stage_kind(environment: str, stage: Stage) -> str:
    """The kind of action that names a stage of an environment: `bfcl.step`."""
    return environment + "." + stage  # an f-string formats the enum in Python
