"""Places and sessions are conserved through admission, parking, cancellation and resizing."""

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutkit import clock
from rolloutkit.admission import (
    AdmissionLimits,
    AdmissionQueue,
    DatasetOrder,
    MemoryBudget,
    Parking,
)
from rolloutkit.protocols import Demand
from rolloutkit.routing import Cost, Fleet, RoundRobin, StickyLeastLoaded
from rolloutkit.types import SampleId, Task
from tests.property.examples import core_examples, moments, ticks
from tests.property.moments import at

SAMPLES = st.lists(
    st.tuples(
        ticks,  # arrives
        st.sampled_from(["a", "b"]),
        st.lists(st.tuples(ticks, st.integers(0, 12)), max_size=4),  # turns: seconds, next context
        ticks,  # the session closes so long after the last turn
        st.none() | moments,  # cancelled
    ),
    min_size=1,
    max_size=12,
)


BUDGET = MemoryBudget(capacity_bytes=10, bytes_per_token=1, turn_tokens=1, fill=1.0)


def demand_of(seq, environment="a"):
    return Demand(
        sample_id=SampleId("t", seq),
        task=Task(task_id="t"),
        environment=environment,
        seq=seq,
        arrived_at=0.0,
    )


class Checked:
    """The queue, and what must hold at every moment."""

    def __init__(self, max_samples, max_sessions, policy):
        self.max_sessions = max_sessions
        self.fleet = Fleet(["left", "right"], policy, random.Random(0))
        self.queue = AdmissionQueue(
            AdmissionLimits(max_samples=max_samples, max_sessions=max_sessions),
            DatasetOrder(),
            placement=self.fleet,
            budget=BUDGET,
        )
        self.limit = max_samples

    def check(self, holding):
        assert holding <= self.queue.num_alive <= self.limit
        for environment, limit in self.max_sessions.items():
            assert 0 <= self.queue.num_sessions.get(environment, 0) <= limit


@pytest.mark.timeout(180)
@core_examples
@given(
    samples=SAMPLES,
    max_samples=st.integers(1, 3),
    sessions_of_a=st.none() | st.integers(1, 2),
    grows=st.none() | st.tuples(moments, st.integers(1, 4)),
    policy=st.sampled_from([StickyLeastLoaded, RoundRobin, Cost]),
    outage=st.none() | st.tuples(moments, moments),
)
def test_places_and_sessions_are_conserved(  # noqa: C901 - one scenario, read top to bottom
    samples, max_samples, sessions_of_a, grows, policy, outage
):
    finished = []

    async def main():  # noqa: C901 - as above
        max_sessions = {} if sessions_of_a is None else {"a": sessions_of_a}
        checked = Checked(max_samples, max_sessions, policy())
        queue = checked.queue
        holding = 0
        living = []

        async def live(permit, turns, closes):
            nonlocal holding
            holding += 1
            try:
                checked.check(holding)
                for seconds, context_tokens in turns:
                    await asyncio.sleep(seconds)
                    permit.grow(context_tokens)
                    await permit.resume()
                    checked.check(holding)
                finished.append(permit.demand.seq)
            finally:
                holding -= 1
                permit.release()
                permit.release()
                asyncio.get_running_loop().call_later(closes, permit.release_session)

        async def admit():
            while True:
                permit = await queue.next()
                _, _, turns, closes, cancelled = samples[permit.demand.seq]
                task = asyncio.create_task(live(permit, turns, closes))
                living.append(task)
                if cancelled is not None:
                    at(cancelled, task.cancel)
                await asyncio.sleep(0)  # its first step: a task cancelled before it holds nothing

        def resize(limit):
            checked.limit = max(checked.limit, limit)
            queue.max_samples = limit

        admitter = asyncio.create_task(admit())
        for seq, (arrives, environment, *_) in enumerate(samples):
            at(
                (arrives, 0),
                lambda seq=seq, environment=environment: queue.push(demand_of(seq, environment)),
            )
        if grows is not None:
            at(grows[0], lambda: resize(grows[1]))
        if outage is not None:
            at(outage[0], lambda: checked.fleet.lose(0))
            at(outage[1], lambda: checked.fleet.welcome(0))
            at((100, 0), lambda: checked.fleet.welcome(0))
        await asyncio.sleep(1_000)
        admitter.cancel()
        assert len(living) == len(samples)
        assert all(task.done() for task in living)
        assert queue.num_alive == queue.num_parked == 0
        assert set(queue.num_sessions.values()) <= {0}
        assert len(queue) == 0
        fleet = checked.fleet
        for counts in (fleet.num_residents, fleet.num_tokens, fleet.work):
            assert not counts.any()

    clock.run(main(), time="virtual")

    assert set(finished) >= {seq for seq, sample in enumerate(samples) if sample[4] is None}


def test_a_parked_sample_resumes_when_one_ends_and_is_not_replaced_meanwhile():
    async def main():
        queue = AdmissionQueue(AdmissionLimits(max_samples=2), DatasetOrder(), budget=BUDGET)
        for seq in range(3):
            queue.push(demand_of(seq))
        first, second = await queue.next(), await queue.next()
        first.grow(5)
        second.grow(2)
        second.grow(5)
        parked_before = (first.is_parked, second.is_parked, queue.num_alive)

        first.release()
        await second.resume()

        assert parked_before == (False, True, 2)
        assert not second.is_parked
        assert (await queue.next()).demand.seq == 2

    clock.run(main(), time="virtual")


def test_a_lowered_limit_parks_the_latest_and_resumes_the_first_of_them():
    async def main():
        queue = AdmissionQueue(AdmissionLimits(max_samples=3), DatasetOrder())
        for seq in range(4):
            queue.push(demand_of(seq))
        permits = [await queue.next() for _ in range(3)]
        queue.max_samples = 1
        for permit in permits:
            permit.grow(1)
        assert [permit.is_parked for permit in permits] == [False, True, True]

        permits[0].release()
        await permits[1].resume()
        assert [permit.is_parked for permit in permits] == [False, False, True]

        queue.max_samples = 3
        await permits[2].resume()
        assert queue.num_parked == 0
        assert (await queue.next()).demand.seq == 3

    clock.run(main(), time="virtual")


@core_examples
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["grow", "release", "resize"]), st.integers(0, 7)), max_size=60
    )
)
def test_whoever_is_parked_by_the_limit_is_behind_as_many_as_the_limit_says(steps):
    async def main():
        queue = AdmissionQueue(AdmissionLimits(max_samples=8), DatasetOrder())
        for seq in range(8):
            queue.push(demand_of(seq))
        permits = [await queue.next() for _ in range(8)]
        living = dict(enumerate(permits))
        for what, number in steps:
            if what == "resize":
                queue.max_samples = number
            elif number in living:
                if what == "grow":
                    living[number].grow(1)
                else:
                    living.pop(number).release()
            parked = {number for number, permit in living.items() if permit.is_parked}
            active = set(living) - parked
            assert queue.num_parked == len(parked)
            assert queue.num_alive == len(living)
            assert not parked or len(active) >= queue.max_samples

    clock.run(main(), time="virtual")


@core_examples
@given(reports=st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(0, 12)), max_size=60))
def test_parking_never_parks_everybody_and_forgets_nobody(reports):
    parking = Parking(BUDGET)
    active, parked = {}, {}

    for seq, context_tokens in reports:
        if context_tokens is None:
            active.pop(seq, None)
            parked.pop(seq, None)
            parking.take(seq)
            for resumed in parking.resume():
                active[resumed] = parked.pop(resumed)
        elif seq not in parked:
            is_first = seq not in active
            active[seq] = BUDGET.need(context_tokens)
            if parking.grow(seq, context_tokens):
                assert not is_first
                assert sum(active.values()) > BUDGET.usable_bytes
                assert min(active) < seq
                parked[seq] = active.pop(seq)
        assert active or not parked
        smallest = min(parked.values(), default=None)
        if context_tokens is None and smallest is not None:
            assert sum(active.values()) + smallest > BUDGET.usable_bytes


def test_an_environment_without_room_does_not_block_another():
    async def main():
        queue = AdmissionQueue(
            AdmissionLimits(max_samples=4, max_sessions={"a": 1}), DatasetOrder()
        )
        for seq, environment in enumerate(["a", "a", "b"]):
            queue.push(demand_of(seq, environment))

        first, second = await queue.next(), await queue.next()

        assert [first.demand.seq, second.demand.seq] == [0, 2]
        first.release_session()
        assert (await queue.next()).demand.seq == 1

    clock.run(main(), time="virtual")
