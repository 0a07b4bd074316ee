import asyncio
import random

import pytest

from rolloutkit.engines.slots import SlotTable
from rolloutkit.types import SampleId


def sample(index: int) -> SampleId:
    return SampleId("t", index)


async def use(slots: SlotTable, index: int) -> int:
    async with slots.hold(sample(index)) as slot:
        return slot


async def test_a_sample_comes_back_to_its_slot() -> None:
    slots = SlotTable(3)
    first = [await use(slots, index) for index in (0, 1, 2)]

    assert [await use(slots, index) for index in (2, 0, 1)] == [first[2], first[0], first[1]]


async def test_a_stranger_gets_the_slot_that_was_unused_longest() -> None:
    slots = SlotTable(2)
    slot_of_1 = [await use(slots, index) for index in (0, 1, 0)][1]

    assert await use(slots, 9) == slot_of_1


async def test_a_stranger_gets_a_forgotten_slot_first() -> None:
    slots = SlotTable(2)
    slot_of_1 = [await use(slots, index) for index in (0, 1)][1]
    slots.forget(sample(1))
    slots.forget(sample(1))

    assert await use(slots, 9) == slot_of_1


async def test_a_slot_forgotten_in_use_becomes_free_for_strangers() -> None:
    slots = SlotTable(2)
    await use(slots, 0)
    async with slots.hold(sample(1)) as slot:
        slots.forget(sample(1))

    assert await use(slots, 9) == slot


async def test_waiters_are_served_in_order() -> None:
    slots = SlotTable(1)
    served: list[int] = []

    async def work(index: int) -> None:
        async with slots.hold(sample(index)):
            served.append(index)
            await asyncio.sleep(1.0)

    await asyncio.gather(*map(work, range(5)))

    assert served == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("seed", range(20))
async def test_cancelling_at_any_moment_loses_no_slot(seed: int) -> None:
    rng = random.Random(seed)
    slots = SlotTable(2)
    held: set[int] = set()

    async def work(index: int) -> None:
        await asyncio.sleep(rng.choice((0.0, 1.0, 2.0)))
        async with slots.hold(sample(index % 5)) as slot:
            assert slot not in held
            held.add(slot)
            try:
                await asyncio.sleep(rng.choice((0.0, 1.0)))
            finally:
                held.remove(slot)

    jobs = [asyncio.create_task(work(index)) for index in range(12)]
    for job in rng.sample(jobs, 6):
        await asyncio.sleep(rng.choice((0.0, 0.0, 1.0)))
        job.cancel()
    await asyncio.gather(*jobs, return_exceptions=True)

    assert slots.num_idle == 2
