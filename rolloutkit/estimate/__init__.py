"""How long samples are: what was done, what is left, and how much that estimate is worth.

Pure but for the history file, which is read and written whole. `estimate.estimator` is not imported
here, since it loads numpy.
"""

from rolloutkit.estimate.calibration import Accuracy, Calibration, Recall, tail_recall
from rolloutkit.estimate.history import (
    History,
    TaskHistory,
    next_history,
    read_history,
    write_history,
)
from rolloutkit.estimate.survival import SurvivalCurve, residual_grows
from rolloutkit.estimate.work import Population, ReferenceRates, Turn

__all__ = [
    "Accuracy",
    "Calibration",
    "History",
    "Population",
    "Recall",
    "ReferenceRates",
    "SurvivalCurve",
    "TaskHistory",
    "Turn",
    "next_history",
    "read_history",
    "residual_grows",
    "tail_recall",
    "write_history",
]
