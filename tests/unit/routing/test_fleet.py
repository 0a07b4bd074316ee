"""The ledger and the policies: where samples live, and when they move."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutkit.protocols import Demand
from rolloutkit.routing import (
    Cost,
    Fleet,
    RoundRobin,
    Sticky,
    StickyLeastLoaded,
    StickyLeastWork,
)
from rolloutkit.types import SampleId, Task


def demand_of(index, task="t"):
    return Demand(
        sample_id=SampleId(task, index),
        task=Task(task_id=task),
        environment="e",
        seq=index,
        arrived_at=0.0,
    )


def fleet_of(policy, count=3, seed=0):
    return Fleet([f"w{index}" for index in range(count)], policy, random.Random(seed))


def answer(fleet, index, worker, *, seconds=1.0, prompt=1_000, cached=900, output=100):
    fleet.answered(
        SampleId("t", index),
        worker,
        seconds,
        prompt=prompt,
        cached=cached,
        output=output,
        crowd=float(fleet.num_tokens[worker]),
    )


def test_round_robin_goes_on_each_turn_and_sticky_stays():
    for policy, expected in ((RoundRobin(), ["w1", "w2", "w0"]), (Sticky(), ["w0"] * 3)):
        fleet = fleet_of(policy)
        assert fleet.place(demand_of(0)) == "w0"
        assert [fleet.next_turn(demand_of(0), 10) for _ in range(3)] == expected


def test_the_least_loaded_counts_residents_that_wait_for_nothing_too():
    fleet = fleet_of(StickyLeastLoaded(), count=2)
    homes = [fleet.place(demand_of(index)) for index in range(4)]
    for index in range(4):
        if homes[index] == "w0":
            fleet.leave(demand_of(index))

    assert {fleet.place(demand_of(index)) for index in (4, 5)} == {"w0"}


def test_equals_are_chosen_by_seed_and_the_first_without_one():
    def homes(rng):
        fleet = Fleet([f"w{index}" for index in range(8)], StickyLeastLoaded(), rng)
        return [fleet.place(demand_of(index)) for index in range(8)]

    assert homes(random.Random(1)) == homes(random.Random(1)) != homes(random.Random(2))
    assert homes(None) == [f"w{index}" for index in range(8)]


class Known:
    """Every sample has as much work left as its index says."""

    def expected_total(self, task_id):
        return 1.0

    def work_left(self, sample_id):
        return float(sample_id.sample_index)


def test_least_work_places_by_what_is_expected_to_be_left():
    fleet = fleet_of(StickyLeastWork(), count=2)
    fleet.forecast = Known()
    fleet.place(demand_of(50))
    fleet.next_turn(demand_of(50), 10)
    heavy = fleet.home(demand_of(50))

    homes = [fleet.place(demand_of(index)) for index in range(10)]

    assert heavy not in homes


def paced(fleet, slow=(), calls=400):
    """Let workers show their pace: 1 ms a prompt token, 10 ms one of output, `slow` ones twice."""
    rng = random.Random(3)
    for index in range(calls):
        worker = index % len(fleet.names)
        uncached, output = rng.randrange(10, 2_000), rng.randrange(10, 500)
        seconds = (1e-3 * uncached + 1e-2 * output) * (2.0 if worker in slow else 1.0)
        fleet.pace.observe(worker, seconds, uncached=uncached, output=output, crowd=0.0)


def test_the_pace_tells_a_slow_worker_from_the_others():
    fleet = fleet_of(Cost())
    paced(fleet, slow=[2])

    slow, *others = sorted(fleet.pace.factors.tolist(), reverse=True)
    assert slow / others[0] == pytest.approx(2.0, rel=0.1)
    assert others[0] == pytest.approx(others[1], rel=0.05)
    assert fleet.pace.prefill / fleet.pace.step == pytest.approx(0.1, rel=0.1)


def settled(fleet, index, worker, *, context, output, num_turns=1):
    """A sample that lives on the worker and has spoken."""
    fleet.place(demand_of(index))
    resident = fleet._residents[SampleId("t", index)]
    fleet._move(resident, worker)
    for _ in range(num_turns):
        answer(fleet, index, worker, prompt=context - output, cached=0, output=output)
    return resident


def test_cost_stays_home_among_equals():
    fleet = fleet_of(Cost())
    paced(fleet)
    for worker in range(3):
        fleet.set_capacity(worker, 1_000_000)
    settled(fleet, 0, 1, context=5_000, output=200)

    assert fleet.next_turn(demand_of(0), 5_100) == "w1"


def test_cost_leaves_a_slow_home_when_one_turn_pays_for_it():
    for context, expected in ((500, "w0"), (50_000, "w2")):
        fleet = fleet_of(Cost())
        paced(fleet, slow=[1, 2])
        for worker in range(3):
            fleet.set_capacity(worker, 1_000_000)
        settled(fleet, 0, 2, context=context, output=400)

        assert fleet.next_turn(demand_of(0), context) == expected


def test_cost_leaves_an_overfull_home_only_for_one_with_room():
    for capacity, expected in ((1_000_000, "w1"), (4_000, "w0")):
        fleet = fleet_of(Cost(), count=2)
        paced(fleet)
        fleet.set_capacity(0, 2_000)
        fleet.set_capacity(1, capacity)
        for index in range(1, 9):
            settled(fleet, index, 0, context=5_000, output=200)
        settled(fleet, 0, 0, context=5_000, output=200)

        assert fleet.next_turn(demand_of(0), 5_000) == expected


def test_cost_does_not_take_unknown_memory_for_room():
    fleet = fleet_of(Cost(), count=2)
    paced(fleet, slow=[0])
    settled(fleet, 0, 0, context=500, output=400)

    assert fleet.next_turn(demand_of(0), 500) == "w0"


def test_siblings_live_beside_the_pioneer_while_the_prefix_is_worth_the_imbalance():
    fleet = fleet_of(Cost(), count=4)
    pioneer = fleet.place(demand_of(0))
    fleet.next_turn(demand_of(0), 2_000)

    homes = [fleet.place(demand_of(index)) for index in range(1, 5)]

    assert homes[:2] == [pioneer] * 2
    assert set(homes[2:]) - {pioneer}


def test_only_cost_lets_parked_samples_move():
    for policy, moves in ((Cost(), True), (StickyLeastLoaded(), False)):
        fleet = fleet_of(policy, count=2)
        home = fleet.place(demand_of(0))
        fleet.next_turn(demand_of(0), 100)
        fleet.park(demand_of(0), is_parked=True)
        (other,) = {"w0", "w1"} - {home}

        assert fleet.adopt(demand_of(0), other) is moves
        assert (fleet.home(demand_of(0)) == other) is moves
        assert not fleet.num_tokens.any()


def test_residents_of_a_lost_worker_move_and_return_only_when_no_other_is_there():
    changes = []
    fleet = fleet_of(StickyLeastLoaded(), count=2)
    fleet.watch(lambda: changes.append(1))
    for index in range(6):
        fleet.place(demand_of(index))

    fleet.lose(0)
    assert fleet.num_residents.tolist() == [0, 6]
    fleet.lose(1)
    assert fleet.num_residents.tolist() == [0, 6]
    fleet.welcome(0)
    assert fleet.num_residents.tolist() == [6, 0]
    assert len(changes) == 3


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["place", "turn", "park", "unpark", "adopt", "leave", "lose", "welcome"]),
        st.integers(0, 5),
        st.integers(0, 2),
    ),
    max_size=60,
)


@given(
    operations=OPERATIONS,
    policy=st.sampled_from([RoundRobin, Sticky, StickyLeastLoaded, StickyLeastWork, Cost]),
)
def test_the_ledger_adds_up_and_nobody_lives_where_nothing_is(  # noqa: C901 - one scenario
    operations, policy
):
    fleet = fleet_of(policy())
    alive = {}

    for what, index, worker in operations:
        demand = demand_of(index, task=f"t{index % 2}")
        match what:
            case "place" if index not in alive:
                fleet.place(demand)
                alive[index] = (0, False)
            case "turn" if index in alive:
                context = alive[index][0] + 10
                fleet.next_turn(demand, context)
                alive[index] = (context, alive[index][1])
            case "park" | "unpark" if index in alive:
                fleet.park(demand, is_parked=what == "park")
                alive[index] = (alive[index][0], what == "park")
            case "adopt" if index in alive:
                fleet.adopt(demand, f"w{worker}")
            case "leave":
                fleet.leave(demand)
                alive.pop(index, None)
            case "lose":
                fleet.lose(worker)
            case "welcome":
                fleet.welcome(worker)
            case _:
                pass
        homes = {one: fleet.home(demand_of(one, task=f"t{one % 2}")) for one in alive}
        assert None not in homes.values()
        assert fleet.num_residents.sum() == len(alive)
        active = sum(context for context, is_parked in alive.values() if not is_parked)
        assert fleet.num_tokens.sum() == active
        if fleet.is_up.any():
            assert set(homes.values()) <= set(fleet.workers())

    for index in list(alive):
        fleet.leave(demand_of(index, task=f"t{index % 2}"))
    assert not fleet._residents
    assert not fleet._groups
    assert not fleet._prefixes
    assert not fleet.num_residents.any()
