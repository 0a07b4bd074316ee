import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutkit.live.eta import seconds_left

SECONDS = st.floats(0, 1e4)


def test_little_is_said_before_three_samples_ended():
    assert seconds_left([1.0, 2.0], [0.5], num_queued=3) is None
    assert seconds_left([1.0, 2.0, 3.0], [], num_queued=0) is None


def test_a_sample_goes_on_for_the_mean_of_what_the_longer_ones_had_left():
    assert seconds_left([10.0, 20.0, 30.0], [15.0], num_queued=0) == pytest.approx(10.0)


def test_a_sample_that_outlived_all_others_goes_on_for_half_its_age():
    assert seconds_left([10.0, 20.0, 30.0], [40.0], num_queued=0) == pytest.approx(20.0)


def test_the_tail_counts_more_than_the_mean():
    many_nearly_done_and_one_late = [*[95.0] * 9, 0.0]

    assert seconds_left([10.0, 10.0, 100.0], many_nearly_done_and_one_late, num_queued=0) == 40.0


def test_a_queue_takes_its_work_at_the_present_concurrency():
    durations = [10.0] * 9 + [40.0]

    assert seconds_left(durations, [0.0] * 5, num_queued=50) == pytest.approx(55 * 13.0 / 5)


def test_a_long_sample_may_come_last_in_the_queue():
    assert seconds_left([1.0, 1.0, 50.0, 50.0], [0.0], num_queued=1) == pytest.approx(25.5 + 50.0)


@given(st.lists(SECONDS, min_size=3), st.lists(SECONDS), st.integers(0, 100))
def test_the_estimate_is_never_negative(durations, ages, num_queued):
    estimate = seconds_left(sorted(durations), ages, num_queued)

    assert estimate is None or estimate >= 0.0
