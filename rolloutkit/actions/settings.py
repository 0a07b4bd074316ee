"""What a run says about actions: their order and the capacity of each kind."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from rolloutkit.actions.scheduler import Places, PoolLimits
from rolloutkit.errors import ConfigError
from rolloutkit.protocols import Stage


class ActionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Order, slots and start rates of the four stages, alike for every environment unless `kinds`
    differs.

    `auto` lets the guard choose between `remaining`, `caas` and `fifo`. `prior` says what
    `remaining` may know beside the samples of this run; `fifo_lane` is the share of dispatches that
    serve the longest waiting whatever its key. `kinds` holds kinds by name: `bash` for what a
    program calls `act("bash", ...)`, `bfcl.step` for one stage of one environment. `pools` are
    places that kinds share, by name (`cpu: 16`); `needs` of a kind takes some with each action.
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
    pools: dict[str, Places] = {}

    def limits_of(self, kind: str) -> PoolLimits:
        """Capacity of a kind; one that nobody named has the step stage's."""
        if kind in self.kinds:
            return self.kinds[kind]
        stage = kind.rpartition(".")[2]
        return getattr(self, stage) if stage in _STAGES else self.step


def refuse_needs(settings: ActionSettings) -> None:
    """Raise ConfigError for needs of pools that are not there, or too small for a single action."""
    stages = {stage.value: getattr(settings, stage.value) for stage in Stage}
    for where, limits in (*stages.items(), *settings.kinds.items()):
        for name, places in limits.needs.items():
            has = settings.pools.get(name)
            if has is None:
                known = ", ".join(settings.pools) or "none"
                raise ConfigError(
                    f"actions: {where} needs {places} of {name!r}, and actions.pools has: {known}: "
                    f"add actions.pools.{name}=PLACES"
                )
            if places > has:
                raise ConfigError(
                    f"actions: {where} needs {places} of {name!r}, which has {has}: no action "
                    f"would ever start; ask for less or raise actions.pools.{name}"
                )
    for name in settings.pools:
        if name in settings.kinds or name in stages:
            raise ConfigError(f"actions.pools: {name!r} is a kind of action too: rename the pool")


_STAGES = frozenset(stage.value for stage in Stage)
