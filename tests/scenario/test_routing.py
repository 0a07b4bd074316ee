"""Whole runs over workers that die, stall, slow down, come late and lose memory."""

import asyncio

import pytest

from rolloutkit import clock
from rolloutkit.admission import AdmissionLimits, MemoryBudget
from rolloutkit.batch import Policies, Settings, opened, prepare
from rolloutkit.errors import RunFailed
from rolloutkit.limits import RetryPolicy
from rolloutkit.record.events import ModelCall
from rolloutkit.record.recorder import Recorder
from rolloutkit.report import RunStatistics
from rolloutkit.report.text import summary_text
from rolloutkit.routing import Router, RouterSettings
from rolloutkit.sim.speaking import SpeakingConfig, SpeakingEngine
from rolloutkit.sim.worker_faults import WorkerFault, arm
from rolloutkit.sinks import CollectSink
from rolloutkit.types import CancelReason, Status, Task
from tests.benchmarks.routing.scenarios import LOADS, batch_of, joins, slow
from tests.benchmarks.routing.scenarios import play as play_chains

NUM_SAMPLES, NUM_TURNS = 24, 5
BUDGET = MemoryBudget(capacity_bytes=12_000, bytes_per_token=1)  # about 8 samples a worker
POLICIES = ["round_robin", "sticky", "sticky_least_loaded", "sticky_least_work", "cost"]
FAULTS = (
    WorkerFault(worker="worker-0", at=12.0, kind="kill"),
    WorkerFault(worker="worker-1", at=30.0, kind="stall"),
    WorkerFault(worker="worker-2", at=20.0, kind="slow", factor=3.0),
    WorkerFault(worker="worker-2", at=25.0, kind="shrink", factor=0.5),
    WorkerFault(worker="worker-0", at=60.0, kind="start"),
    WorkerFault(worker="worker-1", at=200.0, kind="start"),
)


def play(policy, faults=FAULTS, statistics=None, **settings):
    statistics = statistics or RunStatistics()
    sink, events = CollectSink(), []

    async def program(sample):
        for turn in range(NUM_TURNS):
            await sample.generate(token_ids=[300 + turn] * 100)
            await asyncio.sleep(3.0)

    async def main():
        engine = SpeakingEngine(SpeakingConfig(num_workers=3, mean_tokens=150.0))
        workers = engine.make_workers()
        arm(faults, {worker.name: worker.station for worker in workers})
        router = Router(workers, RouterSettings(policy=policy, **settings))
        async with opened(router, 60.0):
            orchestrator = prepare(
                sink,
                engine=router,
                program=program,
                settings=Settings(
                    admission=AdmissionLimits(max_samples=NUM_SAMPLES),
                    retry=RetryPolicy(max_attempts=1),
                ),
                recorder=Recorder([statistics, events.append]),
                policies=Policies(budget=BUDGET),
            )
            await orchestrator.run([Task(task_id=f"t{index}") for index in range(NUM_SAMPLES)])
            assert not router.fleet.num_residents.any()
            assert not router._visited
        assert engine.num_running == 0

    clock.run(main(), time="virtual")
    return sink.trajectories, events[:-1], statistics.summary()  # the last event holds CPU times


@pytest.mark.parametrize("policy", POLICIES)
def test_no_turn_is_lost_or_doubled_whatever_happens_to_workers(policy):
    trajectories, events, summary = play(policy)

    assert [one.status for one in trajectories] == [Status.COMPLETED] * NUM_SAMPLES
    for one in trajectories:
        ids, mask = one.chains[0].token_ids, one.chains[0].sampled_mask
        said = [token for token, sampled in zip(ids, mask, strict=True) if not sampled]
        assert said == [300 + turn for turn in range(NUM_TURNS) for _ in range(100)]
        assert one.num_turns == NUM_TURNS
        assert sum(mask) == one.output_tokens
    calls = [event for event in events if isinstance(event, ModelCall)]
    assert len(calls) == NUM_SAMPLES * NUM_TURNS
    assert sum(one.num_calls for one in summary.workers) == len(calls)
    assert {one.worker: one.num_ejections for one in summary.workers}["worker-0"] == 1
    assert "ejected: worker-0 1" in summary_text(summary)


def test_the_same_faults_give_the_same_run_event_by_event():
    assert play("cost")[1] == play("cost")[1]


def test_a_run_whose_workers_are_all_gone_ends_with_everything_saved():
    faults = [WorkerFault(worker=f"worker-{index}", at=20.0, kind="kill") for index in range(3)]

    statistics = RunStatistics()
    with pytest.raises(RunFailed, match=r"no worker has been there for router.gone_seconds"):
        play("sticky_least_loaded", faults, statistics, gone_seconds=50)

    summary = statistics.summary()
    assert summary.num_samples == NUM_SAMPLES
    assert summary.num_completed + summary.num_failed + summary.num_cancelled == NUM_SAMPLES
    assert summary.cancel_reasons == {CancelReason.RUN_BROKE: summary.num_cancelled}
    assert 70 <= summary.makespan_seconds <= 75


@pytest.mark.slow
@pytest.mark.parametrize("faults", [slow, joins])
def test_cost_wins_where_a_worker_is_slow_or_late(faults):
    load = LOADS["qwen3-32b, mini-swe"]
    chains = batch_of(load, 3)[:96]
    base = play_chains(load, chains, "sticky_least_loaded").makespan_seconds

    sticky, cost = [
        play_chains(load, chains, policy, faults(base)).makespan_seconds
        for policy in ("sticky_least_loaded", "cost")
    ]

    assert cost < sticky
