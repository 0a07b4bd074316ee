"""The routing policies by the names that a config has for them."""

from __future__ import annotations

from rolloutkit.routing.cost import Cost
from rolloutkit.routing.fleet import Policy
from rolloutkit.routing.policies import RoundRobin, Sticky, StickyLeastLoaded, StickyLeastWork


def make_policy(name: str) -> Policy:
    """A fresh one: policies have state."""
    match name:
        case "round_robin":
            return RoundRobin()
        case "sticky":
            return Sticky()
        case "sticky_least_work":
            return StickyLeastWork()
        case "cost":
            return Cost()
        case _:
            return StickyLeastLoaded()
