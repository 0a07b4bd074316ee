import msgspec
import pytest

from rolloutkit.report.advice import advise, verdict
from rolloutkit.report.spans import State
from rolloutkit.report.statistics import RunStatistics
from rolloutkit.report.summary import Summary


def summary(**figures: object) -> Summary:
    return msgspec.structs.replace(RunStatistics().summary(), **figures)


def seconds(**by_state: float) -> list[float]:
    times = [0.0] * len(State)
    for name, value in by_state.items():
        times[State[name.upper()]] = value
    return times


@pytest.mark.parametrize(
    ("state", "remedy"),
    [
        ("admission", "more samples alive"),
        ("parked", "more memory"),
        ("engine_queue", "more parallelism"),
        ("slot", "more slots"),
    ],
)
def test_largest_wait_names_its_remedy(state: str, remedy: str) -> None:
    said = advise(seconds(**{state: 20.0}, generating=30.0), summary())

    assert said.startswith("Waited 20.0 s ")
    assert f"Would help: {remedy}" in said


def test_more_samples_are_not_advised_where_a_pool_was_full() -> None:
    said = advise(seconds(admission=20.0), summary(environment_utilization=0.8))

    assert "not more samples alive, since the environment was 80% busy" in said


def test_sample_that_hardly_waited_is_told_its_work() -> None:
    said = advise(seconds(acting=98.0, slot=2.0), summary())

    assert said.startswith("Hardly waited: 98% of its time went into acting.")


def test_verdict_tells_what_could_be_gained_at_most() -> None:
    run = summary(
        gap=1.25, makespan_seconds=50.0, lower_bound_seconds=40.0, binding_resource="engine"
    )

    assert verdict(run) == (
        "At most 20% of the makespan was avoidable: the work of the engine alone takes 40.0 s."
    )


def test_verdict_of_a_run_at_its_bound_says_that_only_capacity_helps() -> None:
    run = summary(
        gap=1.01, makespan_seconds=40.4, lower_bound_seconds=40.0, binding_resource="critical path"
    )

    assert verdict(run).startswith("As fast as the work allows: the longest sample's own work")
