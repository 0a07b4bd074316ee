import msgspec

from rolloutkit.report.comparison import compare, compare_figures
from rolloutkit.report.page import build_page
from rolloutkit.report.statistics import RunStatistics
from rolloutkit.report.summary import Summary
from tests.unit.report.recorded_runs import small_run


def summarized() -> Summary:
    statistics = RunStatistics()
    for event in small_run():
        statistics(event)
    return statistics.summary()


def test_makespan_is_told_with_its_change_against_the_first_run() -> None:
    first = summarized()
    second = msgspec.structs.replace(first, makespan_seconds=9.0)

    figures = compare_figures([first, second])

    assert figures["makespan"] == ["12.0 s", "9.00 s (-25.0%)"]
    assert figures["completed"] == ["1", "1"]


def test_what_a_run_does_not_know_is_unknown() -> None:
    figures = compare_figures([RunStatistics().summary()])

    assert figures["makespan"] == figures["gap"] == figures["engine busy"] == ["unknown"]


def test_comparison_has_a_falling_curve_per_run() -> None:
    page = build_page(small_run(), summarized())

    comparison = compare(["a", "b"], [page, page])

    assert [line.name for line in comparison.lines] == ["a", "b"]
    left = comparison.lines[0].num_left
    assert left == sorted(left, reverse=True)
    assert (left[0], left[-1]) == (2, 0)
