"""What a routing decision costs with 10,000 resident samples on 64 workers.

CPU time of whole decisions, the ledger's bookkeeping included: a turn that begins and is answered,
and a sample that comes and goes. The goal is 50 us for each.
"""

import random
import time

import pytest

from rolloutkit.protocols import Demand
from rolloutkit.routing import Cost, Fleet, RoundRobin, Sticky, StickyLeastLoaded, StickyLeastWork
from rolloutkit.types import SampleId, Task

NUM_SAMPLES = 10_000
NUM_WORKERS = 64
GOAL_US = 50.0
POLICIES = [RoundRobin, Sticky, StickyLeastLoaded, StickyLeastWork, Cost]


def filled(policy):
    """A fleet whose pace is known and whose workers have room, so that every term is weighed."""
    rng = random.Random(1)
    fleet = Fleet([f"w{index}" for index in range(NUM_WORKERS)], policy, rng)
    for worker in range(NUM_WORKERS):
        fleet.set_capacity(worker, 100_000_000)
    demands = [
        Demand(
            sample_id=SampleId(f"t{index // 8}", index % 8),
            task=Task(task_id=f"t{index // 8}"),
            environment="e",
            seq=index,
            arrived_at=0.0,
        )
        for index in range(NUM_SAMPLES)
    ]
    for demand in demands:
        fleet.place(demand)
        begin_and_answer(fleet, demand, rng.randrange(1_000, 50_000))
    return fleet, demands


def begin_and_answer(fleet, demand, context):
    fleet.next_turn(demand, context)
    worker = fleet.worker_of(demand.sample_id)
    fleet.answered(
        demand.sample_id,
        worker,
        5.0,
        prompt=context,
        cached=context - 300,
        output=200,
        crowd=float(fleet.num_tokens[worker]),
    )


def cpu_us(call, items):
    started = time.process_time()
    for item in items:
        call(item)
    return 1e6 * (time.process_time() - started) / len(items)


@pytest.mark.parametrize("policy", POLICIES)
def test_cost_of_a_decision(policy):
    fleet, demands = filled(policy())
    chosen = random.Random(2).sample(demands, 2_000)

    turn = cpu_us(lambda demand: fleet.next_turn(demand, 20_000), chosen)
    answer = cpu_us(lambda demand: begin_and_answer(fleet, demand, 20_300), chosen) - turn

    def come_and_go(demand):
        fleet.leave(demand)
        fleet.place(demand)

    place = cpu_us(come_and_go, chosen)
    print(
        f"\n{policy.__name__}: turn {turn:.1f} us, answer {answer:.1f} us, place and leave "
        f"{place:.1f} us ({NUM_SAMPLES:,} residents, {NUM_WORKERS} workers; goal {GOAL_US:.0f} us)"
    )
