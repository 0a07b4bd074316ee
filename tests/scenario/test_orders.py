"""Orders in whole runs: on a heavy-tailed grouped workload the estimate ends the batch earlier.

Virtual time, paired seeds, no figure of cost: which order ends first, and that nothing is lost.
"""

import math
import random
import statistics

import pytest

from rolloutkit import clock
from rolloutkit.actions import ActionSettings, PoolLimits
from rolloutkit.admission import AdmissionLimits
from rolloutkit.batch import Settings, prepare
from rolloutkit.engines.simulated import SimulatedConfig, SimulatedEngine
from rolloutkit.errors import ConfigError
from rolloutkit.limits import Limits
from rolloutkit.record.events import OrderChosen, RunEnded, RunStarted
from rolloutkit.record.recorder import Recorder
from rolloutkit.sim.scripted import Act, Script, ScriptedEnvironment, Turn, show
from rolloutkit.sinks import CollectSink
from rolloutkit.types import SampleId, Status, Task

NUM_GROUPS, GROUP_SIZE, SLOTS = 12, 8, 8
NUM_SAMPLES = NUM_GROUPS * GROUP_SIZE
TASKS = [Task(task_id=f"t{group}", num_samples=GROUP_SIZE) for group in range(NUM_GROUPS)]
SEEDS = range(4)
STEP_SECONDS = 4.0


def num_turns(seed, epoch, sample_id):
    """Log-normal, two thirds of the variance between the groups, which keep theirs over epochs."""
    group = random.Random(f"{seed}/{sample_id.task_id}").gauss(0, 1.0)
    own = random.Random(f"{seed}/{epoch}/{sample_id}").gauss(0, 0.7)
    return max(1, min(180, round(8 * math.exp(group + own))))


def script_of(seed, epoch):
    def script(task, sample_id):
        count = num_turns(seed, epoch, sample_id)
        rng = random.Random(f"{seed}/{epoch}/{sample_id}/steps")
        return Script(
            prompt=show(200),
            turns=tuple(
                Turn(show(50, done=left == 1), Act(STEP_SECONDS * rng.uniform(0.5, 1.5)))
                for left in range(count, 0, -1)
            ),
        )

    return script


class Run:
    """One epoch of the workload, to its end."""

    def __init__(self, seed, actions, *, epoch=1, admission="auto", history=None, totals=None):
        self.events, self.sink = [], CollectSink()
        settings = Settings(
            admission=AdmissionLimits(max_samples=NUM_SAMPLES, order=admission),
            actions=ActionSettings(step=PoolLimits(slots=SLOTS), set_up=PoolLimits(), **actions),
            limits=Limits(max_turns=1_000),
            keep_messages=False,
            seed=seed,
        )

        async def main():
            orchestrator = prepare(
                self.sink,
                engine=SimulatedEngine(
                    SimulatedConfig(seed=seed, mean_tokens=60, parallelism=NUM_SAMPLES)
                ),
                environment=ScriptedEnvironment(script_of=script_of(seed, epoch)),
                settings=settings,
                recorder=Recorder([self.events.append]),
                history=history,
                totals=totals,
            )
            await orchestrator.run(TASKS)
            self.history = orchestrator.next_history()
            return clock.now()

        self.seconds = clock.run(main(), time="virtual")
        ids = {trajectory.sample_id for trajectory in self.sink.trajectories}
        assert len(ids) == len(self.sink.trajectories) == NUM_SAMPLES
        assert {it.status for it in self.sink.trajectories} == {Status.COMPLETED}

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture(scope="module")
def fifo():
    return {seed: Run(seed, {"order": "fifo"}) for seed in SEEDS}


@pytest.fixture(scope="module")
def histories():
    """Of an epoch before."""
    return {seed: Run(seed, {"order": "fifo"}, epoch=0).history for seed in SEEDS}


def change(runs, others):
    """Mean change of the makespan, paired by seed."""
    return statistics.mean(math.log(runs[seed].seconds / others[seed].seconds) for seed in others)


@pytest.mark.slow
def test_remaining_work_with_a_history_ends_the_batch_before_fifo(fifo, histories):
    remaining = {
        seed: Run(seed, {"order": "remaining", "fifo_lane": 0.0}, history=histories[seed])
        for seed in SEEDS
    }
    laned = {seed: Run(seed, {"order": "remaining"}, history=histories[seed]) for seed in SEEDS}

    assert change(remaining, fifo) < -0.05
    assert change(laned, fifo) < -0.03
    assert all(run.of(RunEnded)[0].explained_variance > 0.2 for run in remaining.values())


@pytest.mark.slow
def test_knowing_the_lengths_ends_the_batch_first(fifo, histories):
    totals = {
        seed: {
            SampleId(task.task_id, index): float(num_turns(seed, 1, SampleId(task.task_id, index)))
            for task in TASKS
            for index in range(GROUP_SIZE)
        }
        for seed in SEEDS
    }
    clairvoyant = {
        seed: Run(seed, {"order": "clairvoyant"}, admission="clairvoyant", totals=totals[seed])
        for seed in SEEDS
    }

    assert change(clairvoyant, fifo) < -0.1


@pytest.mark.parametrize("order", ["caas_service", "oldest", "remaining"])
@pytest.mark.parametrize("admission", ["dataset", "longest_first", "pioneers"])
def test_every_order_runs_without_a_history(order, admission):
    run = Run(0, {"order": order}, admission=admission)

    assert run.of(RunStarted)[0].order == order
    assert run.of(RunEnded)[0].order == order


def test_auto_without_a_history_says_what_it_does_and_why():
    run = Run(0, {"order": "auto"})

    first = run.of(OrderChosen)[0]
    assert (first.t, first.order) == (0, "fifo")
    assert "no history" in first.reason
    ended = run.of(RunEnded)[0]
    assert ended.order == run.of(OrderChosen)[-1].order
    assert ended.order_reason.startswith(run.of(OrderChosen)[-1].reason)
    assert 0.05 < ended.queue_share < 1
    assert 0.05 < ended.binding_share < 1


def test_auto_trusts_a_history_once_enough_epochs_foresaw_the_tail():
    history, orders = None, []
    for epoch in range(5):
        run = Run(1, {"order": "auto"}, epoch=epoch, history=history)
        orders.append(run.of(OrderChosen)[0].order)
        history = run.history

    assert history is not None
    assert history.num_epochs == 5
    assert history.recall is not None
    assert history.recall > 0.65
    assert orders[0] in ("fifo", "caas")
    assert orders[-1] == "remaining"


def test_two_runs_with_one_history_are_identical(histories):
    first, second = (Run(0, {"order": "auto"}, history=histories[0]) for _ in range(2))

    assert first.seconds == second.seconds
    assert first.history == second.history
    assert [e for e in first.events if not isinstance(e, RunEnded)] == [
        e for e in second.events if not isinstance(e, RunEnded)
    ]


@pytest.mark.parametrize(
    ("actions", "admission", "message"),
    [
        ({"order": "fifo"}, "clairvoyant", "admission.order=clairvoyant needs true lengths"),
        ({"order": "clairvoyant"}, "dataset", "actions.order=clairvoyant needs true lengths"),
    ],
)
def test_clairvoyant_orders_are_refused_in_a_run_that_cannot_know(actions, admission, message):
    with pytest.raises(ConfigError, match=message):
        Run(0, actions, admission=admission)
