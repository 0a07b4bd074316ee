"""Places in several pools: conserved, granted together, nobody passed over, no deadlock."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutkit import clock
from rolloutkit.actions import ActionScheduler, CaasOrder, FifoOrder, PoolLimits
from rolloutkit.errors import DeadlockError, ProgramError
from rolloutkit.protocols import ActionDemand
from rolloutkit.types import SampleId
from tests.property.examples import core_examples, moments, ticks
from tests.property.moments import at

POOLS = {"cpu": 4, "gpu": 2}
SLOTS = {"bash": 3, "search": None}

NEEDS = st.fixed_dictionaries({}, optional={"cpu": st.integers(1, 4), "gpu": st.integers(1, 2)})
JOBS = st.lists(
    st.tuples(
        ticks,  # arrives
        ticks,  # holds
        st.sampled_from(["bash", "search"]),
        NEEDS,
        st.integers(0, 3),  # finished turns
        st.none() | moments,  # cancelled
    ),
    min_size=1,
    max_size=12,
)


def demand_of(scheduler, index, kind, num_turns=0):
    return ActionDemand(
        kind=kind,
        sample_id=SampleId("t", index),
        seq=scheduler.next_seq(),
        num_turns=num_turns,
        service_seconds=0.0,
        admission_seq=index,
    )


def scheduler_of(order=FifoOrder, rate=None, **options):
    return ActionScheduler(
        lambda kind: PoolLimits(slots=SLOTS[kind], starts_per_second=rate),
        order,
        pools=POOLS,
        **options,
    )


@pytest.mark.timeout(180)
@core_examples
@given(
    jobs=JOBS,
    rate=st.none() | st.sampled_from([0.5, 2.0]),
    order=st.sampled_from([FifoOrder, CaasOrder]),
    max_overtakes=st.integers(1, 4),
)
def test_places_are_conserved_and_every_job_that_is_not_cancelled_runs(
    jobs, rate, order, max_overtakes
):
    used, ran = Counter(), set()

    async def main():
        scheduler = scheduler_of(
            order, rate, rank=lambda demand: demand.num_turns, max_overtakes=max_overtakes
        )

        async def job(index, arrives, holds, kind, needs, num_turns):
            await asyncio.sleep(arrives)
            demand = demand_of(scheduler, index, kind, num_turns)
            async with await scheduler.acquire(demand, needs):
                taken = Counter({kind: 1, **needs})
                used.update(taken)
                assert all(used[name] <= places for name, places in POOLS.items())
                assert used["bash"] <= SLOTS["bash"]
                taken_by_all = scheduler.num_taken  # those granted who have yet to run too
                assert all(used[name] <= taken_by_all[name] for name in POOLS)
                assert all(taken_by_all[name] <= places for name, places in POOLS.items())
                try:
                    await asyncio.sleep(holds)
                    ran.add(index)
                finally:
                    used.subtract(taken)

        tasks = []
        for index, (*described, cancelled) in enumerate(jobs):
            task = asyncio.create_task(job(index, *described))
            tasks.append(task)
            if cancelled is not None:
                at(cancelled, task.cancel)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert [
            task.exception() for task in tasks if not task.cancelled() and task.exception()
        ] == []
        assert scheduler.num_waiting == 0
        assert set(scheduler.num_taken.values()) == {0}
        assert set(scheduler.num_running.values()) <= {0}

    clock.run(main(), time="virtual")

    assert ran >= {index for index, job in enumerate(jobs) if job[5] is None}


@pytest.mark.parametrize("max_overtakes", [1, 3, 8])
def test_a_wide_action_is_passed_over_by_so_many_narrow_ones_and_no_more(max_overtakes):
    order = []

    async def main():
        scheduler = scheduler_of(max_overtakes=max_overtakes)

        async def job(index, arrives, needs):
            await asyncio.sleep(arrives)
            async with await scheduler.acquire(demand_of(scheduler, index, "search"), needs):
                order.append(index)
                await asyncio.sleep(1.0)

        narrow = [job(index, index * 0.25, {"cpu": 1}) for index in range(40)]
        await asyncio.gather(*narrow, job(-1, 1.1, {"cpu": 4}))

    clock.run(main(), time="virtual")

    before = order.index(-1)
    num_arrived = 5  # by 1.1 s
    assert before <= num_arrived + max_overtakes + 1


def test_room_for_the_narrow_is_not_left_idle_behind_the_wide():
    started = {}

    async def main():
        scheduler = scheduler_of()

        async def job(name, arrives, needs, holds):
            await asyncio.sleep(arrives)
            async with await scheduler.acquire(demand_of(scheduler, 0, "search"), needs):
                started[name] = clock.now()
                await asyncio.sleep(holds)

        await asyncio.gather(
            job("first", 0.0, {"cpu": 3}, 10.0),
            job("wide", 1.0, {"cpu": 4}, 1.0),
            job("narrow", 2.0, {"cpu": 1}, 1.0),
        )

    clock.run(main(), time="virtual")

    assert started == {"first": 0.0, "narrow": 2.0, "wide": 10.0}


@core_examples
@given(
    jobs=st.lists(
        st.tuples(
            ticks,
            ticks,
            st.lists(  # an action, inside it another, inside that another
                st.tuples(st.sampled_from(["bash", "search"]), NEEDS), min_size=1, max_size=3
            ),
            st.none() | moments,
        ),
        min_size=1,
        max_size=8,
    )
)
def test_actions_inside_actions_end_or_are_refused_and_never_wait_for_each_other(jobs):
    refused = []

    async def main():
        scheduler = scheduler_of()

        async def nest(index, holds, chain, inside):
            if not chain:
                await asyncio.sleep(holds)
                return
            (kind, needs), *rest = chain
            demand = demand_of(scheduler, index, kind)
            async with await scheduler.acquire(demand, needs, inside) as slot:
                await asyncio.sleep(holds)
                await nest(index, holds, rest, slot)

        async def job(index, arrives, holds, chain):
            await asyncio.sleep(arrives)
            try:
                await nest(index, holds, chain, None)
            except ProgramError as error:
                refused.append(str(error))

        tasks = []
        for index, (*described, cancelled) in enumerate(jobs):
            task = asyncio.create_task(job(index, *described))
            tasks.append(task)
            if cancelled is not None:
                at(cancelled, task.cancel)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert [
            task.exception() for task in tasks if not task.cancelled() and task.exception()
        ] == []
        assert scheduler.num_waiting == 0
        assert set(scheduler.num_taken.values()) == {0}

    clock.run(main(), time="virtual")  # a deadlock would raise DeadlockError

    assert all("inside one that holds" in text for text in refused)


def test_two_nestings_the_other_way_round_are_refused_before_they_meet():
    async def main():
        scheduler = scheduler_of()
        outer = await scheduler.acquire(demand_of(scheduler, 0, "search"), {"cpu": 1})
        inner = await scheduler.acquire(demand_of(scheduler, 0, "search"), {"gpu": 1}, outer)
        inner.release()
        outer.release()

        other = await scheduler.acquire(demand_of(scheduler, 1, "search"), {"gpu": 1})
        with pytest.raises(ProgramError, match="cpu inside one that holds gpu"):
            await scheduler.acquire(demand_of(scheduler, 1, "search"), {"cpu": 1}, other)

    clock.run(main(), time="virtual")


def test_what_the_outer_action_holds_is_used_and_not_taken_again():
    async def main():
        scheduler = scheduler_of()
        outer = await scheduler.acquire(demand_of(scheduler, 0, "bash"), {"cpu": 4})
        inner = await scheduler.acquire(demand_of(scheduler, 0, "bash"), {"cpu": 2}, outer)

        assert (inner.num_slots, inner.needs) == (0, {})
        assert scheduler.num_taken["cpu"] == 4
        assert scheduler.num_running["bash"] == 1

    clock.run(main(), time="virtual")


@pytest.mark.parametrize(
    ("needs", "message"),
    [
        ({"cpu": 5}, "needs 5 of cpu, which has 4"),
        ({"cpu": 0}, "needs 0 of cpu"),
        ({"disk": 1}, "no pool is called so"),
    ],
)
def test_needs_that_can_never_be_met_are_refused(needs, message):
    async def main():
        scheduler = scheduler_of()
        with pytest.raises(ProgramError, match=message):
            await scheduler.acquire(demand_of(scheduler, 0, "bash"), needs)

    clock.run(main(), time="virtual")


def test_the_rule_is_needed_without_it_two_nestings_deadlock():
    async def main():
        scheduler = ActionScheduler(lambda kind: PoolLimits(slots=1), FifoOrder)

        async def job(index, outer, inner):
            async with await scheduler.acquire(demand_of(scheduler, index, outer)):
                await asyncio.sleep(1.0)
                async with await scheduler.acquire(demand_of(scheduler, index, inner)):
                    pass

        await asyncio.gather(job(0, "a", "b"), job(1, "b", "a"))

    with pytest.raises(DeadlockError):
        clock.run(main(), time="virtual")
