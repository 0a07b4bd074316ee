"""No sample is lost, doubled or left open, whatever fails, hangs, ties or is cancelled."""

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutkit import clock
from rolloutkit.actions import ActionSettings, PoolLimits
from rolloutkit.admission import AdmissionLimits
from rolloutkit.batch import Settings, prepare
from rolloutkit.errors import RunFailed
from rolloutkit.limits import Limits, RetryPolicy
from rolloutkit.record.events import RunEnded, SampleAdmitted, SampleEnded
from rolloutkit.record.recorder import Recorder
from rolloutkit.sinks import CollectSink
from rolloutkit.types import CancelReason, SampleId, Status, Task
from tests.fakes import FakeEngine, FakeEnvironment, Plan
from tests.property.examples import core_examples, moments, ticks
from tests.property.moments import at

FAULTS = st.dictionaries(
    st.sampled_from(["set_up", "step", "score", "close"]),
    st.sampled_from(["crash", "hang"]),
    max_size=2,
)
PLANS = st.lists(
    st.builds(
        Plan,
        num_turns=st.integers(1, 3),
        seconds=ticks,
        faults=st.just({}) | FAULTS,
        heals=st.booleans(),
    ),
    min_size=1,
    max_size=8,
)
ENGINE_FAULTS = st.dictionaries(
    st.tuples(st.integers(0, 7), st.integers(0, 2)),
    st.sampled_from(["hang", "break", "refuse"]),
    max_size=2,
)
ENDINGS = st.none() | st.tuples(
    st.sampled_from(["drain", "cancel", "cancel caller", "cancel sample"]),
    moments,
    st.integers(0, 7),
)

LIMITS = Limits(set_up=9, model_call=9, action=9, scoring=9, close=9, sample=200, run=5_000)


@pytest.mark.timeout(300)
@core_examples
@given(
    plans=PLANS,
    engine_faults=ENGINE_FAULTS,
    engine_seconds=ticks,
    ends=ENDINGS,
    max_samples=st.integers(1, 4),
    slots=st.integers(1, 3),
    max_attempts=st.integers(1, 2),
    is_stream=st.booleans(),
    breaker_failures=st.sampled_from([2, 100]),
)
def test_every_sample_ends_once_and_nothing_stays_open(
    plans,
    engine_faults,
    engine_seconds,
    ends,
    max_samples,
    slots,
    max_attempts,
    is_stream,
    breaker_failures,
):
    ids = [SampleId("t", index) for index in range(len(plans))]
    engine = FakeEngine(
        seconds=engine_seconds,
        faults={
            (SampleId("t", index), turn): fault for (index, turn), fault in engine_faults.items()
        },
    )
    environment = FakeEnvironment(dict(zip(ids, plans, strict=True)))
    events = []
    sink = CollectSink()

    async def main():
        orchestrator = prepare(
            sink,
            engine=engine,
            environment=environment,
            settings=Settings(
                admission=AdmissionLimits(
                    max_samples=max_samples, max_sessions={"fake": max_samples}
                ),
                actions=ActionSettings(step=PoolLimits(slots=slots), close=PoolLimits(slots=1)),
                limits=LIMITS,
                retry=RetryPolicy(max_attempts=max_attempts),
                breaker_failures=breaker_failures,
            ),
            recorder=Recorder([events.append]),
        )
        tasks = [Task(task_id="t", num_samples=len(plans))]
        run = asyncio.create_task(orchestrator.run(stream(tasks) if is_stream else tasks))
        if ends is not None:
            what, moment, index = ends
            at(moment, lambda: end(orchestrator, run, what, index))
        with contextlib.suppress(asyncio.CancelledError, RunFailed):
            await run
        admission = orchestrator._admission
        assert admission.num_alive == 0
        assert set(admission.num_sessions.values()) <= {0}
        assert len(admission) == 0
        scheduler = orchestrator._services.actions
        assert set(scheduler.num_running.values()) <= {0}
        assert scheduler.num_waiting == 0
        assert len(asyncio.all_tasks()) == 1

    clock.run(main(), time="virtual")

    emitted = sorted(trajectory.sample_id for trajectory in sink.trajectories)
    if not (is_stream and ends is not None and not emitted):  # ended before the stream was read
        assert emitted == ids
    assert engine.num_running == 0
    assert all(session.num_closes <= 1 for session in environment.sessions)
    assert all(
        session.num_closes == 1
        for session in environment.sessions
        if environment.opened[session.sample_id]
    )
    ended = [event.sample_id for event in events if isinstance(event, SampleEnded)]
    assert sorted(ended) == sorted(map(str, emitted))
    admitted = [event.sample_id for event in events if isinstance(event, SampleAdmitted)]
    assert len(set(admitted)) == len(admitted)
    assert isinstance(events[-1], RunEnded)
    if ends is None and events[-1].reason == "finished":
        check_outcomes(sink, plans, engine.faults, max_attempts)


async def stream(tasks):
    for task in tasks:
        await asyncio.sleep(0.25)
        yield task


def end(orchestrator, run, what, index):
    if what == "drain":
        orchestrator.drain()
    elif what == "cancel":
        orchestrator.cancel(CancelReason.INTERRUPTED)
    elif what == "cancel caller":
        run.cancel()
    else:
        jobs = list(orchestrator._sample_jobs.values())
        if jobs:
            jobs[index % len(jobs)].cancel()


def check_outcomes(sink, plans, engine_faults, max_attempts):
    """Without interference a sample fails exactly when its own plan, or the engine, makes it
    fail.
    """
    for trajectory in sink.trajectories:
        index = trajectory.sample_id.sample_index
        plan = plans[index]
        heals = plan.heals and max_attempts > 1 and "crash" in plan.faults.values()
        session_fails = any(plan.faults.get(stage) for stage in ("set_up", "step", "score"))
        engine_fails = any(
            (trajectory.sample_id, turn) in engine_faults for turn in range(plan.num_turns)
        )
        if not session_fails and not engine_fails:
            assert trajectory.status is Status.COMPLETED
            assert trajectory.score == 1.0
            assert trajectory.num_turns == plan.num_turns
            assert trajectory.reward == 0.5 * plan.num_turns
            assert len(trajectory.chains[0]) == plan.num_turns * 8
        elif not heals:
            assert trajectory.status is Status.FAILED
