import pytest

from rolloutkit.live.progress import Progress
from rolloutkit.record.events import ModelCall, SampleAdmitted, SampleEnded
from rolloutkit.types import Status, StopReason


def ended(sample_id: str, t: float, status: Status = Status.COMPLETED) -> SampleEnded:
    return SampleEnded(
        t=t, sample_id=sample_id, environment="e", status=status, stop_reason=StopReason.DONE
    )


def test_samples_are_counted_by_how_they_ended():
    progress = Progress(3)

    progress(ended("a", 1.0))
    progress(ended("b", 1.0, Status.FAILED))

    assert progress.counts == {Status.COMPLETED: 1, Status.FAILED: 1, Status.CANCELLED: 0}
    assert progress.num_ended == 2


def test_durations_are_those_of_admitted_samples_that_ran_to_their_end():
    progress = Progress(None)
    for sample_id, admitted_at in (("a", 1.0), ("b", 2.0), ("c", 3.0)):
        progress(SampleAdmitted(t=admitted_at, sample_id=sample_id, environment="e", seq=1))

    progress(ended("b", 9.0, Status.FAILED))
    progress(ended("a", 4.0))
    progress(ended("c", 5.0, Status.CANCELLED))
    progress(ended("never admitted", 6.0, Status.CANCELLED))

    assert progress.durations == [3.0, 7.0]


def test_only_the_latest_thousand_durations_are_remembered():
    progress = Progress(None)
    for index in range(1_010):
        progress(SampleAdmitted(t=0.0, sample_id=str(index), environment="e", seq=index))
        progress(ended(str(index), float(index)))

    assert progress.durations == [float(index) for index in range(10, 1_010)]


def test_tokens_per_second_are_those_of_the_last_half_minute():
    progress = Progress(None)
    for t, num_tokens in ((1.0, 90), (40.0, 30), (50.0, 60)):
        progress(ModelCall(t=t, sample_id="a", output_tokens=num_tokens))
    progress(ModelCall(t=50.0, sample_id="a", cancelled=True))

    assert progress.tokens_per_second(50.0) == pytest.approx(90 / 30)


def test_at_the_start_the_rate_is_over_the_time_that_passed():
    progress = Progress(None)
    progress(ModelCall(t=4.0, sample_id="a", output_tokens=40))

    assert progress.tokens_per_second(5.0) == pytest.approx(8.0)
