"""What every Sink keeps to. An integration calls these checks with a rig for its own sink.

A rig is a sink with its far end: `take` returns the ids of what arrived since the last call, in
order. `holds` is how many trajectories the sink accepts while nobody takes any, None for any
number.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest

from rolloutkit.protocols import Sink
from rolloutkit.types import SampleId
from tests.unit.sinks.trajectories import ended_sample


class SinkRig(NamedTuple):
    """A sink and the far end of it."""

    sink: Sink
    take: Callable[[], Awaitable[list[SampleId]]]
    holds: int | None = None


IDS = [SampleId("task", index) for index in range(8)]


async def check_everything_put_arrives_once_and_in_order(rig: SinkRig) -> None:
    async def produce() -> None:
        for sample_id in IDS:
            await rig.sink.put(ended_sample(*sample_id))
        await rig.sink.close()

    producer = asyncio.create_task(produce())
    taken = await _take_until_done(rig, producer)

    assert taken == IDS


async def check_put_after_close_raises(rig: SinkRig) -> None:
    await rig.sink.close()

    with pytest.raises(RuntimeError, match="put after close"):
        await rig.sink.put(ended_sample())


async def check_close_is_idempotent(rig: SinkRig) -> None:
    await rig.sink.put(ended_sample(*IDS[0]))

    await rig.sink.close()
    await rig.sink.close()

    assert await rig.take() == [IDS[0]]


async def check_empty_sink_closes(rig: SinkRig) -> None:
    await rig.sink.close()

    assert await rig.take() == []


async def check_put_waits_once_the_sink_is_full(rig: SinkRig) -> None:
    if rig.holds is None:
        await rig.sink.close()
        pytest.skip("this sink takes whatever comes")
    for sample_id in IDS[: rig.holds]:
        await rig.sink.put(ended_sample(*sample_id))
    job = asyncio.create_task(rig.sink.put(ended_sample(*IDS[rig.holds])))
    await asyncio.sleep(60.0)
    assert not job.done()

    taken = await _take_until_done(rig, job)
    await rig.sink.close()

    assert taken + await rig.take() == IDS[: rig.holds + 1]


async def check_cancelled_put_loses_nothing_that_was_accepted(rig: SinkRig) -> None:
    accepted: list[SampleId] = []

    async def put(sample_id: SampleId) -> None:
        await rig.sink.put(ended_sample(*sample_id))
        accepted.append(sample_id)

    jobs = [asyncio.create_task(put(sample_id)) for sample_id in IDS]
    await asyncio.sleep(1.0)
    jobs[-1].cancel()
    jobs[0].cancel()
    rest = asyncio.gather(*jobs, return_exceptions=True)
    taken = await _take_until_done(rig, rest)
    await rig.sink.close()
    taken += await rig.take()

    assert set(accepted) <= set(taken)
    assert len(taken) == len(set(taken))


CHECKS = (
    check_everything_put_arrives_once_and_in_order,
    check_put_after_close_raises,
    check_close_is_idempotent,
    check_empty_sink_closes,
    check_put_waits_once_the_sink_is_full,
    check_cancelled_put_loses_nothing_that_was_accepted,
)


async def _take_until_done(rig: SinkRig, producer: "asyncio.Future[Any]") -> list[SampleId]:
    taken: list[SampleId] = []
    while not producer.done():
        taken += await rig.take()
        await asyncio.sleep(1.0)
    await producer
    return taken + await rig.take()
