"""Actions: when the environment may do what a sample asks for."""

from rolloutkit.actions.orders import CaasOrder, FifoOrder
from rolloutkit.actions.scheduler import ActionScheduler, PoolLimits, Slot
from rolloutkit.actions.settings import ActionSettings

__all__ = ["ActionScheduler", "ActionSettings", "CaasOrder", "FifoOrder", "PoolLimits", "Slot"]
