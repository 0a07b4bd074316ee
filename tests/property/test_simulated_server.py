"""The simulated server loses no token and no slot, keeps its order and repeats itself."""

import random
from array import array

from hypothesis import given
from hypothesis import strategies as st

from rolloutkit.sim.sglang.batches import Pause
from rolloutkit.sim.sglang.pools import Pool
from rolloutkit.sim.sglang.request import Ending, Request
from rolloutkit.sim.sglang.rules import VLLM, StateRules, WorkerRules
from rolloutkit.sim.sglang.tree import RadixTree
from rolloutkit.sim.sglang.worker import Worker
from tests.property.examples import order_examples, ticks


class Timer:
    """Simple, and different for every batch."""

    def decode(self, num_running, context_tokens):
        return 0.01 + 0.001 * num_running + 1e-5 * context_tokens

    def prefill(self, num_tokens, attended):
        return 0.02 + 1e-3 * num_tokens + 1e-6 * attended


SMALL = {"kv_tokens": 640, "max_running": 4, "max_context": 400, "chunked_prefill_tokens": 64}
STATES = StateRules(slots=20, chunk_tokens=8, track_tokens=16)
RULES = {
    "plain": WorkerRules(**SMALL),
    "pages": WorkerRules(**SMALL, page_tokens=16, overlap=False),
    "preempting": WorkerRules(**SMALL, preemption_threshold=0.5),
    "mixed": WorkerRules(**SMALL, is_mixed=True),
    "hybrid": WorkerRules(**SMALL, states=STATES),
    "one state a path": WorkerRules(
        **SMALL, states=StateRules(slots=20, chunk_tokens=8, track_tokens=16, max_per_path=1)
    ),
    "no buffer": WorkerRules(
        **SMALL, overlap=False, states=StateRules(slots=12, chunk_tokens=8, num_tracking=0)
    ),
    "shared memory": WorkerRules(
        **{**SMALL, "kv_tokens": 1_280},
        states=StateRules(unit_tokens=32, chunk_tokens=8, track_tokens=16),
    ),
    "vllm": WorkerRules(**SMALL, page_tokens=16, **VLLM),
    "vllm hybrid": WorkerRules(
        **{**SMALL, "kv_tokens": 1_280},
        page_tokens=16,
        states=StateRules(
            unit_tokens=32,
            chunk_tokens=16,
            track_tokens=None,
            num_tracking=1,
            stops_at_branches=True,
            leaves_last=True,
        ),
        **VLLM,
    ),
}

turns = st.tuples(
    ticks,  # submitted
    st.none() | st.integers(0, 9),  # goes on from what an earlier turn said
    st.sampled_from([1, 7, 60]),  # so much of it, in tenths
    st.sampled_from([1, 20, 150]),  # new tokens
    st.sampled_from([1, 3, 40]),  # output
    st.sampled_from([0.0, 0.0, 1.0]),  # priority
    st.none() | ticks,  # aborted so long after
    st.booleans(),  # ends by length
)
others = st.tuples(ticks, st.sampled_from([*Pause, "flush", "weights"]), ticks)
plans = st.tuples(
    st.lists(turns, max_size=12), st.lists(others, max_size=2), st.sampled_from(list(RULES))
)


class Drive:
    """Runs a plan on a worker and checks it after each event."""

    def __init__(self, plan):
        asked, meanwhile, rules = plan
        self.worker = Worker(RULES[rules], Timer())
        self.log = []
        self.requests = []
        events = []
        contexts = []
        for index, (at, parent, tenths, new, output, priority, after, by_length) in enumerate(
            asked
        ):
            rng = random.Random(index)
            kept = array("i")
            if parent is not None and parent < len(contexts):
                kept = contexts[parent][: len(contexts[parent]) * tenths // 60 + 1]
            fresh = array("i", (rng.randrange(50) for _ in range(new + output)))
            said = (kept + fresh)[: RULES[rules].max_request_tokens]
            contexts.append(said)
            num_output = min(output, len(said) - 1) or 1
            request = Request(
                said.tobytes(),
                max(1, len(said) - num_output),
                max_new=2 * output,
                priority=priority,
                ends_by_length=by_length,
            )
            if request.num_output < 1:
                continue
            self.requests.append(request)
            events.append((at, len(events), self.worker.submit, request))
            if after is not None:
                events.append((at + after, len(events), self.worker.abort, request))
        for at, what, after in meanwhile:
            if what == "flush":
                events.append((at, len(events), lambda _, __: self.worker.flush() and None, None))
            elif what == "weights":
                events.append(
                    (at, len(events), lambda _, __: self.worker.update_weights(1) and None, None)
                )
            else:
                events.append((at, len(events), self.worker.pause, what))
                events.append((at + after, len(events), lambda _, t: self.worker.resume(t), None))
        self.events = sorted(events, key=lambda event: event[:2])

    def run(self):
        now = 0.0
        while self.events or self.worker.wakes_at is not None:
            wakes_at = self.worker.wakes_at
            if wakes_at is not None and (not self.events or wakes_at <= self.events[0][0]):
                now = wakes_at
                ended = self.worker.advance(now)
            else:
                at, _, act, argument = self.events.pop(0)
                now = max(now, at)
                ended = act(argument, now) or []
            self.log.extend((now, self.requests.index(one), one.ending) for one in ended)
            self.check()
        return self

    def check(self):
        worker, memory = self.worker, self.worker.memory
        tree, states = memory.tree, memory.states
        held = worker.held()
        of_states = 0 if states is None else (tree.num_states + held.slots) * _unit(worker.rules)
        assert memory.kv.num_used == tree.num_tokens + held.tokens + of_states
        if states is not None:
            assert states.num_used == tree.num_states + held.slots
        assert 0 <= memory.kv.num_free <= memory.kv.capacity
        assert worker.num_running <= worker.rules.max_running + 4  # those that are leaving
        check_tree(tree)
        load = worker.load()
        assert 0 <= load.num_used_tokens <= load.max_total_num_tokens


def _unit(rules):
    return rules.states.unit_tokens if rules.states is not None else 0


def check_tree(tree):
    """The books agree with the nodes, and every state has its whole path."""
    nodes = list(tree.nodes())
    holders = [node for node in nodes if node.has_state]
    assert len(nodes) == tree.num_nodes
    assert sum(node.num_tokens for node in nodes) == tree.num_tokens
    unlocked = [node for node in nodes if not node.num_locks]
    assert sum(node.num_tokens for node in unlocked) == tree.evictable_tokens
    assert sum(not node.num_state_locks for node in holders) == tree.evictable_states
    assert set(tree.states_by_age()) == set(holders)
    reached = set(nodes) | {tree.root}
    for node in nodes:
        assert node.parent in reached
        assert node.num_tokens > 0
        assert node.num_locks >= sum(child.num_locks for child in node.children.values())


@order_examples
@given(plan=plans)
def test_every_token_and_slot_is_found_again_and_every_request_ends(plan):
    drive = Drive(plan).run()

    worker = drive.worker
    assert [request.ending for request in drive.requests].count(None) == 0
    assert worker.num_running == worker.num_waiting == 0
    assert worker.held() == (0, 0)
    assert len(drive.log) == len(drive.requests)
    for request in drive.requests:
        if request.ending is Ending.DONE:
            assert request.num_generated == request.num_output
    assert worker.flush()
    assert worker.memory.kv.num_used == 0


@order_examples
@given(plan=plans)
def test_the_same_plan_gives_the_same_times(plan):
    assert Drive(plan).run().log == Drive(plan).run().log


@order_examples
@given(plan=plans)
def test_what_is_cached_is_a_prefix_of_what_was_said_before(plan):
    drive = Drive(plan).run()

    for request in drive.requests:
        cached = request.num_cached or 0
        assert cached < request.num_prompt
        kept = request.tokens[: 4 * cached]
        assert not cached or any(
            other is not request and other.tokens.startswith(kept) for other in drive.requests
        )


strings = st.lists(st.integers(0, 2), min_size=1, max_size=24).map(lambda ids: array("i", ids))
steps = st.lists(
    st.tuples(
        st.sampled_from(["insert", "insert", "match", "lock", "unlock", "evict", "evict state"]),
        strings,
        st.booleans(),
    ),
    max_size=40,
)


@order_examples
@given(steps=steps, page=st.sampled_from([1, 4]), has_states=st.booleans())
def test_what_was_used_last_is_evicted_last(steps, page, has_states):
    driven = DrivenTree(page, has_states)

    for what, ids, flag in steps:
        driven.do(what, ids, flag)
        check_tree(driven.tree)


class DrivenTree:
    """A tree, and what is done to it."""

    def __init__(self, page, has_states):
        self.kv = Pool("tokens", 10_000)
        self.slots = Pool("slots", 1_000) if has_states else None
        self.page = page
        self.tree = RadixTree(self.kv, self.slots, page_tokens=page)
        self.locked = []

    def do(self, what, ids, flag):
        match what:
            case "insert":
                self.insert(ids)
            case "match" | "lock":
                self.match(ids, lock=what == "lock")
            case "unlock" if self.locked:
                self.tree.unlock(self.locked.pop(0 if flag else -1))
            case "evict":
                evict_one(self.tree, self.kv)
            case "evict state" if self.slots is not None:
                evict_one_state(self.tree, self.slots)

    def insert(self, ids):
        length = len(ids) // self.page * self.page
        if not length:
            return
        self.kv.take(length)
        if self.slots is None:
            self.tree.insert(ids.tobytes(), length, self.tree.root, 0)
            return
        self.slots.take(1)
        if not self.tree.insert(ids.tobytes(), length, self.tree.root, 0, state=True).took_state:
            self.slots.give_back(1)

    def match(self, ids, *, lock):
        expected = longest_match(self.tree, ids.tobytes(), self.page, self.slots is not None)
        found = self.tree.match(ids.tobytes(), len(ids))
        assert found.num_tokens == expected
        assert found.node.depth == expected
        if lock and found.node.parent is not None:
            self.tree.lock(found.node)
            self.locked.append(found.node)


def longest_match(tree, tokens, page, has_states):
    """The same by trying every node."""
    best = 0
    for node in tree.nodes():
        path = b"".join(reversed([above.key for above in node.path()]))
        if has_states:
            if node.has_state and tokens.startswith(path):
                best = max(best, len(path) // 4)
        else:
            common = 0
            while common < min(len(path), len(tokens)) and path[common] == tokens[common]:
                common += 1
            best = max(best, common // 4 // page * page)
    return best


def evict_one(tree, kv):
    leaves = [node for node in tree.nodes() if not node.children and not node.num_locks]
    oldest = min(leaves, key=lambda node: node.accessed_at, default=None)

    tree.evict_tokens(kv.num_free + 1)

    assert oldest is None or oldest.parent is None
    assert all(node.parent is not None for node in leaves if node is not oldest)


def evict_one_state(tree, slots):
    ages = [node for node in tree.states_by_age() if not node.num_state_locks]
    oldest = ages[0] if ages else None

    tree.evict_states(slots.num_free + 1)

    assert oldest is None or not oldest.has_state
    assert all(node.has_state for node in ages[1:])
    if oldest is not None and oldest.parent is not None:  # its KV stays, below it are others
        assert oldest.children or oldest.num_locks
