"""Runs the sink contract over every sink of the core."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from rolloutkit.sinks import (
    CollectSink,
    Group,
    GroupSink,
    JsonlSink,
    StreamSink,
    TeeSink,
    read_trajectories,
)
from rolloutkit.types import SampleId
from tests.contract.sink_suite import CHECKS, SinkRig


def jsonl(directory: Path) -> SinkRig:
    path = directory / "trajectories.jsonl"
    num_taken = 0

    async def take() -> list[SampleId]:
        nonlocal num_taken
        found = [trajectory.sample_id for trajectory in read_trajectories(path)][num_taken:]
        num_taken += len(found)
        return found

    return SinkRig(JsonlSink(path, sync_lines=3), take)


def collect(directory: Path) -> SinkRig:
    sink = CollectSink()
    return SinkRig(sink, lambda: _drain(sink))


def groups(directory: Path) -> SinkRig:
    inner = CollectSink()

    async def deliver(group: Group) -> None:
        for trajectory in group.trajectories:
            await inner.put(trajectory)

    return SinkRig(GroupSink(deliver, lambda _: 8), lambda: _drain(inner))


def stream(directory: Path) -> SinkRig:
    sink = StreamSink(max_waiting=2)

    async def take() -> list[SampleId]:
        found: list[SampleId] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                async for trajectory in sink:
                    found.append(trajectory.sample_id)  # noqa: PERF401 - kept when time is up
        return found

    return SinkRig(sink, take, holds=2)


def tee(directory: Path) -> SinkRig:
    file, queue = jsonl(directory), stream(directory)

    return SinkRig(TeeSink(file.sink, queue.sink), queue.take, holds=2)


async def _drain(sink: CollectSink) -> list[SampleId]:
    found = [trajectory.sample_id for trajectory in sink.trajectories]
    sink.trajectories.clear()
    return found


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("make", [jsonl, collect, groups, stream, tee])
async def test_sink_keeps_its_contract(
    make: Callable[[Path], SinkRig], check: Callable[[SinkRig], Awaitable[None]], tmp_path: Path
) -> None:
    await check(make(tmp_path))
