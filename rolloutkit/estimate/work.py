"""Reference work: one unit for what turns cost, whatever they were queued behind.

Work is in seconds of an uncontended worker, so that samples compare: a turn counts the service time
of its actions, its sampled tokens and its new prompt tokens at fixed rates. Queueing never counts.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import msgspec

Positive = Annotated[float, msgspec.Meta(gt=0)]

MIN_SIGMA = 0.05  # equal lengths still get a posterior


class Population(NamedTuple):
    """Mean and deviation of the logarithm of reference work over all tasks."""

    mu: float
    sigma: float


class Turn(msgspec.Struct, frozen=True, gc=False):
    """What one turn of a sample took; waiting is for slots, or parked."""

    action_seconds: float = 0.0
    model_seconds: float = 0.0
    wait_seconds: float = 0.0
    output_tokens: int = 0
    new_tokens: int = 0  # of the prompt, not seen by the engine before
    uncounted_seconds: float = 0.0  # of model calls whose tokens the engine did not count

    def since(self, before: Turn) -> Turn:
        """What was added to running totals."""
        return Turn(
            self.action_seconds - before.action_seconds,
            self.model_seconds - before.model_seconds,
            self.wait_seconds - before.wait_seconds,
            self.output_tokens - before.output_tokens,
            self.new_tokens - before.new_tokens,
            self.uncounted_seconds - before.uncounted_seconds,
        )


class ReferenceRates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tokens per second of one request among a usual number of others.

    The defaults are the uncontended engine of scenarios X1 and X2 (policy.md, section 7). Orders
    depend on the ratio of model time to action time only, and little on that.
    """

    decode_tokens_per_second: Positive = 60.0
    prefill_tokens_per_second: Positive = 8_000.0

    def work(self, turn: Turn) -> float:
        """Reference work of one turn, in seconds; uncounted calls enter as they were."""
        return (
            turn.action_seconds
            + turn.output_tokens / self.decode_tokens_per_second
            + turn.new_tokens / self.prefill_tokens_per_second
            + turn.uncounted_seconds
        )
