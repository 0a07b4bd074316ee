"""A batch in which sessions hang, crash and dawdle ends with every sample in its expected state."""

import asyncio

from rolloutkit import clock
from rolloutkit.actions import ActionSettings, PoolLimits
from rolloutkit.admission import AdmissionLimits
from rolloutkit.batch import Settings, prepare
from rolloutkit.limits import Limits
from rolloutkit.sim.scripted import Act, Fault, Script, ScriptedEnvironment, Turn, show
from rolloutkit.sinks import CollectSink
from rolloutkit.types import CancelReason, FailureKind, SampleId, Status, StopReason, Task
from tests.fakes import FakeEngine

QUICK = Act(1.0)


def script(*, turns=3, step=QUICK, **stages):
    shown = [show(10)] * (turns - 1) + [show(1, done=True)]
    return Script(
        prompt=show(50), turns=tuple(Turn(observation, step) for observation in shown), **stages
    )


CRASH, HANG = Act(0.5, Fault.CRASH), Act(0.5, Fault.HANG)

# name -> script, status, stop reason, failure kind, limit
EXPECTED = {
    "good": (script(), Status.COMPLETED, StopReason.DONE, None, None),
    "slow": (script(turns=40, step=Act(30.0)), Status.COMPLETED, StopReason.DONE, None, None),
    "endless": (script(turns=500), Status.COMPLETED, StopReason.MAX_TURNS, None, None),
    "set-up crashes": (
        script(set_up=CRASH),
        Status.FAILED,
        StopReason.FAILED,
        FailureKind.SET_UP,
        None,
    ),
    "set-up hangs": (
        script(set_up=HANG),
        Status.FAILED,
        StopReason.FAILED,
        FailureKind.LIMIT,
        "set_up",
    ),
    "step crashes": (
        script(step=CRASH),
        Status.FAILED,
        StopReason.FAILED,
        FailureKind.ENVIRONMENT,
        None,
    ),
    "step hangs": (
        script(step=HANG),
        Status.FAILED,
        StopReason.FAILED,
        FailureKind.LIMIT,
        "action",
    ),
    "scoring crashes": (
        script(scoring=CRASH),
        Status.FAILED,
        StopReason.FAILED,
        FailureKind.SCORE,
        None,
    ),
    "scoring hangs": (
        script(scoring=HANG),
        Status.FAILED,
        StopReason.FAILED,
        FailureKind.LIMIT,
        "scoring",
    ),
    "close crashes": (script(closing=CRASH), Status.COMPLETED, StopReason.DONE, None, None),
    "close hangs": (script(closing=HANG), Status.COMPLETED, StopReason.DONE, None, None),
    "model hangs": (script(), Status.FAILED, StopReason.FAILED, FailureKind.LIMIT, "model_call"),
    "model breaks": (script(), Status.FAILED, StopReason.FAILED, FailureKind.ENGINE, None),
    "model refuses": (script(), Status.FAILED, StopReason.FAILED, FailureKind.REQUEST, None),
}
ENGINE_FAULTS = {"model hangs": "hang", "model breaks": "break", "model refuses": "refuse"}
NUM_SAMPLES = 4


def make(sink, *, run_seconds=100_000.0):
    faults = {
        (SampleId(name, index), 1): fault
        for name, fault in ENGINE_FAULTS.items()
        for index in range(NUM_SAMPLES)
    }
    return prepare(
        sink,
        engine=FakeEngine(seconds=2.0, faults=faults),
        environment=ScriptedEnvironment(script_of=lambda task, _: EXPECTED[task.task_id][0]),
        settings=Settings(
            admission=AdmissionLimits(max_samples=12, max_sessions={"scripted": 16}),
            actions=ActionSettings(step=PoolLimits(slots=6), set_up=PoolLimits(slots=3)),
            limits=Limits(
                max_turns=100,
                set_up=20,
                model_call=60,
                action=45,
                scoring=15,
                close=10,
                run=run_seconds,
            ),
            breaker_failures=200,
        ),
    )


TASKS = [Task(task_id=name, num_samples=NUM_SAMPLES) for name in EXPECTED]


def test_every_sample_ends_in_its_expected_state():
    sink = CollectSink()

    async def main():
        await make(sink).run(TASKS)

    clock.run(main(), time="virtual")

    assert len(sink.trajectories) == len(EXPECTED) * NUM_SAMPLES
    for trajectory in sink.trajectories:
        name = trajectory.sample_id.task_id
        _, status, stop_reason, kind, limit = EXPECTED[name]
        failure = trajectory.failure
        assert (trajectory.status, trajectory.stop_reason) == (status, stop_reason), name
        assert (failure and failure.kind, failure and failure.limit) == (kind, limit), name


def test_two_interrupts_end_the_batch_with_nothing_lost():
    sink = CollectSink()

    async def main():
        orchestrator = make(sink)
        loop = asyncio.get_running_loop()
        loop.call_later(40, orchestrator.drain)
        loop.call_later(60, orchestrator.cancel, CancelReason.INTERRUPTED)
        await orchestrator.run(TASKS)
        return clock.now()

    ended_at = clock.run(main(), time="virtual")

    assert ended_at <= 60 + 4 * 10 + 1  # closes, one after another where they hang
    ids = [trajectory.sample_id for trajectory in sink.trajectories]
    assert sorted(ids) == sorted(
        SampleId(name, index) for name in EXPECTED for index in range(NUM_SAMPLES)
    )
    reasons = {t.cancel_reason for t in sink.trajectories if t.status is Status.CANCELLED}
    assert reasons == {CancelReason.INTERRUPTED, CancelReason.NOT_STARTED}
    assert any(trajectory.status is Status.COMPLETED for trajectory in sink.trajectories)
