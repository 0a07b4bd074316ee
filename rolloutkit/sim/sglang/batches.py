"""What a simulated server runs at a time, how long that takes, and how it is paused."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, Protocol

from rolloutkit.sim.sglang.request import Request


class StepTimer(Protocol):
    """How long a worker takes for a batch, in seconds; `resources.StepTime` is one."""

    def decode(self, num_running: float, context_tokens: float) -> float:
        """One decode step of requests with so many tokens of context in all."""
        ...

    def prefill(self, num_tokens: float, attended: float) -> float:
        """One prefill; `attended` counts pairs of a computed token and one that it attends to."""
        ...


class Pause(StrEnum):
    """What becomes of the requests of a server that is paused."""

    ABORT = "abort"
    RETRACT = "retract"  # they start anew, with what they have said
    IN_PLACE = "in_place"  # they go on from where they are


class Prefill(NamedTuple):
    """Prompts, or parts of them, that are computed together."""

    requests: list[Request]
    cut: Request | None  # of them, the one that goes on in the next batch
    decodes_along: bool


class Decode(NamedTuple):
    """Decode steps that are taken at one go."""

    started_at: float
    step_seconds: float
    steps: int
    num_rows: int


class Held(NamedTuple):
    """Tokens of KV, and state slots."""

    tokens: int
    slots: int
