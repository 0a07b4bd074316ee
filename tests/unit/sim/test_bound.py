"""The bound of recorded chains: by hand where that is easy, against brute force where it is not."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutkit.record.chains import RecordedChain, RecordedTurn
from rolloutkit.report.two_sided import Operations, two_sided_bound
from rolloutkit.sim.bound import chains_bound
from rolloutkit.sim.reference import ReferenceConfig


def chain_of(*turns):
    return RecordedChain("made", tuple(RecordedTurn(*turn) for turn in turns))


def one_second(turn):
    return 1.0


def test_the_longest_chain_binds_when_there_are_slots_for_all():
    chains = [chain_of((10, 10, 1, 5.0), (20, 5, 1, 0.0)), chain_of((10, 10, 1, 1.0))]

    bound = chains_bound(chains, alone_seconds=one_second, slots=8)

    assert bound == (7.0, "critical path")


def test_slots_bind_between_what_comes_before_and_after_them():
    chains = [chain_of((10, 10, 1, 6.0), (20, 5, 1, 0.0)) for _ in range(4)]

    bound = chains_bound(chains, alone_seconds=one_second, slots=2)

    assert bound == (1 + 4 * 6 / 2 + 1, "environment")


def test_a_worker_binds_when_outputs_are_long():
    chains = [chain_of((1_000, 1_000, 20_000, 0.0)) for _ in range(300)]
    config = ReferenceConfig(max_running=4)

    bound = chains_bound(chains, alone_seconds=one_second, slots=1, engine=config)

    assert bound.resource == "engine"


operations = st.lists(st.tuples(*[st.integers(0, 9)] * 3), min_size=1, max_size=40)


@given(operations=operations, capacity=st.integers(1, 4))
def test_the_two_sided_bound_is_the_best_over_all_heads_and_tails(operations, capacity):
    heads, services, tails = np.array(operations, dtype=float).T

    bound = two_sided_bound(Operations(heads, services, tails), capacity)

    best = max(
        (
            head + sum(p for h, p, q in operations if h >= head and q >= tail) / capacity + tail
            for head in set(heads)
            for tail in set(tails)
            if sum(p for h, p, q in operations if h >= head and q >= tail)
        ),
        default=0.0,
    )
    assert bound <= best + 1e-9
    if len(operations) <= 40 and len(set(heads)) < 10:  # fewer values than quantiles
        assert bound >= 0.9 * best


def test_without_operations_there_is_no_bound():
    nothing = np.zeros(0)

    assert two_sided_bound(Operations(nothing, nothing, nothing), 3) == 0


def test_a_finer_look_costs_no_validity():
    rng = random.Random(5)
    heads, services, tails = (
        np.array([rng.expovariate(1) for _ in range(2_000)]) for _ in range(3)
    )

    bound = two_sided_bound(Operations(heads, services, tails), 4)

    assert bound == pytest.approx(services.sum() / 4, rel=0.05)
