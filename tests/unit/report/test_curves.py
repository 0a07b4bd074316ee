import math
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutkit.report.curves import NUM_BINS, count_spread, count_whole, mean_open
from rolloutkit.report.spans import Intervals


def opened(*bounds: tuple[float, float]) -> Intervals:
    intervals = Intervals()
    for start, end in bounds:
        intervals.add(start, end)
    return intervals


def test_mean_of_open_intervals_is_weighted_by_time() -> None:
    end = float(NUM_BINS)  # a second each

    means = mean_open(opened((0.0, 2.5), (1.0, 2.0)), end)

    assert means[:4] == [1.0, 2.0, 0.5, 0.0]


def test_what_lies_beyond_the_end_is_not_counted() -> None:
    means = mean_open(opened((-5.0, NUM_BINS + 100.0)), float(NUM_BINS))

    assert means == [1.0] * NUM_BINS


def test_a_run_of_no_length_has_flat_curves() -> None:
    assert mean_open(opened((0.0, 0.0)), 0.0) == [0.0] * NUM_BINS


@given(st.lists(st.integers(0, 100_000), max_size=50))
def test_every_whole_number_falls_into_one_bar(values: list[int]) -> None:
    histogram = count_whole(array("q", values))

    assert sum(histogram.counts) == len(values)
    assert len(histogram.edges) == len(histogram.counts) + 1 <= 32


@given(st.lists(st.floats(0, 1e7), max_size=50))
def test_every_duration_falls_into_one_bar(values: list[float]) -> None:
    histogram = count_spread(values)

    assert sum(histogram.counts) == len(values)
    assert histogram.edges == sorted(set(histogram.edges))


@pytest.mark.parametrize("value", [1.0, 1.5, 10.0, 1000.0])
def test_value_on_an_edge_belongs_to_the_bar_that_it_starts(value: float) -> None:
    histogram = count_spread([value, value])

    bar = histogram.counts.index(2)
    assert math.isclose(histogram.edges[bar], value)
