"""Replays the acceptance scenarios and prints the table of `docs/policies.md`: `make bench-policy`.

One process per core; about 200 CPU seconds. Exits 1 when a figure is outside its tolerance.
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
from tests.benchmarks.policy.scenarios import SEEDS, bound, replay, scenario_file
from tests.benchmarks.policy.setups import POLICIES

LIVES_ALONE = "X"  # scenarios whose engine is uncontended
EXACT = ("coupled", "fifo", "caas", "clairvoyant")  # per seed there; estimators round differently


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
    if scenario.startswith(LIVES_ALONE):
        return [
            f"{scenario} {policy} seed {seed}: {got:.1f}, expected {want:.1f} within 0.1 %"
            for policy in EXACT
            for seed, want in zip(SEEDS, MAKESPANS[scenario][policy], strict=True)
            if abs((got := runs[policy, seed].makespan_seconds) / want - 1) > 0.001
        ]
    found = []
    fifo = mean(runs["fifo", seed].makespan_seconds for seed in SEEDS)
    for policy in POLICIES:
        measured = mean(runs[policy, seed].makespan_seconds for seed in SEEDS)
        expected = mean_makespan(scenario, policy)
        if abs(measured / expected - 1) > 0.1:
            found.append(f"{scenario} {policy}: mean {measured:.0f}, expected {expected:.0f}")
        change = 100 * (measured / fifo - 1)
        wanted = 100 * (expected / mean_makespan(scenario, "fifo") - 1)
        if abs(change - wanted) > tolerated_points(scenario):
            found.append(f"{scenario} {policy}: {change:+.1f} % of fifo, expected {wanted:+.1f} %")
    return found


def row(scenario, runs, bounds):
    """A line of the table: mean seconds, makespan / bound, and the deviation from the study."""
    settings = scenario_file().scenarios[scenario]
    mean_bound = mean(one.seconds for one in bounds)
    off = mean_bound / mean(BOUNDS[scenario]) - 1
    binding = "/".join(sorted({one.resource for one in bounds}))
    cells = [scenario, str(settings.n_ref), f"{mean_bound:.0f} ({off:+.1%}) {binding}"]
    for policy in POLICIES:
        seconds = [runs[policy, seed].makespan_seconds for seed in SEEDS]
        ratio = mean(got / one.seconds for got, one in zip(seconds, bounds, strict=True))
        off = mean(seconds) / mean_makespan(scenario, policy) - 1
        cells.append(f"{mean(seconds):.0f} ({ratio:.2f}) {off:+.1%}")
    return "| " + " | ".join(cells) + " |"


def main():
    wanted = sys.argv[1:]
    scenarios = [name for name in BOUNDS if not wanted or name[:2] in wanted]
    cells = list(itertools.product(scenarios, SEEDS, POLICIES))
    with ProcessPoolExecutor() as pool:
        all_runs = dict(zip(cells, pool.map(run, cells), strict=True))
    print("Mean makespan in s, (makespan / bound), deviation from the policy study:\n")
    print("| scenario | N_ref | bound | " + " | ".join(POLICIES) + " |")
    print("|---" * (3 + len(POLICIES)) + "|")
    found = []
    for scenario in scenarios:
        runs = {
            (policy, seed): all_runs[scenario, seed, policy]
            for seed in SEEDS
            for policy in POLICIES
        }
        bounds = [bound(scenario, seed) for seed in SEEDS]
        print(row(scenario, runs, bounds))
        found += misses(scenario, runs)
        if abs(mean(one.seconds for one in bounds) / mean(BOUNDS[scenario]) - 1) > 0.01:
            found.append(f"{scenario}: the bound is off by more than 1 %")
    turns = sum(run.num_turns for run in all_runs.values())
    seconds = sum(run.cpu_seconds for run in all_runs.values())
    print(f"\n{turns} turns in {seconds:.0f} CPU seconds, reading the traces included.")
    print("\n".join(found) or "Everything is within its tolerance.")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
