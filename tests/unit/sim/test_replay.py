"""A replayed batch goes through the production scheduler with the recorded sizes and durations."""

import random

import pytest

from rolloutkit import clock
from rolloutkit.actions import ActionSettings, PoolLimits
from rolloutkit.admission import AdmissionLimits, MemoryBudget
from rolloutkit.batch import Policies, Settings, prepare
from rolloutkit.record.chains import RecordedChain, RecordedTurn
from rolloutkit.record.events import ModelCall
from rolloutkit.record.recorder import Recorder
from rolloutkit.routing import Fleet, StickyLeastLoaded
from rolloutkit.sim.replay import Batch
from rolloutkit.sim.uncontended import UncontendedConfig, UncontendedEngine
from rolloutkit.sinks import CollectSink
from rolloutkit.types import SampleId, Status


def chain_of(*tool_seconds, context=1_000):
    """Calls of one second each, and the tools between them."""
    return RecordedChain(
        "made", tuple(RecordedTurn(context, 1, 60, seconds) for seconds in tool_seconds)
    )


def play(chains, *, slots=1, max_samples=64, policies=None, totals=None):
    """The trajectories in the order in which they ended, and the events."""
    batch = Batch(chains, group_size=2)
    sink = CollectSink()
    events = []
    settings = Settings(
        admission=AdmissionLimits(
            max_samples=max_samples, order="dataset" if totals is None else "clairvoyant"
        ),
        actions=ActionSettings(
            order="fifo" if totals is None else "clairvoyant", step=PoolLimits(slots=slots)
        ),
    )

    async def main():
        config = UncontendedConfig(prefill_tokens_per_second=1e12)
        orchestrator = prepare(
            sink,
            engine=UncontendedEngine(config, batch.sizes_of),
            program=batch.live,
            settings=settings,
            recorder=Recorder([events.append]),
            policies=policies or Policies(),
            totals=totals,
        )
        await orchestrator.run(batch.tasks())

    clock.run(main(), time="virtual")
    return sink.trajectories, events


def test_calls_and_tools_take_their_recorded_times():
    (trajectory,), _ = play([chain_of(5.0, 0.0, 2.0)])

    assert trajectory.status is Status.COMPLETED
    assert trajectory.sample_id == SampleId("group-0", 0)
    assert trajectory.timings.finished_at == pytest.approx(10.0)
    assert (trajectory.num_turns, trajectory.num_actions) == (3, 2)
    assert trajectory.output_tokens == 180


def test_tools_wait_for_each_other_and_calls_do_not():
    trajectories, _ = play([chain_of(5.0), chain_of(5.0)])

    assert [one.timings.finished_at for one in trajectories] == pytest.approx([6.0, 11.0])


def test_the_clairvoyant_orders_take_the_largest_total_first():
    chains = [chain_of(1.0), chain_of(3.0), chain_of(9.0), chain_of(5.0)]
    batch = Batch(chains, group_size=2)
    totals = {
        sample_id: sum(turn.tool_seconds for turn in chain.turns)
        for sample_id, chain in batch.items()
    }

    trajectories, _ = play(chains, max_samples=3, totals=totals)

    ended = [totals[one.sample_id] for one in trajectories]
    assert ended == [9.0, 5.0, 3.0, 1.0]


def test_samples_are_parked_while_contexts_outgrow_the_memory_and_all_of_them_end():
    chains = [chain_of(1.0, 1.0, 1.0, context=50) for _ in range(5)]
    policies = Policies(
        placement=Fleet(["worker-0"], StickyLeastLoaded(), random.Random(0)),
        budget=MemoryBudget(capacity_bytes=120, bytes_per_token=1, turn_tokens=0),
    )

    trajectories, events = play(chains, slots=8, policies=policies)

    kinds = [type(event).__name__ for event in events]
    assert [one.status for one in trajectories] == [Status.COMPLETED] * 5
    assert kinds.count("SampleParked") == kinds.count("SampleResumed") == 3
    assert sum(one.timings.parked_seconds for one in trajectories) > 0
    assert {one.worker for one in trajectories} == {"worker-0"}


def test_a_replay_repeats_itself_event_by_event():
    chains = [chain_of(*(1.0 + index % 3,) * 3) for index in range(9)]

    _, first = play(chains, slots=2, max_samples=5)
    _, second = play(chains, slots=2, max_samples=5)

    assert first[:-1] == second[:-1]  # the last holds CPU times


def test_new_tokens_are_told_from_what_the_engine_reported():
    turns = (
        RecordedTurn(100, 100, 10, 0.0),
        RecordedTurn(150, 40, 10, 0.0),
        RecordedTurn(60, 60, 10, 0.0),  # the conversation was compacted
    )

    _, events = play([RecordedChain("made", turns)])

    calls = [event for event in events if isinstance(event, ModelCall)]
    assert [call.context_tokens for call in calls] == [100, 150, 60]
    assert [call.new_tokens for call in calls] == [100, 40, 60]
