"""Actions: when the environment may do what a sample asks for."""

from rolloutkit.actions.guard import Guard, Rule, Verdict
from rolloutkit.actions.keyed import (
    KeyedOrder,
    caas_service_order,
    clairvoyant_order,
    oldest_order,
    remaining_order,
)
from rolloutkit.actions.orders import CaasOrder, FifoOrder
from rolloutkit.actions.scheduler import ActionScheduler, PoolLimits, Slot
from rolloutkit.actions.settings import ActionSettings, refuse_needs

__all__ = [
    "ActionScheduler",
    "ActionSettings",
    "CaasOrder",
    "FifoOrder",
    "Guard",
    "KeyedOrder",
    "PoolLimits",
    "Rule",
    "Slot",
    "Verdict",
    "caas_service_order",
    "clairvoyant_order",
    "oldest_order",
    "refuse_needs",
    "remaining_order",
]
