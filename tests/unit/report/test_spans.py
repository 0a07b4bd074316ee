import math

from hypothesis import given, settings
from hypothesis import strategies as st

from rolloutkit.record.events import Event
from rolloutkit.report.spans import UNFINISHED, BatchSpans, Row, State
from tests.unit.report.recorded_runs import (
    TurnPlan,
    admitted,
    call,
    ended,
    simulated_run,
    small_run,
    step,
)


def folded(events: list[Event]) -> BatchSpans:
    spans = BatchSpans()
    for event in events:
        spans.add(event)
    spans.cut_off()
    return spans


def told(row: Row) -> list[tuple[State, float, float]]:
    return [
        (State(state), start, end)
        for state, start, end in zip(row.states, row.edges, row.edges[1:], strict=False)
    ]


def test_row_tells_waits_and_work_of_a_sample_in_order() -> None:
    row = next(row for row in folded(small_run()).rows if row.sample_id == "b#0")

    assert told(row) == [
        (State.ADMISSION, 0.0, 1.0),
        (State.GENERATING, 1.0, 3.0),
        (State.SLOT, 3.0, 6.0),
        (State.ACTING, 6.0, 10.0),
        (State.IDLE, 10.0, 12.0),
    ]
    assert row.outcome == "failed"


def test_engine_queue_and_parking_come_before_generation() -> None:
    events = [
        admitted("a#0", t=0.0, seq=0),
        call("a#0", t=9.0, seconds=4.0, queue=1.0, parked=2.0),
        ended("a#0", t=9.0),
    ]

    (row,) = folded(events).rows

    assert told(row) == [
        (State.IDLE, 0.0, 3.0),
        (State.PARKED, 3.0, 5.0),
        (State.ENGINE_QUEUE, 5.0, 6.0),
        (State.GENERATING, 6.0, 9.0),
    ]


def test_stages_have_their_own_states_and_closing_is_no_state_of_the_sample() -> None:
    events = [
        admitted("a#0", t=0.0, seq=0),
        step("a#0", t=1.0, seconds=1.0, kind="files.set_up"),
        step("a#0", t=3.0, seconds=1.0, kind="files.score"),
        step("a#0", t=4.0, seconds=1.0, kind="files.close"),
        ended("a#0", t=4.0),
    ]

    spans = folded(events)

    assert [state for state, _, _ in told(spans.rows[0])] == [
        State.SET_UP,
        State.IDLE,
        State.SCORING,
        State.IDLE,
    ]
    assert not spans.action_seconds


def test_action_beside_a_waiting_one_shows_as_acting() -> None:
    events = [
        admitted("a#0", t=0.0, seq=0),
        step("a#0", t=4.0, seconds=4.0),
        step("a#0", t=6.0, seconds=3.0, wait=3.0),
        ended("a#0", t=6.0),
    ]

    (row,) = folded(events).rows

    assert told(row) == [(State.ACTING, 0.0, 6.0)]


def test_sample_of_a_killed_run_ends_with_its_trace() -> None:
    rows = {row.sample_id: row for row in folded(small_run()[:8]).rows}

    assert rows["b#0"].outcome == UNFINISHED
    assert rows["b#0"].ended_at == 10.0


turn_plans = st.builds(
    TurnPlan,
    st.floats(0, 5).map(lambda it: round(it, 3)),
    st.lists(st.floats(0, 5).map(lambda it: round(it, 3)), max_size=3),
)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(turn_plans, max_size=4), min_size=1, max_size=6), st.integers(1, 3))
def test_states_of_a_sample_cover_its_time_once(
    samples: list[list[TurnPlan]], capacity: int
) -> None:
    events = simulated_run(samples, slots=capacity, parallelism=capacity, max_samples=3)

    rows = folded(events).rows

    assert len(rows) == len(samples)
    for row in rows:
        assert list(row.edges) == sorted(set(row.edges))
        assert len(row.states) == len(row.edges) - 1
        lifetime = row.ended_at - row.edges[0]
        assert math.isclose(sum(row.seconds_by_state()), lifetime, abs_tol=1e-6)
