"""Turns per CPU second of a replay with the reference engine: `make bench`, or a script with sizes.

Goals (issue "Scheduling"): 5,000 at 1,000 samples and 4,000 at 10,000, recorder on. One worker per
64 samples, memory for 35 of them each: everything queues, parks and is estimated.
"""

import json
import random
import sys
import time

from rolloutkit import clock
from rolloutkit.actions import ActionSettings, PoolLimits
from rolloutkit.admission import AdmissionLimits
from rolloutkit.batch import Policies, Settings, prepare
from rolloutkit.record.recorder import Recorder
from rolloutkit.sim.replay import Batch
from tests.benchmarks.policy.scenarios import (
    UNBOUNDED,
    CountingSink,
    Scenario,
    chains_of,
    reference_model,
)

SAMPLES_PER_WORKER = 64
ALIVE_PER_WORKER = 35


def measure(num_samples, order):
    """One replay of mini-swe-agent chains."""
    rng = random.Random(1)
    family = chains_of("miniswe")
    chains = [rng.choice(family) for _ in range(num_samples)]
    num_workers = max(1, num_samples // SAMPLES_PER_WORKER)
    alive = ALIVE_PER_WORKER * num_workers
    slots = num_samples // 8
    scenario = Scenario("miniswe", "qwen", num_samples, slots, alive, {}, W=num_workers)
    model = reference_model(scenario, chains)
    batch = Batch(chains)
    sink = CountingSink()
    num_events = 0

    def observe(event):
        nonlocal num_events
        num_events += 1

    async def main():
        orchestrator = prepare(
            sink,
            engine=model.make_engine(batch.sizes_of),
            program=batch.live,
            settings=Settings(
                admission=AdmissionLimits(order="dataset", max_samples=alive),
                actions=ActionSettings(order=order, step=PoolLimits(slots=slots)),
                limits=UNBOUNDED,
                keep_messages=False,
            ),
            recorder=Recorder([observe]),
            policies=Policies(budget=model.budget),
        )
        started = time.process_time()
        await orchestrator.run(batch.tasks())
        return time.process_time() - started

    seconds = clock.run(main(), time="virtual")
    return {
        "num_samples": num_samples,
        "order": order,
        "turns_per_cpu_second": round(sink.num_turns / seconds),
        "turns": sink.num_turns,
        "events": num_events,
    }


def test_replay():
    for num_samples in (1_000, 10_000):
        for order in ("fifo", "remaining"):
            print(json.dumps(measure(num_samples, order)))


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(json.dumps(measure(int(argument), "remaining")))
