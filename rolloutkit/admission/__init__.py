"""Admission: which samples are alive, and where."""

from rolloutkit.admission.corrector import Cause, Corrector, Decision, Signals
from rolloutkit.admission.orders import DatasetOrder
from rolloutkit.admission.parking import MemoryBudget, Parking
from rolloutkit.admission.queue import (
    AdmissionLimits,
    AdmissionQueue,
    Permit,
    refuse_unplanned,
)
from rolloutkit.admission.ranked import PioneerOrder, RankedOrder

__all__ = [
    "AdmissionLimits",
    "AdmissionQueue",
    "Cause",
    "Corrector",
    "DatasetOrder",
    "Decision",
    "MemoryBudget",
    "Parking",
    "Permit",
    "PioneerOrder",
    "RankedOrder",
    "Signals",
    "refuse_unplanned",
]
