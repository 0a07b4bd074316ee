import msgspec
import pytest

from rolloutkit.record.events import Event, ModelCall, RunEnded, RunStarted, SampleEnded
from rolloutkit.report import RunStatistics, Summary
from rolloutkit.report.summary import LagSeconds, WaitSeconds
from rolloutkit.types import CancelReason, FailureKind, Status, StopReason
from tests.unit.report.recorded_runs import STEP, admitted, call, ended, small_run, step


def summarize(*events: Event) -> Summary:
    statistics = RunStatistics()
    for event in events:
        statistics(event)
    return statistics.summary()


def cancelled(sample_id: str, *, t: float) -> SampleEnded:
    return SampleEnded(
        t=t,
        sample_id=sample_id,
        environment="files",
        status=Status.CANCELLED,
        stop_reason=StopReason.CANCELLED,
        cancel_reason=CancelReason.NOT_STARTED,
        admitted=False,
    )


def test_summary_has_the_keys_of_the_contract() -> None:
    names = set(Summary.__struct_fields__)

    assert names >= {
        "num_samples",
        "num_completed",
        "num_failed",
        "num_cancelled",
        "score_mean",
        "makespan_seconds",
        "lower_bound_seconds",
        "gap",
        "binding_resource",
        "num_turns",
        "prompt_tokens",
        "cached_tokens",
        "recomputed_tokens",
        "output_tokens",
        "environment_utilization",
        "engine_utilization",
        "action_wait_seconds",
        "event_loop_lag_seconds",
        "scheduler_cpu_seconds",
        "tail",
        "trace_complete",
        "bound_kind",
    }
    assert set(msgspec.to_builtins(summarize(*small_run()))["tail"][0]) >= {
        "sample_id",
        "finished_at",
        "generate_seconds",
        "act_seconds",
        "slot_wait_seconds",
        "admission_wait_seconds",
        "recompute_seconds",
    }


def test_small_run_in_figures() -> None:
    summary = summarize(*small_run(time="real"))

    assert (summary.num_samples, summary.num_completed, summary.num_failed) == (2, 1, 1)
    assert summary.stop_reasons == {"done": 1, "failed": 1}
    assert summary.failure_kinds == {"environment": 1}
    assert summary.score_mean == 1.0
    assert summary.makespan_seconds == 12.0
    assert summary.lower_bound_seconds == 10.0  # a#0: 1.5 + 4 + 4.5
    assert summary.binding_resource == "critical path"
    assert summary.bound_kind == "observed"
    assert summary.gap == pytest.approx(1.2)
    assert summary.num_turns == 3
    assert (summary.prompt_tokens, summary.cached_tokens, summary.output_tokens) == (310, 60, 25)
    assert (
        summary.recomputed_tokens == 49
    )  # of 110 seen, the last was never computed, 60 are cached
    assert summary.environment_utilization == pytest.approx(8.0 / 12.0)
    assert summary.engine_utilization == pytest.approx(8.0 / 24.0)
    assert summary.action_wait_seconds == WaitSeconds(p50=0.0, p90=3.0, p99=3.0, max=3.0)
    assert summary.event_loop_lag_seconds == LagSeconds(p99=0.01, max=0.02)
    assert summary.scheduler_cpu_seconds == 0.25
    assert summary.trace_complete
    assert summary.ended_early is None


def test_tail_tells_where_the_last_samples_lost_their_time() -> None:
    last, before = summarize(*small_run()).tail

    assert (last.sample_id, last.finished_at) == ("b#0", 12.0)
    assert (last.admission_wait_seconds, last.slot_wait_seconds) == (1.0, 3.0)
    assert (last.generate_seconds, last.act_seconds) == (2.0, 4.0)
    assert last.recompute_seconds == 0.0
    assert before.sample_id == "a#0"
    assert before.recompute_seconds is None  # 49 tokens, but nobody says how long they took


def test_tail_holds_the_last_five_that_lived() -> None:
    events: list[Event] = []
    for index in range(8):
        events += [admitted(f"a#{index}", t=0.0, seq=index), ended(f"a#{index}", t=float(index))]

    summary = summarize(*events, cancelled("z#0", t=9.0))

    assert [sample.sample_id for sample in summary.tail] == ["a#7", "a#6", "a#5", "a#4", "a#3"]
    assert summary.makespan_seconds == 9.0
    assert summary.cancel_reasons == {"not_started": 1}


def test_what_is_not_known_is_none() -> None:
    summary = summarize(
        RunStarted(t=0.0),
        admitted("a#0", t=0.0, seq=0),
        call("a#0", t=1.0, seconds=1.0, context=50, output=5),
        call("a#0", t=3.0, seconds=2.0),
        ended("a#0", t=3.0),
        RunEnded(t=3.0),
    )

    assert summary.prompt_tokens is None
    assert summary.cached_tokens is None
    assert summary.recomputed_tokens is None
    assert summary.output_tokens is None
    assert summary.score_mean is None
    assert summary.environment_utilization is None
    assert summary.engine_utilization is None
    assert summary.action_wait_seconds == WaitSeconds()
    assert summary.tail[0].recompute_seconds is None
    assert summary.lower_bound_seconds == 3.0


def test_virtual_run_has_no_cost_figures() -> None:
    summary = summarize(*small_run(time="virtual"))

    assert summary.scheduler_cpu_seconds is None
    assert summary.event_loop_lag_seconds == LagSeconds()


def test_run_without_an_end_is_incomplete() -> None:
    summary = summarize(*small_run()[:7])

    assert not summary.trace_complete
    assert (summary.num_samples, summary.num_completed) == (2, 0)
    assert summary.makespan_seconds is None
    assert summary.lower_bound_seconds is None
    assert summary.bound_kind is None


def test_events_that_the_recorder_could_not_keep_make_it_incomplete() -> None:
    statistics = RunStatistics()
    for event in small_run():
        statistics(event)

    assert not statistics.summary(trace_complete=False).trace_complete


def test_early_end_is_told_with_its_reason() -> None:
    assert (
        summarize(RunStarted(t=0.0), RunEnded(t=1.0, reason="deadline")).ended_early == "deadline"
    )


def test_run_in_which_nothing_took_time_has_no_gap() -> None:
    summary = summarize(
        RunStarted(t=0.0), admitted("a#0", t=0.0, seq=0), ended("a#0", t=0.0), RunEnded(t=0.0)
    )

    assert summary.makespan_seconds == 0.0
    assert summary.gap is None


def test_another_chain_has_nothing_to_compute_again() -> None:
    summary = summarize(
        admitted("a#0", t=0.0, seq=0),
        call("a#0", t=1.0, seconds=1.0, context=100, cached=0, output=10),
        call("a#0", t=2.0, seconds=1.0, context=300, cached=0, output=10, chain=1),
        ended("a#0", t=2.0),
    )

    assert summary.recomputed_tokens == 0


def test_parking_is_neither_service_nor_lost_to_the_critical_path() -> None:
    summary = summarize(
        admitted("a#0", t=0.0, seq=0),
        step("a#0", t=2.0, seconds=2.0),
        call("a#0", t=9.0, seconds=3.0, queue=1.0, parked=4.0),
        ended("a#0", t=9.0),
    )

    assert summary.lower_bound_seconds == 4.0
    assert summary.tail[0].parked_seconds == 4.0


def test_service_time_from_the_engine_wins_over_what_was_seen_from_outside() -> None:
    event = ModelCall(t=5.0, sample_id="a#0", seconds=5.0, service_seconds=2.0, queue_seconds=1.0)

    summary = summarize(admitted("a#0", t=0.0, seq=0), event, ended("a#0", t=5.0))

    assert summary.lower_bound_seconds == 2.0


def test_failed_call_counts_time_and_no_tokens() -> None:
    event = ModelCall(t=5.0, sample_id="a#0", seconds=5.0, error=FailureKind.ENGINE)

    summary = summarize(admitted("a#0", t=0.0, seq=0), event, ended("a#0", t=5.0))

    assert summary.prompt_tokens == 0
    assert summary.tail[0].generate_seconds == 5.0


def test_uncontended_service_times_are_called_so() -> None:
    started = RunStarted(t=0.0, service_times="uncontended", slots={STEP: 2}, order="caas")

    summary = summarize(started, ended("a#0", t=1.0))

    assert summary.bound_kind == "uncontended"
    assert summary.order == "caas"
