"""Keyed orders: nothing is lost or doubled, the largest key comes first, nobody waits for ever."""

import itertools
import math

from hypothesis import example, given
from hypothesis import strategies as st

from rolloutkit.actions import (
    KeyedOrder,
    caas_service_order,
    clairvoyant_order,
    oldest_order,
    remaining_order,
)
from rolloutkit.actions.keyed import num_turns
from rolloutkit.protocols import ActionDemand
from rolloutkit.types import SampleId
from tests.property.examples import order_examples

LANES = st.sampled_from([0.0, 0.1, 1 / 3, 0.5, 1.0])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["push", "push", "push", "pop", "pop", "discard", "rekey", "rank"]),
        st.integers(0, 5),  # sample
        st.integers(0, 3),  # key: ties on purpose
    ),
    max_size=60,
)


def demand_of(seq, sample=0, *, turns=0, service=0.0, admission_seq=0):
    return ActionDemand(
        kind="k",
        sample_id=SampleId("t", sample),
        seq=seq,
        num_turns=turns,
        service_seconds=service,
        admission_seq=admission_seq,
    )


class Model:
    """The same rule as a scan of everything that waits."""

    def __init__(self, lane):
        self.keys = dict.fromkeys(range(6), 0)
        self.waiting = []
        self.lane, self.credit = lane, 0.0

    def pop(self):
        if not self.waiting:
            return None
        self.credit += self.lane
        chosen = self.waiting[0]
        if self.credit >= 1 - 1e-6:
            self.credit -= 1
        else:
            chosen = min(self.waiting, key=lambda d: (-self.keys[d.sample_id.sample_index], d.seq))
        self.waiting.remove(chosen)
        return chosen


@order_examples
@given(steps=STEPS, lane=LANES)
@example(  # a key that goes and comes back leaves two equal entries of one demand
    steps=[("push", 0, 0), ("rekey", 0, 3), ("rekey", 0, 0), ("pop", 0, 0), ("pop", 0, 0)],
    lane=0.0,
)
def test_it_does_what_a_scan_would_do(steps, lane):  # noqa: C901 - one branch per call
    model = Model(lane)
    order = KeyedOrder(lambda demand: model.keys[demand.sample_id.sample_index], fifo_lane=lane)
    pushed = []

    for what, sample, key in steps:
        if what == "push":
            demand = demand_of(len(pushed), sample)
            pushed.append(demand)
            order.push(demand, 0.0)
            model.waiting.append(demand)
        elif what == "pop":
            assert order.pop(0.0) is model.pop()
        elif what == "discard" and pushed:
            demand = pushed[key % len(pushed)]
            order.discard(demand)
            if demand in model.waiting:
                model.waiting.remove(demand)
        elif what == "rekey":
            model.keys[sample] = key
            order.rekey(SampleId("t", sample))
        elif what == "rank":
            model.keys = dict.fromkeys(range(6), key)
            order.rank_by(lambda d: model.keys[d.sample_id.sample_index], fifo_lane=lane)
        assert len(order) == len(model.waiting)

    while model.waiting:
        assert order.pop(0.0) is model.pop()
    assert order.pop(0.0) is None


@order_examples
@given(
    lane=st.sampled_from([0.1, 1 / 3, 0.5, 1.0]),
    num_before=st.integers(0, 12),
    num_popped=st.integers(0, 9),
)
def test_with_a_lane_the_least_of_all_leaves_within_its_bound(lane, num_before, num_popped):
    order = KeyedOrder(num_turns, fifo_lane=lane)
    seqs = itertools.count()
    for _ in range(num_popped):  # leaves the lane at any phase
        order.push(demand_of(next(seqs), turns=9), 0.0)
        order.pop(0.0)
    for _ in range(num_before):
        order.push(demand_of(next(seqs), turns=9), 0.0)
    victim = demand_of(next(seqs), turns=0)
    order.push(victim, 0.0)

    num_dispatches = 0
    while True:
        order.push(demand_of(next(seqs), turns=9), 0.0)  # newcomers are always ahead by key
        num_dispatches += 1
        if order.pop(0.0) is victim:
            break

    assert num_dispatches <= math.ceil((num_before + 1) / lane)


@order_examples
@given(st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=1, max_size=20))
def test_each_order_ranks_by_its_own_key(entries):
    demands = [
        demand_of(seq, seq, service=float(service), admission_seq=admitted)
        for seq, (service, admitted, _) in enumerate(entries)
    ]
    left = {demand.sample_id: float(entries[demand.seq][2]) for demand in demands}
    keys = {
        caas_service_order: lambda demand: demand.service_seconds,
        oldest_order: lambda demand: -demand.admission_seq,
        lambda: clairvoyant_order(left): lambda demand: left[demand.sample_id],
        lambda: remaining_order(left.__getitem__, 0.0): lambda demand: left[demand.sample_id],
    }

    for make_order, key_of in keys.items():
        order = make_order()
        for demand in demands:
            order.push(demand, 0.0)
        popped = [order.pop(0.0) for _ in demands]
        assert popped == sorted(demands, key=lambda demand: (-key_of(demand), demand.seq))


def test_stale_entries_do_not_pile_up():
    keys = {0: 0.0}
    order = KeyedOrder(lambda demand: keys[0])
    order.push(demand_of(0), 0.0)

    for key in range(10_000):
        keys[0] = float(key)
        order.rekey(SampleId("t", 0))

    assert len(order._heap) < 200


def test_time_counts_as_queued_while_something_waits():
    order = KeyedOrder(num_turns)

    order.push(demand_of(0), 10.0)
    order.push(demand_of(1), 12.0)
    order.pop(15.0)
    order.pop(16.0)
    order.push(demand_of(2), 20.0)

    assert order.queued_seconds(21.0) == 7.0
