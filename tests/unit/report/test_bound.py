import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rolloutkit.report import RunStatistics, Summary
from rolloutkit.report.bound import Concurrency, CriticalPath, PoolLoad, lower_bound
from tests.unit.report.recorded_runs import TurnPlan, simulated_run

GRID = st.integers(0, 12).map(lambda tick: tick / 4)  # ties on purpose
SECONDS = GRID | st.floats(0.0, 10.0)
SEQUENTIAL = st.builds(TurnPlan, SECONDS, st.lists(SECONDS, max_size=1))
PARALLEL = st.builds(TurnPlan, SECONDS, st.lists(SECONDS, max_size=3))
PLACES = st.integers(1, 3)


def summarize(
    samples: list[list[TurnPlan]],
    slots: int,
    parallelism: int,
    max_samples: int,
    *,
    tells_queueing: bool = True,
) -> Summary:
    statistics = RunStatistics()
    for event in simulated_run(
        samples,
        slots=slots,
        parallelism=parallelism,
        max_samples=max_samples,
        tells_queueing=tells_queueing,
    ):
        statistics(event)
    return statistics.summary()


@given(
    st.lists(st.lists(PARALLEL, max_size=4), min_size=1, max_size=6),
    PLACES,
    PLACES,
    PLACES,
    st.booleans(),
)
def test_no_schedule_beats_the_bound(
    samples: list[list[TurnPlan]],
    slots: int,
    parallelism: int,
    max_samples: int,
    tells_queueing: bool,
) -> None:
    summary = summarize(samples, slots, parallelism, max_samples, tells_queueing=tells_queueing)

    assert summary.makespan_seconds is not None
    assert summary.lower_bound_seconds is not None
    assert summary.lower_bound_seconds <= summary.makespan_seconds
    for utilization in (summary.environment_utilization, summary.engine_utilization):
        assert utilization is None or utilization <= 1.0 + 1e-6


@given(st.lists(st.lists(SEQUENTIAL, max_size=5), min_size=1, max_size=6), PLACES, PLACES, PLACES)
@example([[TurnPlan(0.1, [0.2]), TurnPlan(0.3, [0.4])], [TurnPlan(0.7, [0.1])]], 1, 1, 2)
def test_bound_of_a_queueing_run_is_what_the_work_says(
    samples: list[list[TurnPlan]], slots: int, parallelism: int, max_samples: int
) -> None:
    generate = [turn.generate_seconds for turns in samples for turn in turns]
    act = [seconds for turns in samples for turn in turns for seconds in turn.action_seconds]
    longest = max(
        sum(turn.generate_seconds + sum(turn.action_seconds) for turn in turns) for turns in samples
    )

    summary = summarize(samples, slots, parallelism, max_samples)

    expected = max(longest, sum(generate) / parallelism, sum(act) / slots)
    assert summary.lower_bound_seconds == pytest.approx(expected, abs=1e-5)


@given(st.lists(st.lists(PARALLEL, max_size=4), min_size=1, max_size=4))
def test_parallel_actions_do_not_lengthen_the_critical_path(samples: list[list[TurnPlan]]) -> None:
    longest = max(
        sum(turn.generate_seconds + max(turn.action_seconds, default=0.0) for turn in turns)
        for turns in samples
    )

    summary = summarize(samples, 99, 99, 99)

    assert summary.makespan_seconds == pytest.approx(longest)
    assert summary.lower_bound_seconds == pytest.approx(longest, abs=1e-5)
    assert summary.binding_resource == "critical path"


def test_operations_side_by_side_share_their_head_however_many_they_are() -> None:
    path = CriticalPath()
    for index in range(100):  # a long sequential past fills the memory
        path.add(float(index), float(index + 1), 1.0)

    for index in range(50):  # asked for together, served one after the other
        path.add(100.0, 101.0 + index, 1.0)

    assert path.seconds == 101.0


def test_operation_older_than_the_memory_counts_from_a_smaller_head() -> None:
    path = CriticalPath()
    for index in range(100):
        path.add(float(index), float(index + 1), 1.0)

    path.add(3.0, 100.5, 97.5)

    assert path.seconds == 100.0


def test_the_resource_that_needs_longest_binds() -> None:
    pools = [PoolLoad("environment x", 30.0, 4), PoolLoad("engine", 18.0, 2)]

    assert lower_bound(7.0, pools) == (9.0, "engine")
    assert lower_bound(9.0, pools) == (9.0, "critical path")


def test_peak_counts_what_overlaps_and_not_what_follows() -> None:
    calls = Concurrency()
    for start, end in [(0.0, 1.0), (0.5, 0.7), (0.7 - 0.4 - 1e-17, 0.3), (1.0, 2.0), (1.0, 2.0)]:
        calls.add(start, end)

    assert calls.peak() == 2
    assert Concurrency().peak() == 0
