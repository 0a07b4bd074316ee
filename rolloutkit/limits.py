"""Named bounds on every wait and every sample.

Limits on set-up, model calls, actions, turns and samples count *active* time: waiting for a permit,
a slot, the sink or a weight update is charged to `queue` or `pause` only.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from rolloutkit.types import FailureKind

Seconds = Annotated[float, msgspec.Meta(gt=0)]


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All in seconds unless the name says otherwise. Each wait that overruns fails the sample by
    that name.
    """

    queue: Seconds = 86_400.0  # waiting for an action slot
    pause: Seconds = 3_600.0  # parked between two turns, or waiting for new weights
    set_up: Seconds = 600.0
    model_call: Seconds = 1_800.0
    model_progress: Seconds = 600.0  # without a new token, on engines that report progress
    action: Seconds = 600.0
    turn: Seconds = 7_200.0  # one model call and what follows it
    sample: Seconds = 43_200.0  # one attempt
    scoring: Seconds = 600.0
    close: Seconds = 120.0
    admin: Seconds = 60.0  # engine start-up probes and the like
    run: Seconds = 604_800.0
    interrupt_grace: Seconds = 60.0  # after the first Ctrl-C
    max_turns: Annotated[int, msgspec.Meta(ge=1)] = 200
    output_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None  # per sample, over all turns


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which failed samples are tried again from the start, and how often.

    Network retries happen inside engines; this is for sessions that broke. Limits, refused requests
    and program errors are deterministic often enough that trying again burns the batch
    (prime-rl#2016 and #2581 tried both ways), so they are not in the default.
    """

    max_attempts: Annotated[int, msgspec.Meta(ge=1)] = 2
    kinds: tuple[FailureKind, ...] = (
        FailureKind.SET_UP,
        FailureKind.ENVIRONMENT,
        FailureKind.ENGINE,
    )
    delay_seconds: Annotated[float, msgspec.Meta(ge=0)] = 1.0  # doubles with each attempt

    def wants(self, kind: FailureKind, attempt: int) -> bool:
        """Whether a sample whose attempt number `attempt` (from 0) failed by `kind` is tried
        again.
        """
        return attempt + 1 < self.max_attempts and kind in self.kinds
