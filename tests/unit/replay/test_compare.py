"""Paired comparisons: what is compared, and with which interval."""

import pytest

from rolloutkit.compare import estimate, paired_change, parse_grid, student_quantile
from rolloutkit.errors import ConfigError


def test_several_keys_make_a_grid_and_first_values_come_first():
    grid = parse_grid(["actions.order=fifo,caas", "admission.max_samples=4,8"])

    assert grid[0] == {"actions.order": "fifo", "admission.max_samples": "4"}
    assert grid[-1] == {"actions.order": "caas", "admission.max_samples": "8"}
    assert len(grid) == 4


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        (["actions.order"], "expected key=value,value,..., got 'actions.order'"),
        (["actions.order=fifo,"], "expected key=value,value,..."),
        (["actions.order=fifo,fifo"], "repeats a key or a value"),
        (["batch.seed=1,2"], "batch.seed is the same for all variants"),
    ],
)
def test_axis_that_makes_no_sense_is_refused(axes, message):
    with pytest.raises(ConfigError, match=message):
        parse_grid(axes)


def test_interval_is_students():
    values = estimate([1.0, 2.0, 3.0])

    assert values.mean == 2.0
    assert values.plus_minus == pytest.approx(2.920 / 3**0.5)
    assert estimate([5.0]).plus_minus is None


def test_change_is_paired_so_that_what_batches_have_in_common_drops_out():
    change = paired_change([110.0, 1100.0], [100.0, 1000.0])

    assert change.mean == pytest.approx(10.0)
    assert change.plus_minus == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(("num_degrees", "quantile"), [(15, 1.753), (35, 1.697), (1000, 1.658)])
def test_quantile_between_two_rows_is_the_larger(num_degrees, quantile):
    assert student_quantile(num_degrees) == quantile
