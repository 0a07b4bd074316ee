"""Places in pools, as programs ask for them: taken together, nested, and told."""

import asyncio

import pytest

import rolloutkit as rk
from rolloutkit.actions import ActionSettings, PoolLimits, refuse_needs
from rolloutkit.batch import Settings
from rolloutkit.cli.waits import _lines
from rolloutkit.errors import ConfigError
from rolloutkit.record.events import Action
from rolloutkit.record.recorder import Recorder
from rolloutkit.report import RunStatistics
from rolloutkit.report.waits import explain
from rolloutkit.types import FailureKind, Status, Task
from tests.fakes import FakeEngine

TASKS = [Task(task_id="t", num_samples=4)]


def run(program, actions, tasks=TASKS):
    events, statistics = [], RunStatistics()
    trajectories = rk.run(
        tasks,
        engine=FakeEngine(),
        program=program,
        settings=Settings(actions=actions),
        recorder=Recorder([events.append, statistics]),
        time="virtual",
    )
    return trajectories, events, statistics.summary()


async def build():
    await asyncio.sleep(10)


def test_a_pool_bounds_actions_of_any_kind_and_sets_the_lower_bound():
    async def program(sample):
        kind = "make" if sample.sample_id.sample_index % 2 else "bash"
        await sample.act(kind, build, needs={"cpu": 2})

    trajectories, events, summary = run(program, ActionSettings(pools={"cpu": 3}))

    assert {one.status for one in trajectories} == {Status.COMPLETED}
    assert summary.makespan_seconds == 40  # one at a time: two need four places
    assert summary.lower_bound_seconds == pytest.approx(4 * 10 * 2 / 3)
    assert summary.binding_resource == "environment cpu"
    (last,) = [event for event in events if isinstance(event, Action) and event.t == 40]
    assert last.needs == {"cpu": 2}
    told = "\n".join(_lines(explain(lambda: events, last.sample_id)))
    assert "together with: cpu 2 of 3" in told
    assert told.count("t#") == 4  # itself, and the three of either kind that came before


def test_needs_of_a_kind_come_from_the_settings_and_those_of_a_call_go_before():
    async def program(sample):
        await sample.act("bash", build)
        await sample.act("bash", build, needs={"cpu": 1})

    settings = ActionSettings(pools={"cpu": 4}, kinds={"bash": PoolLimits(needs={"cpu": 4})})
    _, events, summary = run(program, settings)

    assert [event.needs for event in events if isinstance(event, Action)] == [{"cpu": 4}] * 4 + [
        {"cpu": 1}
    ] * 4
    assert summary.makespan_seconds == 50


def test_calls_side_by_side_take_a_place_each():
    async def program(sample):
        jobs = [sample.spawn(sample.act("bash", build, needs={"cpu": 1})) for _ in range(3)]
        for job in jobs:
            (await job.outcome()).unwrap()

    _, _, summary = run(program, ActionSettings(pools={"cpu": 2}), [Task(task_id="t")])

    assert summary.makespan_seconds == 20


def test_an_action_inside_another_uses_what_that_holds():
    async def program(sample):
        async def outer():
            await sample.act("bash", build, needs={"cpu": 1})

        await sample.act("bash", outer, needs={"cpu": 2})

    settings = ActionSettings(step=PoolLimits(slots=1), pools={"cpu": 2})
    trajectories, events, _ = run(program, settings, [Task(task_id="t")])

    assert trajectories[0].status is Status.COMPLETED
    inner, outer = [event for event in events if isinstance(event, Action)]
    assert (inner.slots, inner.needs) == (0, {})
    assert (outer.slots, outer.needs) == (1, {"cpu": 2})


def test_what_can_never_be_met_fails_the_sample_and_says_what_to_do():
    async def program(sample):
        await sample.act("bash", build, needs={"cpu": 3})

    trajectories, _, _ = run(
        program, ActionSettings(pools={"cpu": 2}), [Task(task_id="t", num_samples=1)]
    )

    failure = trajectories[0].failure
    assert failure.kind is FailureKind.PROGRAM
    assert "bash needs 3 of cpu, which has 2" in failure.message


def test_settings_that_can_never_be_met_are_refused():
    settings = ActionSettings(pools={"cpu": 2}, step=PoolLimits(slots=1, needs={"cpu": 3}))

    with pytest.raises(ConfigError, match="step needs 3 of 'cpu', which has 2"):
        refuse_needs(settings)


def test_slots_of_a_context_do_not_leak_into_what_comes_after():
    async def program(sample):
        async def nothing():
            await asyncio.sleep(1)

        await sample.act("bash", nothing)
        await sample.act("bash", nothing)

    _, events, _ = run(program, ActionSettings(), [Task(task_id="t")])

    assert [event.slots for event in events if isinstance(event, Action)] == [1, 1]
