import asyncio

import pytest

from rolloutkit.sinks import StreamSink
from tests.unit.sinks.trajectories import ended_sample


async def test_iteration_ends_when_the_sink_is_closed_and_empty() -> None:
    sink = StreamSink(max_waiting=2)
    await sink.put(ended_sample("a"))
    await sink.put(ended_sample("b"))
    await sink.close()

    assert [trajectory.sample_id.task_id async for trajectory in sink] == ["a", "b"]
    assert [trajectory async for trajectory in sink] == []


async def test_waiting_consumer_is_woken_by_the_close() -> None:
    sink = StreamSink()

    async def consume() -> list[str]:
        return [trajectory.sample_id.task_id async for trajectory in sink]

    job = asyncio.create_task(consume())
    await asyncio.sleep(1.0)
    await sink.put(ended_sample("a"))
    await asyncio.sleep(1.0)
    await sink.close()

    assert await job == ["a"]


async def test_consumer_that_left_holds_nobody_up() -> None:
    sink = StreamSink(max_waiting=1)
    jobs = [asyncio.create_task(sink.put(ended_sample("t", index))) for index in range(5)]
    await asyncio.sleep(0)

    sink.abandon()
    await asyncio.gather(*jobs)
    await sink.put(ended_sample("late"))
    await sink.close()

    assert [trajectory async for trajectory in sink] == []


async def test_put_waits_for_the_consumer() -> None:
    sink = StreamSink(max_waiting=1)
    await sink.put(ended_sample("a"))

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3600.0):
            await sink.put(ended_sample("b"))
