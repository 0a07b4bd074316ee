import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutkit.clock import run
from rolloutkit.sinks import Group, GroupSink
from rolloutkit.types import SampleId
from tests.unit.sinks.trajectories import ended_sample


async def test_group_is_delivered_by_index_when_its_last_sample_ends() -> None:
    groups: list[Group] = []

    async def deliver(group: Group) -> None:
        groups.append(group)

    sink = GroupSink(deliver, {"a": 2, "b": 1}.__getitem__)
    await sink.put(ended_sample("a", 1))
    await sink.put(ended_sample("b", 0))
    assert [group.task_id for group in groups] == ["b"]
    await sink.put(ended_sample("a", 0))

    assert [it.sample_id.sample_index for it in groups[1].trajectories] == [0, 1]
    assert groups[1].is_complete


async def test_groups_that_are_left_at_close_are_delivered_as_incomplete() -> None:
    groups: list[Group] = []

    async def deliver(group: Group) -> None:
        groups.append(group)

    sink = GroupSink(deliver, lambda _: 3)
    await sink.put(ended_sample("a", 2))
    await sink.put(ended_sample("b", 0))
    await sink.close()
    await sink.close()

    assert [(group.task_id, group.is_complete) for group in groups] == [("a", False), ("b", False)]


async def test_group_whose_delivery_fails_is_kept_for_the_close() -> None:
    groups: list[Group] = []

    async def deliver(group: Group) -> None:
        if not groups:
            groups.append(group)
            raise ValueError("the trainer is not ready")
        groups.append(group)

    sink = GroupSink(deliver, lambda _: 1)
    with pytest.raises(ValueError, match="not ready"):
        await sink.put(ended_sample("a", 0))
    await sink.close()

    assert [group.is_complete for group in groups] == [True, True]


DELAYS = st.integers(0, 8).map(lambda tick: tick / 4)  # ties on purpose
PUTS = st.lists(st.tuples(st.integers(0, 2), DELAYS, st.none() | DELAYS), max_size=12)


@given(PUTS, DELAYS)
def test_every_sample_is_delivered_exactly_once_whatever_is_cancelled(
    puts: list[tuple[int, float, float | None]], delivery_seconds: float
) -> None:
    delivered: list[SampleId] = []
    cancelled_before_put: set[SampleId] = set()

    async def deliver(group: Group) -> None:
        await asyncio.sleep(delivery_seconds)
        delivered.extend(trajectory.sample_id for trajectory in group.trajectories)

    async def main() -> None:
        sink = GroupSink(deliver, lambda _: 3)

        async def put_one(sample_id: SampleId, delay: float) -> None:
            cancelled_before_put.add(sample_id)
            await asyncio.sleep(delay)
            cancelled_before_put.remove(sample_id)
            await sink.put(ended_sample(*sample_id))

        jobs: list[asyncio.Task[None]] = []
        for index, (task, delay, cancel_at) in enumerate(puts):
            job = asyncio.create_task(put_one(SampleId(f"t{task}", index), delay))
            jobs.append(job)
            if cancel_at is not None:
                asyncio.get_running_loop().call_later(cancel_at, job.cancel)
        await asyncio.gather(*jobs, return_exceptions=True)
        await sink.close()

    run(main(), time="virtual")

    expected = {SampleId(f"t{task}", index) for index, (task, _, _) in enumerate(puts)}
    assert sorted(delivered) == sorted(expected - cancelled_before_put)
