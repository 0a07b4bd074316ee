"""Tactics against the tail of a batch: hedges of stalls, a cap on outputs, spare samples.

Each is off unless the settings say otherwise, and then costs nothing: what does not wrap an engine
is not called. The policies are pure; the shells around calls are thin.
"""

from rolloutkit.tail.capped_engine import CappedEngine, OutputCap
from rolloutkit.tail.groups import GroupCloser, with_spares
from rolloutkit.tail.hedged_actions import HedgedActions, refuse_stages
from rolloutkit.tail.hedged_engine import NEEDS_PROGRESS, HedgedEngine
from rolloutkit.tail.hedging import Hedge, HedgeOutcome, Hedging
from rolloutkit.tail.settings import (
    HedgeSettings,
    OutputCapSettings,
    OversamplingSettings,
    TailSettings,
)

__all__ = [
    "NEEDS_PROGRESS",
    "CappedEngine",
    "GroupCloser",
    "Hedge",
    "HedgeOutcome",
    "HedgeSettings",
    "HedgedActions",
    "HedgedEngine",
    "Hedging",
    "OutputCap",
    "OutputCapSettings",
    "OversamplingSettings",
    "TailSettings",
    "refuse_stages",
    "with_spares",
]
