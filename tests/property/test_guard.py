"""The guard: what it chooses, and that no course of events makes it choose without grounds."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutkit.actions import Guard, Rule
from rolloutkit.actions.guard import (
    FIRST_REVIEW,
    MIN_QUEUE_SHARE,
    REVIEW_GROWTH,
    TRUSTED_RECALL,
    USEFUL_RECALL,
)
from rolloutkit.estimate import SurvivalCurve
from tests.property.examples import order_examples

LANE = 1 / 3


def curve(sigma, count=200):
    rng = random.Random(2)
    return SurvivalCurve([math.exp(rng.gauss(0, sigma)) for _ in range(count)])


WEARS_OUT, GOES_ON = curve(0.4), curve(1.4)


def busy(guard):
    for _ in range(FIRST_REVIEW):
        guard.turn_ended(1.0, 1.0)
    return guard


@pytest.mark.parametrize(
    ("recall", "seen", "rule", "lane"),
    [
        (None, None, Rule.FIFO, 0.0),
        (None, WEARS_OUT, Rule.FIFO, 0.0),
        (None, GOES_ON, Rule.CAAS, LANE),
        (0.5, WEARS_OUT, Rule.FIFO, 0.0),
        (0.5, GOES_ON, Rule.CAAS, LANE),
        (0.65, WEARS_OUT, Rule.REMAINING, LANE),
        (0.79, GOES_ON, Rule.REMAINING, LANE),
        (0.8, None, Rule.REMAINING, 0.0),
    ],
)
def test_it_chooses_by_recall_and_then_by_what_is_left(recall, seen, rule, lane):
    verdict = busy(Guard(recall, LANE)).review(lambda: seen)

    assert (verdict.rule, verdict.fifo_lane) == (rule, lane)
    assert verdict.recall == recall
    assert verdict.reason


def test_there_is_nothing_to_order_while_nothing_queues():
    guard = Guard(0.9, LANE)
    assert guard.review(lambda: GOES_ON).rule is Rule.REMAINING  # nothing known of queues yet

    for _ in range(FIRST_REVIEW):
        guard.turn_ended(0.1, 10.0)

    verdict = guard.review(lambda: GOES_ON)
    assert verdict.rule is Rule.FIFO
    assert verdict.reason == "nothing to order, actions wait 1% of turn time"


def test_a_queue_that_builds_up_later_is_noticed():
    guard = Guard(0.9, LANE)
    for _ in range(FIRST_REVIEW):
        guard.turn_ended(0.0, 10.0)
    assert guard.review(lambda: None).rule is Rule.FIFO

    for _ in range(FIRST_REVIEW):
        guard.turn_ended(5.0, 10.0)

    assert guard.review(lambda: None).rule is Rule.REMAINING


TURNS = st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), max_size=300)


@order_examples
@given(
    turns=TURNS,
    recall=st.none() | st.floats(0, 1),
    seen=st.sampled_from([None, WEARS_OUT, GOES_ON]),
)
def test_no_course_of_events_makes_it_choose_without_grounds(turns, recall, seen):
    guard = Guard(recall, LANE)
    num_reviews = 0
    for wait, active in turns:
        if not guard.turn_ended(wait, active):
            continue
        num_reviews += 1
        verdict = guard.review(lambda: seen)
        share = guard.queue_share
        if verdict.rule is Rule.REMAINING:
            assert recall is not None
            assert recall >= USEFUL_RECALL
            assert (verdict.fifo_lane == 0) == (recall >= TRUSTED_RECALL)
        if verdict.rule is Rule.CAAS:
            assert seen is GOES_ON
            assert not guard.trusts_estimate
        if verdict.rule is not Rule.FIFO:
            assert share is None or share >= MIN_QUEUE_SHARE
        assert verdict == guard.review(lambda: seen)

    most = 1 + math.log(max(len(turns) / FIRST_REVIEW, 1), REVIEW_GROWTH) + 1
    assert num_reviews <= most
