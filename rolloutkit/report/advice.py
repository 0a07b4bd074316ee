"""Says in a sentence what a run or one of its last samples waited for, and what would help.

Names only what the figures show: the largest wait, if it is worth anything, else the work itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from rolloutkit.report.durations import format_seconds
from rolloutkit.report.spans import State
from rolloutkit.report.summary import Summary

_WORTH_IT = 0.1  # of a sample's time: a smaller wait is no lever
_CLOSE = 1.05  # gap below which no schedule could gain much; a reader would not notice 5 %
_FULL = 0.7  # utilisation, the empty end of a run included, above which a pool has no room

_WAITS = {
    State.ADMISSION: "to be admitted",
    State.PARKED: "for memory between its turns",
    State.ENGINE_QUEUE: "in the engine's queue",
    State.SLOT: "for slots",
}
_WORK = {
    State.GENERATING: ("generating", "faster decoding or fewer turns"),
    State.ACTING: ("acting", "faster actions, or a limit on them (limits.action)"),
    State.SET_UP: ("being set up", "a faster set-up"),
    State.SCORING: ("being scored", "faster scoring"),
}


def advise(seconds: Sequence[float], summary: Summary) -> str:
    """What would have let a sample of the run end earlier; `seconds` is its time by state."""
    total = sum(seconds)
    wait = max(_WAITS, key=lambda it: seconds[it])
    if total > 0 and seconds[wait] >= _WORTH_IT * total:
        told = f"Waited {format_seconds(seconds[wait])} {_WAITS[wait]}."
        return f"{told} Would help: {_remedy(wait, summary)}."
    work = max(_WORK, key=lambda it: seconds[it])
    share = seconds[work] / total if total > 0 else 0.0
    name, remedy = _WORK[work]
    return f"Hardly waited: {share:.0%} of its time went into {name}. Would help: {remedy}."


def verdict(summary: Summary) -> str:
    """How good the run's makespan is, and what bound it."""
    if summary.gap is None or summary.binding_resource is None:
        return "No sample ended, so that there is nothing to judge."
    resource = _resource(summary.binding_resource)
    bound = f"{resource} alone takes {format_seconds(summary.lower_bound_seconds)}"
    if summary.bound_kind == "observed":
        bound += ", as observed under load"
    if summary.gap <= _CLOSE:
        return f"As fast as the work allows: {bound}. Only more capacity or less work helps."
    return f"At most {1 - 1 / summary.gap:.0%} of the makespan was avoidable: {bound}."


def _remedy(wait: State, summary: Summary) -> str:
    if wait is State.SLOT:
        return "more slots, or an order that serves long samples first (actions.order)"
    if wait is State.PARKED:
        return "more memory for contexts, or fewer samples alive (admission.max_samples)"
    if wait is State.ENGINE_QUEUE:
        return "more parallelism in the engine, or fewer samples alive (admission.max_samples)"
    earlier = "admission before shorter samples (admission.order=longest_first, with a history)"
    for name, share in (
        ("environment", summary.environment_utilization),
        ("engine", summary.engine_utilization),
    ):
        if share is not None and share > _FULL:
            return f"{earlier}; not more samples alive, since the {name} was {share:.0%} busy"
    return f"more samples alive (admission.max_samples), or {earlier}"


def _resource(name: str) -> str:
    if name == "critical path":
        return "the longest sample's own work"
    return "the work of the engine" if name == "engine" else f"the work of {name}"
