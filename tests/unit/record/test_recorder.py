import gzip
import logging
from pathlib import Path

import msgspec
import pytest

from rolloutkit.errors import ConfigError
from rolloutkit.record import Event, Recorder, TraceWriter, read_trace
from rolloutkit.record.events import RunEnded, RunStarted
from tests.unit.record.limits import file_size_limit
from tests.unit.report.recorded_runs import small_run, step


def write(path: Path, events: list[Event]) -> bytes:
    with TraceWriter(path) as trace:
        for event in events:
            trace(event)
    return path.read_bytes()


def test_events_reach_every_observer_in_order() -> None:
    first: list[Event] = []
    second: list[Event] = []
    recorder = Recorder([first.append, second.append])

    for event in small_run():
        recorder.emit(event)

    assert first == second == small_run()
    assert recorder.is_complete


def test_recorder_without_observers_is_not_active() -> None:
    recorder = Recorder()

    recorder.emit(RunEnded(t=0.0))

    assert not recorder.is_active
    assert recorder.is_complete


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("a bug")])
def test_observer_that_fails_is_dropped_with_one_warning(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Event] = []

    def broken(event: Event) -> None:
        raise error

    recorder = Recorder([broken, seen.append])
    with caplog.at_level(logging.WARNING):
        for event in small_run():
            recorder.emit(event)

    assert seen == small_run()
    assert not recorder.is_complete
    assert [str(error) in record.getMessage() for record in caplog.records] == [True]


def test_trace_that_cannot_be_written_is_dropped_and_keeps_a_readable_prefix(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "trace.jsonl.gz"
    recorder = Recorder([TraceWriter(path)])

    with file_size_limit(2000):
        recorder.emit(RunStarted(t=0.0))
        for index in range(1000):
            recorder.emit(step("a#0", t=index**0.5, seconds=1.0))

    assert not recorder.is_complete
    assert "File too large" in caplog.text
    assert TraceWriter.FLUSH_EVENTS < len(list(read_trace(path))) < 1000


def test_trace_reads_back_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"

    write(path, small_run(time="real"))

    assert list(read_trace(path)) == small_run(time="real")


def test_equal_events_give_equal_bytes_without_time_or_name(tmp_path: Path) -> None:
    events = [*small_run()[:-1], *(step("a#0", t=t, seconds=0.1) for t in range(500))]

    first, second = write(tmp_path / "a.gz", events), write(tmp_path / "b.gz", events)

    assert first == second
    assert first[3] == 0  # no flags: no file name
    assert first[4:8] == bytes(4)  # no time
    assert len(gzip.decompress(first).splitlines()) == len(events)


def test_virtual_run_leaves_its_cost_out_of_the_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"

    write(path, small_run(time="virtual"))

    assert list(read_trace(path))[-1] == RunEnded(t=40.0)


def test_killed_run_leaves_what_it_flushed(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    num_steps = 2 * TraceWriter.FLUSH_EVENTS + 10
    trace = TraceWriter(path)
    trace(RunStarted(t=0.0))
    for index in range(num_steps):
        trace(step("a#0", t=float(index), seconds=0.1))

    events = list(read_trace(path))
    trace.close()

    assert len(events) == 1 + 2 * TraceWriter.FLUSH_EVENTS
    assert len(list(read_trace(path))) == 1 + num_steps


def test_trace_never_overwrites_a_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    write(path, small_run())

    with pytest.raises(ConfigError, match="exists already"):
        TraceWriter(path)


def test_trace_in_a_missing_directory_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot write"):
        TraceWriter(tmp_path / "missing" / "trace.jsonl.gz")


def test_header_states_its_version_even_when_it_is_the_default() -> None:
    assert b'"schema_version":1' in msgspec.json.encode(RunStarted(t=0.0))
