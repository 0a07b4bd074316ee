"""Statistics of workloads: weights of time, pauses, what recordings say."""

import math

import pytest

from rolloutkit.errors import ConfigError
from rolloutkit.record.imports import ImportOptions
from rolloutkit.record.numeric import Fills
from rolloutkit.record.workload import read_workload
from rolloutkit.resources.workload import (
    Declared,
    Pauses,
    TurnSizes,
    WorkloadMeter,
    declared,
)
from tests.unit.replay.recordings import act, call, life, turn, write, write_lines


def test_contexts_are_weighted_by_the_time_spent_there():
    meter = WorkloadMeter()

    meter.add(
        [TurnSizes(100, 100, 10, 1.0), TurnSizes(1_000, 890, 30, 9.0), TurnSizes(1_100, 70, 10, 0)]
    )
    workload = meter.workload()

    assert workload.idle_context == pytest.approx((1 * 110 + 9 * 1_030) / 10)
    assert workload.running_context == pytest.approx((10 * 105 + 30 * 1_015 + 10 * 1_105) / 50)
    assert workload.resume_context == (1_000 + 1_100) / 2
    assert workload.final_context == 1_110
    assert workload.pauses.mean == 5.0
    assert (workload.turns, workload.new_tokens, workload.output_tokens) == (3, 1_060 / 3, 50 / 3)


def test_old_samples_are_forgotten():
    meter = WorkloadMeter(memory=2)
    for _ in range(40):
        meter.add([TurnSizes(100, 100, 10, 0.0)])
    for _ in range(2):
        meter.add([TurnSizes(300, 300, 10, 0.0)])

    assert meter.workload().final_context == pytest.approx((110 + 310) / 2, rel=0.01)


def test_a_meter_without_samples_says_so():
    meter = WorkloadMeter()
    meter.add([])

    with pytest.raises(ConfigError, match="no sample with a turn was seen"):
        meter.workload()


@pytest.mark.parametrize("shape", ["fixed", "exponential", "lognormal"])
def test_a_declared_distribution_keeps_its_mean(shape):
    pauses = Pauses.of(20.0, shape, 2.0)

    assert pauses.mean == pytest.approx(20)
    assert pauses.mean_within(1e9) == pytest.approx(20)


def test_exponential_pauses_end_as_they_should():
    pauses = Pauses.of(20.0, "exponential")

    assert pauses.share_within(20) == pytest.approx(1 - math.exp(-1), abs=0.01)
    assert pauses.mean_within(20) == pytest.approx(20 * (1 - math.exp(-1)), rel=0.01)
    assert pauses.quantile(0.5) == pytest.approx(20 * math.log(2), rel=0.02)


def test_a_group_keeps_its_prefix_once():
    numbers = Declared(turns=2, first_prompt=1_000, new_tokens=10, output_tokens=10, act_seconds=1)

    alone, four = declared(numbers), declared(numbers, group_size=4, shared_prefix=800)

    assert four.private_idle == alone.private_idle - 800 * 3 / 4


def test_a_single_turn_has_no_pauses():
    workload = declared(Declared(turns=1, act_seconds=50))

    assert workload.pauses.mean == 0
    assert workload.resume_context == workload.final_context


def test_a_recorded_run_gives_turns_and_pauses(tmp_path):
    recorded = life(
        "a#0",
        call("a#0", 1.0, context_tokens=100, new_tokens=100, output_tokens=10),
        act("a#0", 4.0, seconds=3.0),
        call("a#0", 5.0, context_tokens=150, new_tokens=40, output_tokens=20),
    )
    path = write(tmp_path / "trace.jsonl.gz", recorded)

    workload = read_workload(path, ImportOptions())

    assert (workload.turns, workload.new_tokens, workload.output_tokens) == (2, 70, 15)
    assert workload.pauses.mean == 3.0
    assert workload.idle_context == 110


def test_actions_side_by_side_count_once(tmp_path):
    recorded = life(
        "a#0",
        call("a#0", 1.0),
        act("a#0", 4.0, seconds=3.0),
        act("a#0", 3.0, seconds=2.0),
        call("a#0", 5.0),
    )

    workload = read_workload(write(tmp_path / "t.jsonl.gz", recorded), ImportOptions())

    assert workload.pauses.mean == 3.0


def test_groups_are_counted(tmp_path):
    lives = [life(f"a#{index}", call(f"a#{index}", 1.0)) for index in range(3)]

    assert read_workload(write(tmp_path / "t.jsonl.gz", *lives), ImportOptions()).group_size == 3


def test_a_file_of_numbers_is_read(tmp_path):
    line = {"trace_id": "x", "turns": [turn(), turn(), turn()]}

    workload = read_workload(write_lines(tmp_path / "n.jsonl.gz", line), ImportOptions())

    assert (workload.turns, workload.pauses.mean, workload.final_context) == (3, 1.5, 330)


def test_message_logs_are_read_with_what_the_server_counted(tmp_path):
    def said(prompt, completion):
        usage = {"prompt_tokens": prompt, "completion_tokens": completion}
        return {"role": "assistant", "content": "x", "usage": usage}

    log = [
        {"role": "user", "content": "hi"},
        said(50, 10),
        {"role": "tool", "content": "y"},
        said(90, 20),
    ]
    path = write_lines(tmp_path / "log.jsonl.gz", {"messages": log})

    workload = read_workload(path, ImportOptions(fills=Fills(seconds=2.0)))

    assert (workload.turns, workload.new_tokens, workload.final_context) == (2, 40, 110)
    with pytest.raises(ConfigError, match="fill_seconds=S"):
        read_workload(path, ImportOptions())


def test_a_recording_without_token_counts_is_refused(tmp_path):
    silent = life("a#0", call("a#0", 1.0, context_tokens=0, new_tokens=0))

    with pytest.raises(ConfigError, match="holds no token counts"):
        read_workload(write(tmp_path / "t.jsonl.gz", silent), ImportOptions())


def test_a_file_that_is_no_trace_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="line 1: no trace"):
        read_workload(write_lines(tmp_path / "t.jsonl.gz", "nonsense"), ImportOptions())


def test_output_tokens_that_nobody_counted_are_assumed_or_refused(tmp_path):
    path = write(tmp_path / "t.jsonl.gz", life("a#0", call("a#0", 1.0, output_tokens=None)))

    with pytest.raises(ConfigError, match="line 4: output_tokens is not recorded: give fill_tok"):
        read_workload(path, ImportOptions())
    assert read_workload(path, ImportOptions(fills=Fills(tokens=7))).output_tokens == 7
