"""Ranked and pioneer admission: conserving, respecting room, and what a plain scan would do."""

from hypothesis import example, given
from hypothesis import strategies as st

from rolloutkit.admission import DatasetOrder, PioneerOrder, RankedOrder
from rolloutkit.protocols import Demand
from rolloutkit.types import SampleId, Task
from tests.property.examples import order_examples

NUM_GROUPS, GROUP_SIZE = 5, 3
TASKS = [Task(task_id=f"t{group}", num_samples=GROUP_SIZE) for group in range(NUM_GROUPS)]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["push", "push", "push", "pop", "pop", "discard", "learn"]),
        st.integers(0, NUM_GROUPS - 1),
        st.integers(0, 3),
    ),
    max_size=60,
)
ROOMS = st.sets(st.sampled_from(["a", "b"]), max_size=2)


def environment_of(group):
    return "ab"[group % 2]


class Source:
    """Hands out the samples of each group in turn."""

    def __init__(self):
        self.next_index = [0] * NUM_GROUPS
        self.pushed = []

    def next(self, group):
        index = self.next_index[group]
        if index == GROUP_SIZE:
            return None
        self.next_index[group] += 1
        demand = Demand(
            sample_id=SampleId(f"t{group}", index),
            task=TASKS[group],
            environment=environment_of(group),
            seq=len(self.pushed),
            arrived_at=0.0,
        )
        self.pushed.append(demand)
        return demand


def group_of(demand):
    return int(demand.task.task_id[1:])


def drain(order):
    popped = []
    while (demand := order.pop({"a", "b"}, 0.0)) is not None:
        popped.append(demand)
    return popped


@order_examples
@given(steps=STEPS, rooms=ROOMS)
def test_the_largest_key_with_room_comes_first(steps, rooms):
    source, waiting = Source(), []
    order = RankedOrder(lambda demand: float(group_of(demand) // 2))

    for what, group, number in steps:
        if what == "push" and (demand := source.next(group)) is not None:
            order.push(demand, 0.0)
            waiting.append(demand)
        elif what == "discard" and source.pushed:
            demand = source.pushed[number % len(source.pushed)]
            order.discard(demand)
            waiting = [other for other in waiting if other is not demand]
        elif what == "pop":
            able = [demand for demand in waiting if demand.environment in rooms]
            expected = min(able, key=lambda d: (-(group_of(d) // 2), d.seq), default=None)
            assert order.pop(rooms, 0.0) is expected
            waiting = [other for other in waiting if other is not expected]
        assert len(order) == len(waiting)

    assert sorted(demand.seq for demand in drain(order)) == [demand.seq for demand in waiting]


class PioneerModel:
    """The same rule as a scan."""

    def __init__(self):
        self.waiting = []
        self.explored = set()
        self.first_seq = {}
        self.means = dict.fromkeys(range(NUM_GROUPS), 0.0)

    def push(self, demand):
        self.waiting.append(demand)
        self.first_seq.setdefault(group_of(demand), demand.seq)

    def pop(self, rooms):
        able = [demand for demand in self.waiting if demand.environment in rooms]
        fresh = [demand for demand in able if group_of(demand) not in self.explored]
        if fresh:
            chosen = min(fresh, key=lambda d: (self.first_seq[group_of(d)], d.seq))
        elif able:
            chosen = min(
                able,
                key=lambda d: (
                    -self.means[group_of(d)],
                    self.first_seq[group_of(d)],
                    d.seq,
                ),
            )
        else:
            return None
        self.explored.add(group_of(chosen))
        self.waiting.remove(chosen)
        return chosen


@order_examples
@given(steps=STEPS, rooms=ROOMS)
@example(  # a pioneer is withdrawn before it was admitted: the next of its group takes its place
    steps=[("push", 0, 0), ("discard", 0, 0), ("pop", 0, 0), ("push", 0, 0), ("pop", 0, 0)],
    rooms={"a"},
)
@example(  # a group runs dry before all of its samples came
    steps=[("push", 0, 0), ("pop", 0, 0), ("push", 0, 0), ("learn", 0, 2), ("pop", 0, 0)],
    rooms={"a"},
)
def test_pioneers_come_first_and_then_the_longest_group(steps, rooms):
    source, model = Source(), PioneerModel()
    order = PioneerOrder(lambda task_id: model.means[int(task_id[1:])])

    for what, group, number in steps:
        if what == "push" and (demand := source.next(group)) is not None:
            order.push(demand, 0.0)
            model.push(demand)
        elif what == "discard" and source.pushed:
            demand = source.pushed[number % len(source.pushed)]
            order.discard(demand)
            model.waiting = [other for other in model.waiting if other is not demand]
        elif what == "learn":
            model.means[group] = float(number)
            order.rekey(f"t{group}")
        elif what == "pop":
            assert order.pop(rooms, 0.0) is model.pop(rooms)
        assert len(order) == len(model.waiting)

    waiting = sorted(demand.seq for demand in model.waiting)
    assert sorted(demand.seq for demand in drain(order)) == waiting


@order_examples
@given(groups=st.lists(st.integers(0, NUM_GROUPS - 1), max_size=15))
def test_every_order_admits_every_demand_once(groups):
    for make_order in (DatasetOrder, lambda: RankedOrder(_seq), lambda: PioneerOrder(len)):
        source, order = Source(), make_order()
        for group in groups:
            demand = source.next(group)
            if demand is not None:
                order.push(demand, 0.0)

        popped = drain(order)

        assert sorted(demand.seq for demand in popped) == list(range(len(source.pushed)))
        assert len(order) == 0


def test_a_group_waits_for_one_of_each_other_group_and_for_longer_ones_only():
    means = {"t0": 1.0, "t1": 3.0, "t2": 2.0}
    source = Source()
    order = PioneerOrder(means.__getitem__)
    for _ in range(GROUP_SIZE):
        for group in (0, 1, 2):
            order.push(source.next(group), 0.0)

    popped = [demand.task.task_id for demand in drain(order)]

    assert popped == ["t0", "t1", "t2", "t1", "t1", "t2", "t2", "t0", "t0"]


def test_stale_entries_do_not_pile_up():
    mean = [0.0]
    source = Source()
    order = PioneerOrder(lambda task_id: mean[0])
    for _ in range(GROUP_SIZE):
        order.push(source.next(0), 0.0)
    order.pop({"a"}, 0.0)

    for value in range(10_000):
        mean[0] = float(value)
        order.rekey("t0")

    assert len(order._environments["a"]._heap) < 200


def _seq(demand):
    return float(demand.seq)
