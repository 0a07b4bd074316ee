"""The corrector's window stays in its bounds, cuts once per survival time, and never guesses."""

from hypothesis import given
from hypothesis import strategies as st

from rolloutkit.admission import Cause, Corrector, Signals
from tests.property.examples import order_examples, ticks

SIGNALS = st.builds(
    Signals,
    cycle_seconds=st.floats(0.1, 100),
    waste=st.none() | st.floats(0, 1),
    retractions=st.none() | st.integers(0, 3),
    queue=st.none() | st.floats(0, 20),
    is_full=st.booleans(),
    is_draining=st.booleans(),
)


@order_examples
@given(
    reference=st.integers(1, 500),
    most=st.none() | st.integers(1, 500),
    expected_hits=st.floats(0, 1),
    periods=st.lists(st.tuples(ticks, SIGNALS), max_size=40),
)
def test_windows_stay_in_bounds_and_are_cut_once_per_two_cycles(
    reference, most, expected_hits, periods
):
    corrector = Corrector(reference, expected_hits=expected_hits, most=most)
    top = max(1, int(1.5 * reference)) if most is None else min(max(1, int(1.5 * reference)), most)
    now, allowed_at = 0.0, 0.0

    for seconds, signals in periods:
        now += seconds
        before = corrector.window
        decision = corrector.update(signals, now)

        assert decision.window == corrector.window
        assert min(top, max(1, reference // 2)) <= corrector.window <= top
        if corrector.window < before:
            assert now >= allowed_at
            assert signals.retractions or signals.waste > 0.15
            allowed_at = now + 2 * signals.cycle_seconds
        if corrector.window > before:
            assert decision.cause is Cause.ROOM
            assert signals.waste is not None
            assert signals.is_full
            assert not signals.is_draining
        if decision.cause is Cause.HOLD:
            assert corrector.window == before


def test_what_is_not_known_changes_nothing():
    corrector = Corrector(100)

    decision = corrector.update(Signals(cycle_seconds=10, is_full=True), now=50)

    assert decision == (100, Cause.HOLD, None)


def test_waste_cuts_and_a_second_cut_waits_for_the_caches_to_settle():
    corrector = Corrector(100)
    wasting = Signals(cycle_seconds=30, waste=0.5, is_full=True)

    windows = [corrector.update(wasting, now).window for now in (100, 130, 160, 220, 280)]

    assert windows == [80, 80, 64, 51, 50]


def test_retractions_cut_deeper_than_waste():
    decision = Corrector(100).update(Signals(cycle_seconds=30, waste=0.5, retractions=2), now=0)

    assert decision == (70, Cause.RETRACTION, 0.5)


def test_waste_that_the_plan_wants_is_no_reason_to_cut():
    planned = Corrector(100, expected_hits=0.3)

    assert planned.update(Signals(cycle_seconds=30, waste=0.75), now=0).cause is Cause.HOLD
    assert planned.update(Signals(cycle_seconds=30, waste=0.85), now=0).cause is Cause.WASTE


def test_room_is_used_a_little_at_a_time_and_only_where_it_pays():
    roomy = Signals(cycle_seconds=30, waste=0.0, queue=0.0, is_full=True)

    assert Corrector(100).update(roomy, now=0).window == 102
    assert Corrector(100, predicted=lambda num: num).update(roomy, now=0).window == 102
    assert Corrector(100, predicted=lambda num: 5.0).update(roomy, now=0).window == 100


def test_a_flush_is_no_reason_to_cut():
    corrector = Corrector(100)
    corrector.flushed(now=10, cycle_seconds=30)

    cold = Signals(cycle_seconds=30, waste=1.0)

    assert corrector.update(cold, now=60).cause is Cause.HOLD
    assert corrector.update(cold, now=70).cause is Cause.WASTE
