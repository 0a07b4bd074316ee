"""Why a sample waited: every wait, who came before it, and by which rule."""

import pytest

from rolloutkit.errors import ConfigError
from rolloutkit.record.events import (
    Action,
    OrderChosen,
    PoolOpened,
    RunStarted,
    SampleAdmitted,
    SampleEnded,
    SampleResumed,
)
from rolloutkit.report.waits import Served, explain
from rolloutkit.types import Status, StopReason

STEP = "swe.step"


def admitted(sample_id, t, wait=0.0, key=None):
    return SampleAdmitted(
        t=t, sample_id=sample_id, environment="swe", seq=0, wait_seconds=wait, key=key
    )


def step(sample_id, start, seconds, wait=0.0, *, kind=STEP, turn=1, key=None):
    return Action(
        t=start + seconds,
        sample_id=sample_id,
        kind=kind,
        turn=turn,
        wait_seconds=wait,
        seconds=seconds,
        key=key,
    )


EVENTS = [
    RunStarted(t=0.0, order="auto", admission_order="pioneers", max_samples=3, slots={STEP: 2}),
    OrderChosen(t=0.0, order="fifo", fifo_lane=0.0, reason="no history"),
    admitted("a#0", 0.0, key=9.0),
    admitted("b#0", 1.0, wait=1.0, key=5.0),
    admitted("me#0", 4.0, wait=4.0, key=3.0),
    step("a#0", 2.0, 5.0),  # holds a slot when `me` asks at 6
    step("b#0", 5.0, 20.0),  # holds the other one for long
    step("c#0", 7.0, 1.0, wait=2.0, key=8.0),
    OrderChosen(t=8.5, order="remaining", fifo_lane=0.0, reason="recall"),
    step("d#0", 8.0, 1.0, wait=1.0, key=7.0),
    step("e#0", 8.5, 1.0, kind="bash"),
    step("me#0", 9.0, 1.0, wait=3.0, key=2.5),
    SampleResumed(t=15.0, sample_id="me#0", parked_seconds=2.0),
    step("me#0", 16.0, 1.0, turn=2),
    step("f#0", 30.0, 1.0),
    SampleEnded(
        t=31.0,
        sample_id="me#0",
        environment="swe",
        status=Status.COMPLETED,
        stop_reason=StopReason.DONE,
    ),
]


def test_each_wait_is_told_in_the_order_of_asking():
    explanation = explain(lambda: EVENTS, "me#0")

    assert (explanation.status, explanation.finished_at) == ("completed", 31.0)
    assert [(wait.what, wait.asked_at, wait.seconds) for wait in explanation.waits] == [
        ("admission", 0.0, 4.0),
        (STEP, 6.0, 3.0),
        ("memory", 13.0, 2.0),
    ]


def test_an_action_says_who_held_the_slots_and_who_came_before():
    wait = explain(lambda: EVENTS, "me#0").waits[1]

    assert (wait.capacity, wait.order, wait.key, wait.turn) == (2, "remaining", 2.5, 1)
    assert wait.num_holding == 1  # b#0 keeps its slot: it is not what `me` waited for
    assert wait.num_served == 2
    assert wait.served == (Served(sample_id="c#0", key=8.0), Served(sample_id="d#0", key=7.0))


def test_admission_says_who_was_admitted_meanwhile():
    wait = explain(lambda: EVENTS, "me#0").waits[0]

    assert (wait.capacity, wait.order, wait.key) == (3, "pioneers", 3.0)
    assert [served.sample_id for served in wait.served] == ["a#0", "b#0"]


def test_pools_that_opened_later_are_known():
    events = [
        RunStarted(t=0.0),
        PoolOpened(t=1.0, kind="bash", slots=7),
        step("x#0", 3.0, 1.0, wait=1.0, kind="bash"),
    ]

    explanation = explain(lambda: events, "x#0")

    assert explanation.waits[0].capacity == 7
    assert (explanation.status, explanation.finished_at) == ("running", None)


def test_a_sample_that_the_run_does_not_know_is_refused_in_one_line():
    with pytest.raises(ConfigError, match="no sample 'you#1': write TASK#INDEX"):
        explain(lambda: EVENTS, "you#1")
