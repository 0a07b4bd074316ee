"""Admission: which samples are alive, and where."""

from rolloutkit.admission.orders import DatasetOrder
from rolloutkit.admission.parking import MemoryBudget, Parking
from rolloutkit.admission.queue import AdmissionLimits, AdmissionQueue, Permit
from rolloutkit.admission.ranked import PioneerOrder, RankedOrder

__all__ = [
    "AdmissionLimits",
    "AdmissionQueue",
    "DatasetOrder",
    "MemoryBudget",
    "Parking",
    "Permit",
    "PioneerOrder",
    "RankedOrder",
]
