"""The columns of the policy table: each policy as the settings that make it."""

from collections.abc import Callable
from typing import NamedTuple


def reference_limit(scenario):
    return scenario.n_ref


def small_window(scenario):
    return min(3 * scenario.slots, scenario.n_ref)


def by_turns(totals, demand):
    return demand.num_turns


def by_total(totals, demand):
    return totals[demand.sample_id]


class Setup(NamedTuple):
    """`priority` is that of model calls, by true totals and demand; None is first come."""

    actions: str = "fifo"
    admission: str = "dataset"
    max_samples: Callable = reference_limit
    parks: bool = True
    knows_tasks: bool = True  # of earlier rollouts, beside the spread of the workload
    fifo_lane: float = 0.0
    priority: Callable | None = None


POLICIES = {
    "coupled": Setup(max_samples=lambda scenario: scenario.slots, parks=False),
    "M=N fifo": Setup(max_samples=lambda scenario: scenario.num_samples, parks=False),
    "fifo": Setup(),
    "caas": Setup("caas", priority=by_turns),
    "prior+fifo 3C": Setup("fifo", "longest_first", small_window),
    "prior+caas 3C": Setup("caas", "longest_first", small_window, priority=by_turns),
    "gp": Setup("remaining", "pioneers", knows_tasks=False),
    "pgp": Setup("remaining", "longest_first"),
    "pgp-2/3": Setup("remaining", "longest_first", fifo_lane=1 / 3),
    "clairvoyant": Setup("clairvoyant", "clairvoyant", priority=by_total),
}
