"""Slots are conserved and granted once, whatever arrives, ties and is cancelled."""

import asyncio
import itertools
from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rolloutkit import clock
from rolloutkit.actions import ActionScheduler, CaasOrder, FifoOrder, PoolLimits
from rolloutkit.protocols import ActionDemand
from rolloutkit.types import SampleId
from tests.property.examples import core_examples, moments, ticks
from tests.property.moments import at

JOBS = st.lists(
    st.tuples(
        ticks,  # arrives
        ticks,  # holds
        st.sampled_from(["bash", "search"]),
        st.integers(0, 3),  # finished turns
        st.none() | moments,  # cancelled
    ),
    min_size=1,
    max_size=14,
)
POOLS = st.tuples(st.none() | st.integers(1, 3), st.none() | st.sampled_from([0.5, 2.0]))


def demand_of(scheduler, index, kind="bash", num_turns=0):
    return ActionDemand(
        kind=kind,
        sample_id=SampleId("t", index),
        seq=scheduler.next_seq(),
        num_turns=num_turns,
        service_seconds=0.0,
        admission_seq=index,
    )


@pytest.mark.timeout(180)
@core_examples
@given(jobs=JOBS, pool=POOLS, order=st.sampled_from([FifoOrder, CaasOrder]))
@example(  # two waiters, both cancelled in the tick in which the slot comes free
    jobs=[(0, 1, "bash", 0, None), (0, 1, "bash", 0, (1, 0)), (0, 1, "bash", 0, (1, 1))],
    pool=(1, None),
    order=FifoOrder,
)
def test_slots_are_conserved_and_every_job_that_is_not_cancelled_runs(jobs, pool, order):
    slots, rate = pool
    running = Counter()
    starts = {"bash": [], "search": []}
    ran = set()

    async def main():
        scheduler = ActionScheduler(
            lambda kind: PoolLimits(slots=slots, starts_per_second=rate), order
        )

        async def job(index, arrives, holds, kind, num_turns):
            await asyncio.sleep(arrives)
            async with await scheduler.acquire(demand_of(scheduler, index, kind, num_turns)):
                running[kind] += 1
                assert slots is None or running[kind] <= slots
                starts[kind].append(clock.now())
                try:
                    await asyncio.sleep(holds)
                    ran.add(index)
                finally:
                    running[kind] -= 1

        tasks = []
        for index, (arrives, holds, kind, num_turns, cancelled) in enumerate(jobs):
            task = asyncio.create_task(job(index, arrives, holds, kind, num_turns))
            tasks.append(task)
            if cancelled is not None:
                at(cancelled, task.cancel)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert set(scheduler.num_running.values()) <= {0}
        assert scheduler.num_waiting == 0
        assert all(task.cancelled() or task.exception() is None for task in tasks)

    clock.run(main(), time="virtual")

    assert ran >= {index for index, job in enumerate(jobs) if job[4] is None}
    if rate is not None:
        for times in starts.values():
            gaps = [b - a for a, b in itertools.pairwise(times)]
            assert all(gap >= 1 / rate - 1e-9 for gap in gaps)


@core_examples
@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=30))
def test_caas_pops_most_turns_first_ties_by_arrival_and_never_a_discarded_one(entries):
    order = CaasOrder()
    kept = []
    for seq, (num_turns, is_discarded) in enumerate(entries):
        demand = ActionDemand(
            kind="k",
            sample_id=SampleId("t", seq),
            seq=seq,
            num_turns=num_turns,
            service_seconds=0.0,
            admission_seq=seq,
        )
        order.push(demand, 0.0)
        if is_discarded:
            order.discard(demand)
        else:
            kept.append(demand)

    popped = []
    while (demand := order.pop(0.0)) is not None:
        popped.append(demand)

    assert popped == sorted(kept, key=lambda demand: (-demand.num_turns, demand.seq))
    assert len(order) == 0


def test_a_free_slot_goes_to_the_longest_waiting_under_fifo():
    granted = []

    async def main():
        scheduler = ActionScheduler(lambda kind: PoolLimits(slots=1), FifoOrder)

        async def job(index):
            async with await scheduler.acquire(demand_of(scheduler, index, num_turns=index)):
                granted.append(index)
                await asyncio.sleep(1)

        await asyncio.gather(*(job(index) for index in range(5)))

    clock.run(main(), time="virtual")

    assert granted == [0, 1, 2, 3, 4]
