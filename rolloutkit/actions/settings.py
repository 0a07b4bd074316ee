"""What a run says about actions: their order and the capacity of each kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from rolloutkit.actions.orders import CaasOrder, FifoOrder
from rolloutkit.actions.scheduler import ActionScheduler, PoolLimits
from rolloutkit.protocols import ActionOrder, Stage


class ActionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Slots and start rates of the four stages, alike for every environment unless `kinds` differs.

    `kinds` holds kinds by name: `bash` for what a program calls `act("bash", ...)`, `bfcl.step` for
    one stage of one environment.
    """

    order: Literal["fifo", "caas"] = "fifo"
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

    def scheduler(
        self,
        on_pool: Callable[[str, PoolLimits], None] | None = None,
        make_order: Callable[[], ActionOrder] | None = None,
    ) -> ActionScheduler:
        """A scheduler with these capacities and this order, unless it is given one."""
        return ActionScheduler(self.limits_of, make_order or _ORDERS[self.order], on_pool)


_STAGES = frozenset(stage.value for stage in Stage)
_ORDERS: dict[str, Callable[[], ActionOrder]] = {"fifo": FifoOrder, "caas": CaasOrder}
