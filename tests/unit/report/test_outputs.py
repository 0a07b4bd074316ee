from pathlib import Path

import msgspec
import pytest

from rolloutkit.errors import ConfigError, RunFailed
from rolloutkit.record import Event, Recorder, TraceWriter
from rolloutkit.report import RunStatistics, Summary, report_directory, write_outputs
from tests.unit.report.recorded_runs import small_run


def recorded(directory: Path, events: list[Event]) -> Summary:
    directory.mkdir()
    statistics = RunStatistics()
    with TraceWriter(directory / "trace.jsonl.gz") as trace:
        recorder = Recorder([trace, statistics])
        for event in events:
            recorder.emit(event)
    return statistics.summary(trace_complete=recorder.is_complete)


@pytest.mark.parametrize("time", ["real", "virtual"])
def test_report_of_the_trace_equals_that_of_the_live_run(time: str, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    summary = recorded(directory, small_run(time=time))
    write_outputs(directory, summary)
    live = {path.name: path.read_bytes() for path in directory.iterdir()}

    again = report_directory(directory)

    assert again == summary
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == live
    assert sorted(live) == ["report.html", "summary.json", "timeline.json", "trace.jsonl.gz"]


def test_summary_file_is_readable_and_reads_back(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    summary = recorded(directory, small_run())
    write_outputs(directory, summary)

    text = (directory / "summary.json").read_text()

    assert text.startswith('{\n  "num_samples": 2,\n')
    assert msgspec.json.decode(text, type=Summary) == summary


def test_two_runs_of_the_same_events_write_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_outputs(tmp_path / name, recorded(tmp_path / name, small_run()))

    for name in ("report.html", "summary.json", "timeline.json", "trace.jsonl.gz"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_killed_run_is_reported_as_incomplete(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    recorded(directory, small_run()[:10])

    summary = report_directory(directory)

    assert not summary.trace_complete
    assert (summary.num_samples, summary.num_completed) == (2, 1)
    assert (directory / "timeline.json").exists()


def test_run_without_a_trace_still_has_a_summary(tmp_path: Path) -> None:
    write_outputs(tmp_path, RunStatistics().summary(trace_complete=False))

    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_directory_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no trace"):
        report_directory(tmp_path)


def test_output_that_cannot_be_written_fails_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "summary.json").mkdir()

    with pytest.raises(RunFailed, match=r"cannot write .*summary\.json"):
        write_outputs(tmp_path, RunStatistics().summary())
