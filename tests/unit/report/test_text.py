import msgspec
import pytest

from rolloutkit.record.events import RunEnded
from rolloutkit.report import RunStatistics, Summary
from rolloutkit.report.durations import format_seconds
from rolloutkit.report.text import summary_text
from tests.unit.report.recorded_runs import small_run

NOTE = "a 135M model may well score 0"


def small_summary() -> Summary:
    statistics = RunStatistics()
    for event in small_run():
        statistics(event)
    return statistics.summary()


def test_text_tells_the_figures_that_people_wait_for() -> None:
    lines = summary_text(small_summary(), note=NOTE).splitlines()

    assert lines == [
        "2 samples: 1 completed, 1 failed, 0 cancelled",
        "",
        "makespan     12.0 s",
        "lower bound  10.0 s, set by critical path (from observed service times)",
        "gap          1.20 (makespan / lower bound)",
        "turns        3",
        "tokens       prompt 310 (cached 19%, recomputed 49), output 25",
        f"score        1.000 mean; {NOTE}",
        "busy         environment 67%, engine 33%",
        "slot waits   p50 0.00 s, p90 3.00 s, p99 3.00 s, longest 3.00 s",
        "stopped by   done 1, failed 1",
        "failures     environment 1",
        "",
        "The last samples, and where their time went",
        "sample  ended at  generate     act  slot wait  admission wait",
        "b#0       12.0 s    2.00 s  4.00 s     3.00 s          1.00 s",
        "a#0       10.5 s    6.50 s  4.00 s     0.00 s          0.00 s",
    ]


@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
def test_text_keeps_to_its_width_and_loses_no_sample(width: int) -> None:
    text = summary_text(small_summary(), note=NOTE, width=width)

    assert max(map(len, text.splitlines())) <= width
    assert "a#0" in text
    assert "b#0" in text


def test_text_is_plain_unless_colours_are_asked_for() -> None:
    assert "\x1b" not in summary_text(small_summary())
    assert "\x1b" in summary_text(small_summary(), has_colours=True)


def test_brackets_in_names_are_text_and_no_markup() -> None:
    summary = small_summary()
    sample = msgspec.structs.replace(summary.tail[0], sample_id="[bold]task[/]#0")
    summary = msgspec.structs.replace(summary, tail=(sample,), ended_early="[red]deadline")

    text = summary_text(summary, note="[link]")

    assert "[bold]task[/]#0" in text
    assert "[red]deadline" in text
    assert "[link]" in text


def test_nothing_known_is_said_to_be_unknown() -> None:
    statistics = RunStatistics()
    statistics(RunEnded(t=0.0, reason="circuit open"))
    summary = statistics.summary(trace_complete=False)

    text = summary_text(msgspec.structs.replace(summary, num_samples=3))

    assert "3 did not end" in text
    assert "makespan     unknown" in text
    assert "gap          unknown" in text
    assert "ended early  circuit open" in text
    assert "incomplete" in text
    assert "last samples" not in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "unknown"),
        (0.0, "0.00 s"),
        (12.34, "12.3 s"),
        (99.96, "1 min 40 s"),
        (3599.4, "59 min 59 s"),
        (3600.0, "1 h 00 min 00 s"),
        (50000.0, "13 h 53 min 20 s"),
    ],
)
def test_durations_are_for_people(seconds: float | None, text: str) -> None:
    assert format_seconds(seconds) == text
