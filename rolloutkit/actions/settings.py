"""What a run says about actions: their order and the capacity of each kind."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from rolloutkit.actions.scheduler import PoolLimits
from rolloutkit.protocols import Stage


class ActionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Order, slots and start rates of the four stages, alike for every environment unless `kinds`
    differs.

    `auto` lets the guard choose between `remaining`, `caas` and `fifo`. `prior` says what
    `remaining` may know beside the samples of this run; `fifo_lane` is the share of dispatches that
    serve the longest waiting whatever its key. `kinds` holds kinds by name: `bash` for what a
    program calls `act("bash", ...)`, `bfcl.step` for one stage of one environment.
    """

    order: Literal["auto", "fifo", "caas", "caas_service", "oldest", "remaining", "clairvoyant"] = (
        "auto"
    )
    prior: Literal["none", "history"] = "history"
    fifo_lane: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1 / 3
    set_up: PoolLimits = PoolLimits(slots=16)
    step: PoolLimits = PoolLimits(slots=64)
    score: PoolLimits = PoolLimits(slots=16)
    close: PoolLimits = PoolLimits(slots=16)
    kinds: dict[str, PoolLimits] = {}

    def limits_of(self, kind: str) -> PoolLimits:
        """Capacity of a kind; one that nobody named has the step stage's."""
        if kind in self.kinds:
            return self.kinds[kind]
        stage = kind.rpartition(".")[2]
        return getattr(self, stage) if stage in _STAGES else self.step


_STAGES = frozenset(stage.value for stage in Stage)
