"""The lower bound of a batch of recorded chains: what no schedule of the same work can beat.

The largest of three (policy study, section 3): the longest chain at the speed of an idle worker,
the two-sided bound of the action slots, and that of the workers, whose cost of a token leaves out
all that a schedule could spare.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rolloutkit.record.chains import RecordedChain, RecordedTurn
from rolloutkit.report.bound import LowerBound
from rolloutkit.report.two_sided import Operations, two_sided_bound
from rolloutkit.sim.reference import ReferenceConfig
from rolloutkit.sim.timing import (
    CONTEXT_BYTES_PER_SECOND,
    STATE_BYTES_PER_SECOND,
    WEIGHTS_BYTES_PER_SECOND,
    ModelTiming,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

NUM_ANGLES = 25  # tangents tried below the decode time; more gain less than 0.1 %


def chains_bound(
    chains: Sequence[RecordedChain],
    *,
    alone_seconds: Callable[[RecordedTurn], float],
    slots: int,
    engine: ReferenceConfig | None = None,
) -> LowerBound:
    """The bound and what sets it. `alone_seconds` is a model call on an idle engine that remembers
    the sample; without `engine` calls do not compete.
    """
    work = _Work(chains, alone_seconds)
    bounds = [
        LowerBound(work.longest_chain, "critical path"),
        LowerBound(two_sided_bound(work.actions(), slots), "environment"),
    ]
    if engine is not None:
        calls = work.calls(_least_seconds(work, engine))
        bounds.append(LowerBound(two_sided_bound(calls, engine.num_workers), "engine"))
    return max(bounds, key=lambda bound: bound.seconds)


class _Work:
    """The turns of all chains as parallel arrays."""

    def __init__(
        self, chains: Sequence[RecordedChain], alone_seconds: Callable[[RecordedTurn], float]
    ) -> None:
        rows: list[_Row] = []
        self.longest_chain = 0.0
        for chain in chains:
            alone = [alone_seconds(turn) for turn in chain.turns]
            total = sum(alone) + sum(turn.tool_seconds for turn in chain.turns)
            self.longest_chain = max(self.longest_chain, total)
            head = 0.0
            for turn, call in zip(chain.turns, alone, strict=True):
                rows.append(_Row(*turn, head, call, total - head - call))
                head += call + turn.tool_seconds
        columns = np.array(rows, dtype=np.float64).reshape(-1, len(_Row._fields)).T
        self.context, self.new, self.output, self.tool, self.head, self.call, self.rest = columns

    def actions(self) -> Operations:
        acts = self.tool > 0
        heads = (self.head + self.call)[acts]
        return Operations(heads, self.tool[acts], (self.rest - self.tool)[acts])

    def calls(self, services: NDArray[np.float64]) -> Operations:
        return Operations(self.head, services, self.rest)


class _Row(NamedTuple):
    context: float
    new: float
    output: float
    tool_seconds: float
    head: float  # seconds of the chain before the call
    call: float
    rest: float  # seconds of the chain after the call


def _least_seconds(work: _Work, engine: ReferenceConfig) -> NDArray[np.float64]:
    """Worker seconds that each call costs at least, however calls are batched.

    A decode step takes `hypot(floor, roof)`, which is at least `sin(angle) floor + cos(angle) roof`
    for any angle. Of that, what a step costs as a whole is shared by the calls in it: either evenly
    among as many as may run, or by the memory that they hold. The best choice is taken.
    """
    timing = engine.timing
    context = work.context + work.output / 2
    prefill = (
        timing.prefill_seconds_per_token + timing.prefill_overhead_per_token
    ) * work.new + timing.attention_seconds * work.new * (work.context - work.new / 2)
    own_roof = (
        timing.kv_bytes_per_token * context / CONTEXT_BYTES_PER_SECOND
        + 2 * timing.state_bytes / STATE_BYTES_PER_SECOND
    )
    held = timing.kv_bytes_per_token * context + timing.running_states * timing.state_bytes
    shares = [
        (np.full_like(context, 1 / engine.max_running), engine.max_running),
        (held / engine.memory_bytes, 1),
    ]
    candidates = [
        prefill
        + work.output * (math.cos(angle) * own_roof + share * _step_seconds(timing, angle, batch))
        for angle in np.linspace(0, math.pi / 2, NUM_ANGLES)
        for share, batch in shares
    ]
    return max(candidates, key=lambda seconds: float(seconds.sum()))


def _step_seconds(timing: ModelTiming, angle: float, num_running: int) -> float:
    """What a step costs as a whole, under the tangent at `angle`."""
    weights = timing.weights_bytes(num_running) / WEIGHTS_BYTES_PER_SECOND
    roof = weights + timing.communication_seconds
    return math.sin(angle) * timing.decode_floor_seconds + math.cos(angle) * roof
