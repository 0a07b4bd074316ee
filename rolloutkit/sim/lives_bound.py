"""The lower bound of replayed lives on a simulated engine, where they are plain chains.

Tighter than what a run's summary can say from its events: it knows when in its sample's life each
operation can come at the earliest (`sim/bound.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rolloutkit.actions import ActionSettings
from rolloutkit.record.chains import RecordedChain, RecordedTurn
from rolloutkit.record.lives import Call, Life
from rolloutkit.report.bound import LowerBound
from rolloutkit.sim.bound import chains_bound
from rolloutkit.sim.reference import ReferenceConfig
from rolloutkit.sim.uncontended import UncontendedConfig


def lives_bound(
    lives: Iterable[Life],
    engine: ReferenceConfig | UncontendedConfig,
    actions: ActionSettings,
) -> LowerBound | None:
    """The bound, or None for lives that are more than calls and actions of one kind in turn."""
    chains: list[RecordedChain] = []
    kinds: set[str] = set()
    for life in lives:
        chain = _chain(life)
        if chain is None:
            return None
        chains.append(chain)
        kinds.update(act.kind for act in life.attempts[0].acts)
    if len(kinds) != 1:
        return None
    limits = actions.limits_of(kinds.pop())
    slots = limits.slots or len(chains)
    for pool, places in limits.needs.items():
        slots = min(slots, actions.pools[pool] // places)
    contended = engine if isinstance(engine, ReferenceConfig) else None
    return chains_bound(chains, alone_seconds=_alone(engine), slots=slots, engine=contended)


def _chain(life: Life) -> RecordedChain | None:
    """The life as a chain: a call, then at most one action, and so on."""
    attempt = life.attempts[0]
    if life.has_session or len(life.attempts) > 1 or attempt.failure is not None:
        return None
    turns: list[RecordedTurn] = []
    for step in attempt.steps:
        if isinstance(step, Call):
            turns.append(RecordedTurn(step.context, step.new, step.output, 0.0))
        elif len(step) != 1 or not turns or turns[-1].tool_seconds:
            return None
        else:
            turns[-1] = turns[-1]._replace(tool_seconds=step[0].seconds)
    return RecordedChain(str(life.sample_id), tuple(turns)) if turns else None


def _alone(engine: ReferenceConfig | UncontendedConfig) -> Callable[[RecordedTurn], float]:
    if isinstance(engine, UncontendedConfig):
        return lambda turn: (
            turn.new / engine.prefill_tokens_per_second
            + turn.output / engine.decode_tokens_per_second
        )
    timing = engine.timing
    return lambda turn: (
        timing.prefill_alone_seconds(turn.new, turn.context)
        + timing.decode_alone_seconds(turn.context, turn.output)
    )
