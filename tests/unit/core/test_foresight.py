"""What a run is told about lengths changes its orders, and only where it should."""

import pytest

from rolloutkit.actions import ActionSettings
from rolloutkit.admission import AdmissionLimits
from rolloutkit.estimate import History, Recall, ReferenceRates, TaskHistory, Turn
from rolloutkit.estimate.estimator import FIRST_FIT
from rolloutkit.foresight import Foresight
from rolloutkit.protocols import ActionDemand, Demand
from rolloutkit.types import SampleId, Task

EVERYWHERE = {"a"}


def history(*, recall=1.0, **mean_lns):
    return History(
        workload="a",
        rates=ReferenceRates(),
        num_epochs=3,
        num_works=100.0,
        mu=5.0,
        sigma=1.0,
        quantiles=(100.0, 150.0, 200.0),
        recalls=(Recall(round(recall * 100), 100, 400),),
        tasks={name: TaskHistory(mean_ln=mean, count=8) for name, mean in mean_lns.items()},
    )


def foresight(order="remaining", admission="dataset", lane=0.0, **options):
    return Foresight(
        ActionSettings(order=order, fifo_lane=lane), AdmissionLimits(order=admission), **options
    )


def task(name, num_samples=4):
    return Task(task_id=name, num_samples=num_samples)


def action(sample_id, seq):
    return ActionDemand(
        kind="step",
        sample_id=sample_id,
        seq=seq,
        num_turns=0,
        service_seconds=0.0,
        admission_seq=seq,
    )


def arrival(name, index, seq, num_samples=4):
    return Demand(
        sample_id=SampleId(name, index),
        task=task(name, num_samples),
        environment="a",
        seq=seq,
        arrived_at=0.0,
    )


def popped(order):
    demands = []
    while (demand := order.pop(0.0)) is not None:
        demands.append(demand.sample_id)
    return demands


def test_a_sibling_that_ends_late_moves_its_waiting_siblings_up():
    run = foresight(history=history())
    order = run.action_order()
    ids = [SampleId("x", 0), SampleId("x", 1), SampleId("y", 0)]
    for sample_id in ids:
        run.admitted(sample_id, task(sample_id.task_id))
    order.push(action(ids[2], 1), 0.0)
    order.push(action(ids[1], 2), 0.0)

    run.turn_ended(ids[0], Turn(action_seconds=5_000.0))
    run.ended(ids[0], is_finished=True)

    assert popped(order) == [ids[1], ids[2]]


def test_a_restarted_sample_has_everything_before_it_again():
    run = foresight(history=history())
    first = SampleId("x", 0)
    run.admitted(first, task("x"))
    fresh = run._remaining(first)
    run.turn_ended(first, Turn(action_seconds=30.0))
    assert run._remaining(first) != fresh

    run.restarted(first)

    assert run._remaining(first) == fresh


def test_a_pioneer_that_ends_alone_moves_its_group():
    run = foresight("fifo", "pioneers", history=history())
    order = run.admission_order()
    for seq, (name, index) in enumerate([("x", 0), ("y", 0), ("x", 1), ("y", 1)]):
        order.push(arrival(name, index, seq), 0.0)
    pioneers = [order.pop(EVERYWHERE, 0.0).sample_id for _ in range(2)]
    for sample_id in pioneers:
        run.admitted(sample_id, task(sample_id.task_id))

    run.turn_ended(SampleId("y", 0), Turn(action_seconds=5_000.0))
    run.ended(SampleId("y", 0), is_finished=True)

    assert pioneers == [SampleId("x", 0), SampleId("y", 0)]
    assert order.pop(EVERYWHERE, 0.0).sample_id == SampleId("y", 1)


def test_groups_are_ranked_once_the_first_lengths_are_known():
    run = foresight("fifo", "pioneers")
    order = run.admission_order()
    names = [f"t{index}" for index in range(FIRST_FIT)]
    for seq, (index, name) in enumerate((i, name) for i in range(2) for name in names):
        order.push(arrival(name, index, seq, num_samples=2), 0.0)
    for position, name in enumerate(names):
        sample_id = order.pop(EVERYWHERE, 0.0).sample_id
        assert sample_id == SampleId(name, 0)
        run.admitted(sample_id, task(name, 2))
        run.turn_ended(sample_id, Turn(action_seconds=10.0 * (1 + position)))

    for name in names:
        run.ended(SampleId(name, 0), is_finished=True)

    assert order.pop(EVERYWHERE, 0.0).sample_id == SampleId(names[-1], 1)


@pytest.mark.parametrize(("recall", "first"), [(0.9, "long"), (0.3, "short")])
def test_auto_admits_the_longest_first_where_the_guard_trusts_the_estimate(recall, first):
    run = foresight("auto", "auto", history=history(recall=recall, short=4.0, long=6.0))
    order = run.admission_order()
    order.push(arrival("short", 0, 0), 0.0)
    order.push(arrival("long", 0, 1), 0.0)

    assert order.pop(EVERYWHERE, 0.0).sample_id.task_id == first


def test_the_guard_changes_the_order_of_those_that_already_wait():
    verdicts = []
    run = foresight(
        "auto", history=history(short=4.0, long=6.0), lane=1 / 3, on_verdict=verdicts.append
    )
    order = run.action_order()
    run.start()
    for seq, name in enumerate(["short", "long"]):
        run.admitted(SampleId(name, 0), task(name))
        order.push(action(SampleId(name, 0), seq), 0.0)
    run.admitted(SampleId("other", 0), task("other"))

    for _ in range(200):  # nothing queues: there is nothing to order
        run.turn_ended(SampleId("other", 0), Turn(action_seconds=1.0))

    assert [verdict.rule for verdict in verdicts] == ["remaining", "fifo"]
    assert popped(order) == [SampleId("short", 0), SampleId("long", 0)]


def test_only_finished_samples_enter_the_next_history():
    run = foresight("fifo", workload="a")
    for index in range(3):
        run.admitted(SampleId("x", index), task("x"))
        run.turn_ended(SampleId("x", index), Turn(action_seconds=10.0))
    run.ended(SampleId("x", 0), is_finished=True)
    run.ended(SampleId("x", 1), is_finished=False)

    after = run.next_history()

    assert after is not None
    assert after.tasks["x"].count == 1
    assert after.quantiles == (10.0,)


def test_without_a_finished_sample_the_history_stays_as_it_was():
    before = history(x=5.0)

    assert foresight(history=before).next_history() == before
    assert foresight().next_history() is None


def test_work_counts_actions_tokens_and_calls_that_nobody_counted():
    rates = ReferenceRates(decode_tokens_per_second=10.0, prefill_tokens_per_second=100.0)
    turn = Turn(
        action_seconds=1.0,
        model_seconds=50.0,
        wait_seconds=99.0,
        output_tokens=20,
        new_tokens=300,
        uncounted_seconds=0.5,
    )

    assert rates.work(turn) == 1 + 2 + 3 + 0.5


def test_findings_say_when_the_estimate_had_nothing_to_go_by():
    run = foresight("remaining")
    run.admitted(SampleId("x", 0), task("x"))
    run.ended(SampleId("x", 0), is_finished=False)

    assert "the estimate had nothing to go by" in run.findings(1.0).sentence
