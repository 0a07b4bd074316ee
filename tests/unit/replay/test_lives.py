"""What a trace's events say about each sample's life."""

import pytest

from rolloutkit.errors import ConfigError
from rolloutkit.record.events import ActionOutcome, RunStarted
from rolloutkit.record.lives import Act, Call, read_lives
from rolloutkit.types import FailureKind, SampleId, Status, StopReason
from tests.unit.replay.recordings import act, call, life, write


def test_queueing_is_left_out_and_service_stays(tmp_path):
    events = [
        call("a#0", 3.0, seconds=3.0, queue_seconds=1.0),
        act("a#0", 9.0, seconds=2.0, wait_seconds=4.0),
    ]

    (one,) = read_lives(write(tmp_path / "t.gz", life("a#0", *events))).lives

    assert one.sample_id == SampleId("a", 0)
    assert one.attempts[0].steps == (Call(100, 10, 5, 2.0), (Act("tool", 2.0),))


def test_actions_that_overlapped_run_side_by_side(tmp_path):
    events = [call("a#0", 1.0), act("a#0", 3.0, 2.0), act("a#0", 4.0, 3.0), act("a#0", 5.0, 1.0)]

    (one,) = read_lives(write(tmp_path / "t.gz", life("a#0", *events))).lives

    beside, after = one.attempts[0].steps[1:]
    assert sorted(one.seconds for one in beside) == [2.0, 3.0]
    assert after == (Act("tool", 1.0),)


def test_stages_belong_to_the_session_and_failures_to_the_attempt(tmp_path):
    events = [
        act("a#0", 1.0, kind="env.set_up"),
        call("a#0", 2.0),
        act("a#0", 3.0, kind="env.step", outcome=ActionOutcome.ERROR),
        act("a#0", 4.0, kind="env.close"),
    ]
    failed = {
        "status": Status.FAILED,
        "stop_reason": StopReason.FAILED,
        "failure": FailureKind.ENVIRONMENT,
    }

    path = write(tmp_path / "t.gz", life("a#0", *events, environment="env", **failed))
    (one,) = read_lives(path).lives

    (attempt,) = one.attempts
    assert one.has_session
    assert (attempt.set_up, attempt.closing) == (Act("env.set_up", 1.0), Act("env.close", 1.0))
    assert attempt.acts == [Act("env.step", 1.0, is_ok=False)]
    assert attempt.failure is FailureKind.ENVIRONMENT


@pytest.mark.parametrize(
    ("service_times", "seconds"), [("observed", 3.5), ("uncontended", 3.0), ("derived", 3.0)]
)
def test_wall_clock_of_a_real_engine_goes_before_what_it_says_itself(
    tmp_path, service_times, seconds
):
    event = call("a#0", 4.0, seconds=4.0, queue_seconds=0.5, service_seconds=3.0)
    started = RunStarted(t=0.0, service_times=service_times)

    (one,) = read_lives(write(tmp_path / "t.gz", life("a#0", event), started=started)).lives

    assert one.attempts[0].calls[0].seconds == seconds


def test_what_was_cached_does_not_count_as_new(tmp_path):
    shrank = call("a#0", 1.0, context_tokens=50, new_tokens=50, cached_tokens=40)

    (one,) = read_lives(write(tmp_path / "t.gz", life("a#0", shrank))).lives

    assert one.attempts[0].calls[0].new == 10


def test_cancelled_samples_are_left_out_and_counted(tmp_path):
    cancelled = {"status": Status.CANCELLED, "stop_reason": StopReason.CANCELLED}

    recording = read_lives(
        write(tmp_path / "t.gz", life("a#0", call("a#0", 1.0)), life("b#0", **cancelled))
    )

    assert [one.sample_id.task_id for one in recording.lives] == ["a"]
    assert recording.num_left_out == 1


def test_unknown_token_counts_are_refused_or_filled(tmp_path):
    path = write(tmp_path / "t.gz", life("a#0", call("a#0", 1.0, output_tokens=None)))

    with pytest.raises(ConfigError, match=r"line 4: output_tokens is not recorded: give batch"):
        read_lives(path)
    (one,) = read_lives(path, fill_tokens=7).lives
    assert one.attempts[0].calls[0].output == 7


@pytest.mark.parametrize(
    ("lives", "message"),
    [
        ([life("a#0", act("a#0", 1.0, seconds=-2.0))], "line 4: seconds is negative: -2.0"),
        (
            [life("a#0", environment="x"), life("a#1", environment="y")],
            "line 5: task 'a' mixes environments 'x' and 'y'",
        ),
        ([[call("a#0", 1.0)]], "line 2: sample 'a#0' was not admitted before"),
        ([], "holds no sample that ended by itself"),
    ],
)
def test_what_is_wrong_is_refused_with_its_line(tmp_path, lives, message):
    with pytest.raises(ConfigError, match=message):
        read_lives(write(tmp_path / "t.gz", *lives))
