"""Replays the acceptance scenarios for the tables of `docs/policies.md`: `make bench-policy`.

One process per core; about 280 CPU seconds. Exits 1 when a figure is outside its tolerance. Orders
by estimate are held to the study's means, apart from `gp`, which is shown only.
"""

import itertools
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from statistics import mean
from typing import NamedTuple

from tests.benchmarks.policy.reference import (
    BOUNDS,
    MAKESPANS,
    mean_makespan,
    tolerated_points,
)
from tests.benchmarks.policy.scenarios import (
    ESTIMATES,
    POLICIES,
    SEEDS,
    bound,
    replay,
    scenario_file,
)

CHECKED_ESTIMATES = ("pgp", "pgp-2/3", "prior+fifo 3C")
LIVES_ALONE = "X"  # scenarios whose engine is uncontended: exact per seed


class Run(NamedTuple):
    makespan_seconds: float
    num_turns: int
    cpu_seconds: float


def run(cell):
    """One replay, in a process of the pool."""
    started = time.process_time()
    sink = replay(*cell)
    return Run(sink.makespan_seconds, sink.num_turns, time.process_time() - started)


def misses(scenario, runs):
    """What is outside the tolerances of the policy study, as sentences."""
    found = []
    for policy, expected in MAKESPANS[scenario].items():
        measured = [runs[policy, seed].makespan_seconds for seed in SEEDS]
        if scenario.startswith(LIVES_ALONE):
            found += [
                f"{scenario} {policy} seed {seed}: {got:.1f}, expected {want:.1f} within 0.1 %"
                for seed, got, want in zip(SEEDS, measured, expected, strict=True)
                if abs(got / want - 1) > 0.001
            ]
            continue
        if abs(mean(measured) / mean(expected) - 1) > 0.1:
            found.append(
                f"{scenario} {policy}: mean {mean(measured):.0f}, expected {mean(expected):.0f}"
            )
        fifo = mean(runs["fifo", seed].makespan_seconds for seed in SEEDS)
        change = 100 * (mean(measured) / fifo - 1)
        wanted = 100 * (mean(expected) / mean(MAKESPANS[scenario]["fifo"]) - 1)
        if abs(change - wanted) > tolerated_points(scenario):
            found.append(f"{scenario} {policy}: {change:+.1f} % of fifo, expected {wanted:+.1f} %")
    return found


def estimate_misses(scenario, runs):
    """The same for the orders by estimate, of which the study gives means."""
    found = []
    fifo = mean(runs["fifo", seed].makespan_seconds for seed in SEEDS)
    for policy in CHECKED_ESTIMATES:
        measured = mean(runs[policy, seed].makespan_seconds for seed in SEEDS)
        expected = mean_makespan(scenario, policy)
        if abs(measured / expected - 1) > 0.1:
            found.append(f"{scenario} {policy}: mean {measured:.0f}, expected {expected:.0f}")
        points = 100 * (measured / fifo - expected / mean_makespan(scenario, "fifo"))
        if abs(points) > tolerated_points(scenario):
            found.append(f"{scenario} {policy}: {points:+.1f} points off against fifo")
    return found


def row(scenario, runs, bounds, policies):
    """A line of the table: mean seconds, makespan / bound, and the deviation from the study."""
    settings = scenario_file().scenarios[scenario]
    mean_bound = mean(one.seconds for one in bounds)
    off = mean_bound / mean(BOUNDS[scenario]) - 1
    binding = "/".join(sorted({one.resource for one in bounds}))
    cells = [scenario, str(settings.n_ref), f"{mean_bound:.0f} ({off:+.1%}) {binding}"]
    for policy in policies:
        seconds = [runs[policy, seed].makespan_seconds for seed in SEEDS]
        ratio = mean(got / one.seconds for got, one in zip(seconds, bounds, strict=True))
        expected = mean_makespan(scenario, policy)
        against = "" if expected is None else f" {mean(seconds) / expected - 1:+.1%}"
        cells.append(f"{mean(seconds):.0f} ({ratio:.2f}){against}")
    return "| " + " | ".join(cells) + " |"


def runs_of(scenario, all_runs):
    """A scenario's runs by policy and seed."""
    return {
        (policy, seed): all_runs[scenario, seed, policy]
        for seed in SEEDS
        for policy in POLICIES | ESTIMATES
    }


def main():
    wanted = sys.argv[1:]
    scenarios = [name for name in BOUNDS if not wanted or name[:2] in wanted]
    cells = list(itertools.product(scenarios, SEEDS, POLICIES | ESTIMATES))
    with ProcessPoolExecutor() as pool:
        all_runs = dict(zip(cells, pool.map(run, cells), strict=True))
    print("Mean makespan in s, (makespan / bound), deviation from the policy study:\n")
    found = []
    bounds = {scenario: [bound(scenario, seed) for seed in SEEDS] for scenario in scenarios}
    for policies in (POLICIES, ESTIMATES):
        print("| scenario | N_ref | bound | " + " | ".join(policies) + " |")
        print("|---" * (3 + len(policies)) + "|")
        for scenario in scenarios:
            print(row(scenario, runs_of(scenario, all_runs), bounds[scenario], policies))
        print()
    for scenario in scenarios:
        runs = runs_of(scenario, all_runs)
        found += misses(scenario, runs) + estimate_misses(scenario, runs)
        if abs(mean(one.seconds for one in bounds[scenario]) / mean(BOUNDS[scenario]) - 1) > 0.01:
            found.append(f"{scenario}: the bound is off by more than 1 %")
    turns = sum(run.num_turns for run in all_runs.values())
    seconds = sum(run.cpu_seconds for run in all_runs.values())
    print(f"\n{turns} turns in {seconds:.0f} CPU seconds, reading the traces included.")
    print("\n".join(found) or "Everything is within its tolerance.")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
