"""Routing: which worker a sample lives on, and what happens when one is lost."""

from __future__ import annotations

from rolloutkit.routing.cost import Cost
from rolloutkit.routing.fleet import Fleet, Forecast, Policy, Resident
from rolloutkit.routing.policies import RoundRobin, Sticky, StickyLeastLoaded, StickyLeastWork
from rolloutkit.routing.router import Router
from rolloutkit.routing.settings import RouterSettings
from rolloutkit.routing.views import WorkerChange, WorkerView

__all__ = [
    "Cost",
    "Fleet",
    "Forecast",
    "Policy",
    "Resident",
    "RoundRobin",
    "Router",
    "RouterSettings",
    "Sticky",
    "StickyLeastLoaded",
    "StickyLeastWork",
    "WorkerChange",
    "WorkerView",
]
