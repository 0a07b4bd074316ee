"""Recorded lives are lived again: beside each other, on several chains, and failing as they did."""

import pytest

from rolloutkit import clock
from rolloutkit.batch import Settings, prepare
from rolloutkit.limits import RetryPolicy
from rolloutkit.record.lives import Act, Attempt, Call, Life
from rolloutkit.sim.recorded import LifeBatch, RecordedEngine
from rolloutkit.sinks import CollectSink
from rolloutkit.types import FailureKind, SampleId, Status, StopReason

CALL = Call(10, 10, 5, 1.0)


def play(*attempts, parallelism=None, num_samples=1, **ending):
    """The trajectories of samples that all live these attempts."""
    lives = {
        SampleId("a", index): Life(SampleId("a", index), "env", attempts, **ending)
        for index in range(num_samples)
    }
    batch = LifeBatch(lives)
    sink = CollectSink()

    async def main():
        orchestrator = prepare(
            sink,
            engine=RecordedEngine(parallelism, batch),
            environment=batch.environments(),
            program=batch.live,
            settings=Settings(retry=RetryPolicy(delay_seconds=10.0)),
        )
        await orchestrator.run(batch.tasks())

    clock.run(main(), time="virtual")
    return sink.trajectories


def test_actions_side_by_side_take_as_long_as_the_longest():
    (one,) = play(Attempt((CALL, (Act("tool", 2.0), Act("tool", 3.0)), CALL)))

    assert one.timings.finished_at == pytest.approx(5.0)
    assert (one.num_turns, one.num_actions) == (2, 2)


def test_calls_of_another_chain_follow_in_the_order_in_which_they_were_sent():
    (one,) = play(Attempt((CALL, CALL._replace(chain=1), CALL)))

    assert one.status is Status.COMPLETED
    assert one.timings.finished_at == pytest.approx(3.0)


def test_calls_beyond_the_parallelism_wait():
    both = play(Attempt((CALL,)), parallelism=1, num_samples=2)

    assert [one.timings.finished_at for one in both] == pytest.approx([1.0, 2.0])


def test_failed_call_is_a_pause_and_ends_the_attempt_which_is_tried_again():
    failed = Attempt((CALL._replace(error=FailureKind.ENGINE, seconds=4.0),), failure="engine")

    (one,) = play(failed, Attempt((CALL,)))

    assert one.status is Status.COMPLETED
    assert one.timings.finished_at == pytest.approx(4.0 + 10.0 + 1.0)


def test_action_that_failed_and_was_survived_is_survived_again():
    (one,) = play(Attempt((CALL, (Act("tool", 1.0, is_ok=False),), CALL)))

    assert one.status is Status.COMPLETED
    assert one.timings.finished_at == pytest.approx(3.0)


@pytest.mark.parametrize(
    "kind", [FailureKind.PROGRAM, FailureKind.LIMIT, FailureKind.RENDER, FailureKind.REQUEST]
)
def test_failure_has_its_recorded_kind(kind):
    ending = {"stop_reason": StopReason.FAILED}

    (one,) = play(Attempt((CALL,), failure=kind), **ending)

    assert one.status is Status.FAILED
    assert one.failure.kind is kind


def test_scores_come_from_the_session_or_from_the_program():
    stages = {"set_up": Act("env.set_up", 1.0), "scoring": Act("env.score", 2.0)}

    (scored,) = play(Attempt((CALL,), **stages), score=0.5)
    (itself,) = play(Attempt((CALL,)), score=0.25)

    assert (scored.score, itself.score) == (0.5, 0.25)
    assert scored.timings.score_seconds == pytest.approx(2.0)


def test_scoring_that_failed_fails_again():
    stages = {"set_up": Act("env.set_up", 1.0), "scoring": Act("env.score", 2.0, is_ok=False)}
    attempt = Attempt((CALL,), failure=FailureKind.SCORE, **stages)

    (one,) = play(attempt, stop_reason=StopReason.FAILED)

    assert one.failure.kind is FailureKind.SCORE
