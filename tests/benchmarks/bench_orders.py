"""CPU of a scheduling decision, and how it grows with the number that waits.

Run `make bench`, or this file as a script. Goal (issue "Scheduling"): push and pop, estimator
included, under 30 us at 10,000 waiting; O(log n) for every order. The estimator's share is the
update at a turn's end; every 16th turn ends its sample, which re-keys its living siblings.
"""

import gc
import json
import random
import time

from rolloutkit.actions import (
    CaasOrder,
    FifoOrder,
    caas_service_order,
    clairvoyant_order,
    oldest_order,
    remaining_order,
)
from rolloutkit.admission import DatasetOrder, PioneerOrder, RankedOrder
from rolloutkit.estimate import Population, TaskHistory
from rolloutkit.estimate.estimator import WorkEstimator
from rolloutkit.protocols import ActionDemand, Demand
from rolloutkit.types import SampleId, Task

SIZES = (100, 1_000, 10_000, 100_000)
GROUP_SIZE = 8
NUM_DECISIONS = 20_000
TURNS_PER_SAMPLE = 16
GOAL_US = 30


def ids(count):
    return [SampleId(f"t{i // GROUP_SIZE}", i % GROUP_SIZE) for i in range(count)]


def demand_of(sample_id, seq, rng):
    return ActionDemand(
        kind="step",
        sample_id=sample_id,
        seq=seq,
        num_turns=rng.randrange(60),
        service_seconds=rng.expovariate(1 / 100),
        admission_seq=seq,
    )


class Remaining:
    """`remaining` with its estimator, as `Foresight` drives it."""

    def __init__(self, samples):
        tasks = {sample.task_id: TaskHistory(mean_ln=5.0, count=8) for sample in samples}
        self.estimator = WorkEstimator(Population(5.0, 1.2), tasks)
        for sample in samples:
            self.estimator.admitted(sample)
        self.order = remaining_order(self.estimator.remaining, 1 / 3)
        self.num_turns = 0

    def turn_ended(self, sample, rng):
        self.estimator.turn_ended(sample, rng.expovariate(1 / 12))
        self.order.rekey(sample)
        self.num_turns += 1
        if self.num_turns % TURNS_PER_SAMPLE == 0:
            for changed in self.estimator.ended(sample):
                self.order.rekey(changed)
            self.estimator.admitted(sample)  # stands in for the next of its group


def measure_actions(make, count):
    """Microseconds of one push and one pop with `count` waiting, estimator included."""
    rng = random.Random(1)
    samples = ids(count)
    remaining = Remaining(samples) if make is Remaining else None
    order = make(samples) if remaining is None else remaining.order
    demands = [demand_of(sample, seq, rng) for seq, sample in enumerate(samples)]
    coming = [demand_of(None, count + i, rng) for i in range(NUM_DECISIONS)]
    for demand in demands:
        order.push(demand, 0.0)
    gc.collect()
    started = time.process_time()
    for i, template in enumerate(coming):
        popped = order.pop(float(i))
        if remaining is not None:
            remaining.turn_ended(popped.sample_id, rng)
        order.push(
            ActionDemand(
                kind="step",
                sample_id=popped.sample_id,
                seq=template.seq,
                num_turns=template.num_turns,
                service_seconds=template.service_seconds,
                admission_seq=popped.admission_seq,
            ),
            float(i),
        )
    return (time.process_time() - started) / NUM_DECISIONS * 1e6


def measure_admission(make, count):
    """The same for one admission and one arrival."""
    rng = random.Random(1)
    order = make({f"t{group}": rng.random() for group in range(count // GROUP_SIZE + 1)})
    tasks = [
        Task(task_id=f"t{group}", num_samples=1 << 30) for group in range(count // GROUP_SIZE + 1)
    ]

    def demand(seq):
        group = rng.randrange(count) // GROUP_SIZE
        return Demand(
            sample_id=SampleId(f"t{group}", seq),
            task=tasks[group],
            environment="a",
            seq=seq,
            arrived_at=0.0,
        )

    for seq in range(count):
        order.push(demand(seq), 0.0)
    coming = [demand(count + i) for i in range(NUM_DECISIONS)]
    gc.collect()
    started = time.process_time()
    for arriving in coming:
        order.pop({"a"}, 0.0)
        order.push(arriving, 0.0)
    return (time.process_time() - started) / NUM_DECISIONS * 1e6


ACTION_ORDERS = {
    "fifo": lambda samples: FifoOrder(),
    "caas": lambda samples: CaasOrder(),
    "caas_service": lambda samples: caas_service_order(),
    "oldest": lambda samples: oldest_order(),
    "clairvoyant": lambda samples: clairvoyant_order({s: hash(s) % 997 for s in samples}),
    "remaining": Remaining,
}
ADMISSION_ORDERS = {
    "dataset": lambda keys: DatasetOrder(),
    "longest_first": lambda keys: RankedOrder(lambda demand: keys[demand.task.task_id]),
    "pioneers": lambda keys: PioneerOrder(keys.__getitem__),
}


def test_orders():
    report = {}
    for measure, orders in (
        (measure_actions, ACTION_ORDERS),
        (measure_admission, ADMISSION_ORDERS),
    ):
        for name, make in orders.items():
            report[name] = {
                count: round(min(measure(make, count) for _ in range(3)), 2) for count in SIZES
            }
    print(json.dumps({"microseconds": report, "goal_at_10000": GOAL_US}))


if __name__ == "__main__":
    test_orders()
