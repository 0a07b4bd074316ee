"""The simulated worker conserves memory, keeps its order and repeats itself."""

from hypothesis import given
from hypothesis import strategies as st

from rolloutkit.sim.timing import ModelTiming
from rolloutkit.sim.worker import Call, ReferenceWorker, Sizes
from rolloutkit.types import SampleId
from tests.property.examples import order_examples, ticks

TIMING = ModelTiming(
    kv_bytes_per_token=10,
    state_bytes=7,
    running_states=4,
    memory_bytes=0,
    decode_floor_seconds=0.01,
    communication_seconds=0.001,
    dense_bytes=1e9,
    prefill_floor_seconds=0.01,
    prefill_seconds_per_token=1e-4,
    prefill_overhead_per_token=1e-5,
    attention_seconds=1e-9,
    miss_tokens=3,
)
MEMORY_BYTES = 200_000  # two large calls, or many small ones
MAX_RUNNING = 3

sizes = st.tuples(
    st.sampled_from([10, 300, 9_000]), st.sampled_from([1, 50, 9_000]), st.sampled_from([1, 40])
).map(lambda one: Sizes(one[0], min(one[1], one[0]), one[2]))
plans = st.lists(
    st.tuples(
        ticks,  # submitted
        st.integers(0, 4),  # sample
        sizes,
        st.sampled_from([0.0, 0.0, 1.0]),  # priority
        st.none() | ticks,  # withdrawn so long after
    ),
    max_size=14,
)


class Drive:
    """Runs a plan on a worker and checks it after each event."""

    def __init__(self, plan):
        self.worker = ReferenceWorker(TIMING, memory_bytes=MEMORY_BYTES, max_running=MAX_RUNNING)
        self.ends = {}
        self.calls = [
            Call(SampleId("s", sample), wanted, priority) for _, sample, wanted, priority, _ in plan
        ]
        self.events = sorted(
            [(at, 0, index) for index, (at, *_) in enumerate(plan)]
            + [
                (at + after, 1, index)
                for index, (at, *_, after) in enumerate(plan)
                if after is not None
            ]
        )

    def run(self):
        now = 0.0
        while self.events or self.worker.wakes_at is not None:
            wakes_at = self.worker.wakes_at
            if wakes_at is not None and (not self.events or wakes_at <= self.events[0][0]):
                now = wakes_at
                for call in self.worker.advance(now):
                    self.ends[self.calls.index(call)] = now
            else:
                now, is_withdrawal, index = self.events.pop(0)
                act = self.worker.withdraw if is_withdrawal else self.worker.submit
                act(self.calls[index], now)
            self.check()
        return self

    def check(self):
        memory = self.worker.memory
        alive = [call for call in self.calls if call.started_at is not None and not call.is_over]
        assert self.worker.num_running == len(alive) <= MAX_RUNNING
        assert memory.reserved_bytes == sum(TIMING.running_bytes(call.num_final) for call in alive)
        assert memory.idle_bytes >= 0
        assert memory.reserved_bytes + memory.idle_bytes <= MEMORY_BYTES


@order_examples
@given(plan=plans)
def test_memory_is_conserved_and_every_call_ends(plan):
    drive = Drive(plan).run()

    withdrawn = {index for index, (*_, after) in enumerate(plan) if after is not None}
    assert set(drive.ends) | withdrawn == set(range(len(plan)))
    assert drive.worker.num_running == drive.worker.num_waiting == 0
    assert drive.worker.memory.reserved_bytes == 0


@order_examples
@given(plan=plans)
def test_no_call_overtakes_one_that_waited_longer_with_the_same_priority(plan):
    drive = Drive(plan).run()

    by_priority = {}
    for at, index in sorted((at, index) for index, (at, *_) in enumerate(plan)):
        call = drive.calls[index]
        if call.started_at is not None:
            earlier = by_priority.setdefault(call.priority, [at])
            assert call.started_at >= earlier[-1]
            earlier.append(call.started_at)


@order_examples
@given(plan=plans)
def test_the_same_plan_gives_the_same_times(plan):
    assert Drive(plan).run().ends == Drive(plan).run().ends


def test_a_call_that_does_not_fit_blocks_those_behind_it():
    worker = ReferenceWorker(TIMING, memory_bytes=MEMORY_BYTES, max_running=8)
    large = [Call(SampleId("s", index), Sizes(9_000, 9_000, 40), 0.0) for index in range(3)]
    small = Call(SampleId("s", 3), Sizes(10, 10, 1), 0.0)
    for call in (*large, small):
        worker.submit(call, 0.0)

    while not small.is_over:
        worker.advance(worker.wakes_at)

    assert large[0].started_at == 0
    assert 0 < large[2].started_at <= small.started_at


def test_a_session_that_was_kept_is_a_hit_and_an_evicted_one_is_computed_again():
    worker = ReferenceWorker(TIMING, memory_bytes=MEMORY_BYTES, max_running=8)

    def serve(sample, context, new):
        call = Call(SampleId("s", sample), Sizes(context, new, 1), 0.0)
        worker.submit(call, worker.wakes_at or 0.0)
        while not call.is_over:
            worker.advance(worker.wakes_at)
        return call.num_cached

    cached = [serve(0, 6_000, 6_000), serve(0, 6_010, 9), serve(1, 15_000, 15_000)]
    cached.append(serve(0, 6_020, 9))

    assert cached == [0, 6_010 - 9 - TIMING.miss_tokens, 0, 0]
