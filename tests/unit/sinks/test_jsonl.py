import asyncio
import logging
import os
from pathlib import Path

import pytest

from rolloutkit.errors import ConfigError, RunFailed
from rolloutkit.sinks import JsonlSink, read_trajectories
from tests.unit.record.limits import file_size_limit
from tests.unit.sinks.trajectories import ended_sample


async def write(path: Path, *task_ids: str, append: bool = False) -> None:
    sink = JsonlSink(path, append=append)
    for task_id in task_ids:
        await sink.put(ended_sample(task_id))
    await sink.close()


def task_ids(path: Path) -> list[str]:
    return [trajectory.sample_id.task_id for trajectory in read_trajectories(path)]


async def test_line_is_in_the_file_as_soon_as_put_returns(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.jsonl"
    sink = JsonlSink(path)

    await sink.put(ended_sample("a"))

    assert task_ids(path) == ["a"]
    await sink.close()


async def test_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.jsonl"
    await write(path, "a")

    with pytest.raises(ConfigError, match="exists already"):
        JsonlSink(path)

    assert task_ids(path) == ["a"]


async def test_appending_continues_a_file_or_starts_one(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.jsonl"

    await write(path, "a", append=True)
    await write(path, "b", append=True)

    assert task_ids(path) == ["a", "b"]


@pytest.mark.parametrize("num_bytes", [1, 100])
async def test_appending_drops_a_line_that_a_killed_run_cut_off(
    num_bytes: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "trajectories.jsonl"
    await write(path, "a", "b" * 200_000)  # longer than what is read at once
    os.truncate(path, path.stat().st_size - num_bytes)

    await write(path, "c", append=True)

    assert task_ids(path) == ["a", "c"]
    assert "cut off" in caplog.text


async def test_appending_to_nothing_but_a_cut_line_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.jsonl"
    path.write_bytes(b'{"sample_id":"a')

    await write(path, "b", append=True)

    assert task_ids(path) == ["b"]


async def test_reading_leaves_a_cut_last_line_out_and_reports_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "trajectories.jsonl"
    await write(path, "a", "b")
    os.truncate(path, path.stat().st_size - 5)

    with caplog.at_level(logging.WARNING):
        assert task_ids(path) == ["a"]

    assert "line 2 is cut off" in caplog.text


async def test_reading_refuses_a_broken_line_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.jsonl"
    await write(path, "a", "b")
    path.write_bytes(path.read_bytes().replace(b'"b#0"', b'"b#0'))

    with pytest.raises(ConfigError, match=r"jsonl line 2 is not a trajectory"):
        task_ids(path)


def test_reading_a_missing_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        task_ids(tmp_path / "none.jsonl")


def test_writing_into_a_missing_directory_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot write"):
        JsonlSink(tmp_path / "missing" / "trajectories.jsonl")


async def test_full_disk_fails_the_run_and_keeps_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.jsonl"
    sink = JsonlSink(path)
    await sink.put(ended_sample("a"))

    with file_size_limit(path.stat().st_size + 100), pytest.raises(RunFailed) as caught:
        await sink.put(ended_sample("b"))
    await sink.put(ended_sample("c"))
    await sink.close()

    assert str(path) in str(caught.value)
    assert "make room" in str(caught.value)
    assert task_ids(path) == ["a", "c"]


async def test_disk_that_cannot_be_synced_fails_the_run() -> None:
    sink = JsonlSink(Path("/dev/null"), append=True, sync_lines=2)  # takes lines, refuses fsync

    await sink.put(ended_sample("a"))
    with pytest.raises(RunFailed, match="cannot write /dev/null"):
        await sink.put(ended_sample("b"))
    with pytest.raises(RunFailed, match="cannot write /dev/null"):
        await sink.close()


@pytest.mark.real_time
async def test_cancelled_wait_for_the_disk_keeps_the_line(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.jsonl"
    sink = JsonlSink(path, sync_lines=1)
    job = asyncio.create_task(sink.put(ended_sample("a")))
    await asyncio.sleep(0)

    job.cancel()
    await asyncio.wait([job])
    await sink.put(ended_sample("b"))
    await sink.close()

    assert task_ids(path) == ["a", "b"]


@pytest.mark.real_time
async def test_lines_of_many_concurrent_puts_stay_whole(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.jsonl"
    sink = JsonlSink(path, sync_lines=3, sync_bytes=2000)

    await asyncio.gather(*(sink.put(ended_sample("t", index)) for index in range(50)))
    await sink.close()

    indices = [trajectory.sample_id.sample_index for trajectory in read_trajectories(path)]
    assert indices == list(range(50))
