"""Idempotent actions that stall are run again in a slot of their own; no others are."""

import asyncio

import pytest

from rolloutkit import clock
from rolloutkit.actions import ActionSettings, PoolLimits
from rolloutkit.batch import Settings, prepare
from rolloutkit.errors import ConfigError
from rolloutkit.record.events import Action, CallHedged
from rolloutkit.record.recorder import Recorder
from rolloutkit.report import RunStatistics
from rolloutkit.report.text import summary_text
from rolloutkit.report.waits import explain
from rolloutkit.sinks import CollectSink
from rolloutkit.tail import HedgeSettings, TailSettings
from rolloutkit.types import Status, Task
from tests.fakes import FakeEngine

SETTINGS = HedgeSettings(actions=True, floor_seconds=5, patience_seconds=10, max_share=1)


def play(durations, *, hedge=SETTINGS, slots=2, idempotent=True):
    """One sample's one action, whose runs take these seconds; the trajectory, when, the events."""
    events, running = [], []
    left = iter(durations)

    async def tool():
        running.append(clock.now())
        await asyncio.sleep(next(left))
        return len(running)

    async def program(sample):
        value = await sample.act("tool", tool, idempotent=idempotent)
        assert value == len(running)

    sink = CollectSink()

    async def main():
        orchestrator = prepare(
            sink,
            engine=FakeEngine(),
            program=program,
            settings=Settings(
                actions=ActionSettings(order="fifo", step=PoolLimits(slots=slots)),
                tail=TailSettings(hedge=hedge),
            ),
            recorder=Recorder([events.append]),
        )
        await orchestrator.run([Task(task_id="t")])

    clock.run(main(), time="virtual")
    (one,) = sink.trajectories
    assert one.status is Status.COMPLETED, one.failure
    return one.timings.finished_at, events


def test_stalled_action_is_run_again_and_the_first_to_end_counts_once():
    finished_at, events = play([100.0, 2.0])

    assert finished_at == 12.0
    (action,) = [event for event in events if isinstance(event, Action)]
    (hedge,) = [event for event in events if isinstance(event, CallHedged)]
    assert action.seconds == 12.0
    assert (hedge.kind, hedge.outcome, hedge.stalled_seconds) == ("tool", "reissue", 10.0)


def test_action_that_is_not_declared_idempotent_is_left_alone():
    finished_at, events = play([100.0], idempotent=False)

    assert finished_at == 100.0
    assert not any(isinstance(event, CallHedged) for event in events)


def test_settings_may_declare_a_kind():
    hedge = HedgeSettings(
        actions=True, idempotent=("tool",), floor_seconds=5, patience_seconds=10, max_share=1
    )

    assert play([100.0, 2.0], hedge=hedge, idempotent=False)[0] == 12.0


def test_without_a_free_slot_the_second_run_waits_and_the_first_goes_on():
    finished_at, events = play([30.0, 2.0], slots=1)

    assert finished_at == 30.0
    (hedge,) = [event for event in events if isinstance(event, CallHedged)]
    assert hedge.outcome == "first"


def nested(inner_seconds, *, slots):
    """One action inside another, both idempotent and of one kind; the inner one's runs take so
    long. Whether and when it ends, and what was taken.
    """
    events, left = [], iter(inner_seconds)

    async def inner():
        await asyncio.sleep(next(left))

    async def program(sample):
        async def outer():
            await sample.act("tool", inner, idempotent=True)

        await sample.act("tool", outer)

    sink = CollectSink()

    async def main():
        orchestrator = prepare(
            sink,
            engine=FakeEngine(),
            program=program,
            settings=Settings(
                actions=ActionSettings(order="fifo", step=PoolLimits(slots=slots)),
                tail=TailSettings(hedge=SETTINGS),
            ),
            recorder=Recorder([events.append]),
        )
        await orchestrator.run([Task(task_id="t")])

    clock.run(main(), time="virtual")
    return sink.trajectories[0], events


def test_a_hedge_inside_another_action_uses_what_that_holds_too():
    trajectory, events = nested([100.0, 2.0], slots=1)

    assert trajectory.timings.finished_at == 12.0
    assert [event.slots for event in events if isinstance(event, Action)] == [0, 1]


def test_summary_and_explanation_say_that_it_was_hedged():
    _, events = play([100.0, 2.0])
    statistics = RunStatistics()
    for event in events:
        statistics(event)

    text = summary_text(statistics.summary())

    assert "0 model calls and 1 actions issued again, 1 won" in " ".join(text.split())
    (stall,) = explain(lambda: iter(events), "t#0").stalls
    assert (stall.what, stall.hedged_at, stall.outcome) == ("tool", 10.0, "reissue")


def test_stage_of_a_session_cannot_be_declared_idempotent():
    with pytest.raises(ConfigError, match=r"tail\.hedge\.idempotent: 'bfcl\.step' is a stage"):
        play([1.0], hedge=HedgeSettings(actions=True, idempotent=("bfcl.step",)))
