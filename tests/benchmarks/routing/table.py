"""Plays the routing scenarios and prints the table of `docs/routing.md`: `make bench-routing`.

One process per core; about an hour of CPU. `--seeds N` plays fewer batches. Changes are paired,
batch by batch, with 90 % intervals. Exits 1 when `cost` does not hold what the page says: on
average at most 1 % worse than `sticky_least_loaded` anywhere, and better where the workers and not
one long chain set the makespan, and one of them is unlike the others.
"""

import argparse
import itertools
import sys
from concurrent.futures import ProcessPoolExecutor
from statistics import fmean

from rolloutkit.compare import estimate, paired_change
from tests.benchmarks.routing.scenarios import LOADS, SCENARIOS, batch_of, play

REFERENCE = "sticky_least_loaded"
POLICIES = (REFERENCE, "sticky", "sticky_least_work", "cost", "round_robin")
NUM_SEEDS = 16
BOUND_BY_WORKERS = ("qwen3-32b, mini-swe",)


def play_seed(case):
    """All scenarios of one batch under one policy."""
    load_name, seed, policy, base_seconds = case
    load = LOADS[load_name]
    chains = batch_of(load, seed)
    base = base_seconds or play(load, chains, REFERENCE, seed=seed).makespan_seconds
    return base, {
        name: play(load, chains, policy, faults(base), seed=seed)
        for name, faults in SCENARIOS.items()
    }


def measure(load_name, num_seeds, policies, pool):
    """Outcomes by policy, scenario and seed."""
    seeds = range(num_seeds)
    first = list(pool.map(play_seed, [(load_name, seed, REFERENCE, None) for seed in seeds]))
    bases = [base for base, _ in first]
    others = [policy for policy in policies if policy != REFERENCE]
    cases = [
        (load_name, seed, policy, bases[seed]) for policy, seed in itertools.product(others, seeds)
    ]
    rest = iter(pool.map(play_seed, cases))
    return {
        REFERENCE: [outcomes for _, outcomes in first],
        **{policy: [next(rest)[1] for _ in seeds] for policy in others},
    }


def rows(outcomes):
    """One row a scenario and policy, and the change against the reference in percent."""
    for scenario in SCENARIOS:
        reference = [seed[scenario].makespan_seconds for seed in outcomes[REFERENCE]]
        for policy, by_seed in outcomes.items():
            mine = [seed[scenario] for seed in by_seed]
            makespans = [one.makespan_seconds for one in mine]
            yield (
                scenario,
                policy,
                estimate(makespans),
                paired_change(makespans, reference),
                fmean(one.num_moves for one in mine),
                fmean(one.cached_share for one in mine),
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=NUM_SEEDS)
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--loads", default=";".join(LOADS))
    parser.add_argument("--policies", default=",".join(POLICIES))
    arguments = parser.parse_args()
    failed = []
    with ProcessPoolExecutor(arguments.workers) as pool:
        for load_name in arguments.loads.split(";"):
            print(f"\n{load_name}, {arguments.seeds} batches\n")
            print("| scenario | policy | makespan, s | change, % | moves | cached |")
            print("|---|---|---|---|---|---|")
            outcomes = measure(load_name, arguments.seeds, arguments.policies.split(","), pool)
            for scenario, policy, makespan, change, moves, cached in rows(outcomes):
                print(
                    f"| {scenario} | {policy} | {makespan.mean:.0f} | {change.mean:+.1f} ± "
                    f"{change.plus_minus or 0:.1f} | {moves:.0f} | {cached:.3f} |",
                    flush=True,
                )
                wins = load_name in BOUND_BY_WORKERS and scenario != "equal workers"
                most = 0.0 if wins else 1.0
                if policy == "cost" and change.mean > most:
                    failed.append(f"{load_name}: {scenario}: {change.mean:+.1f} %")
    print("\n".join(failed) or "\ncost holds what it promises")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
