"""A recorded run and its replay: the same under the same settings, byte for byte the same twice."""

import json
from pathlib import Path

import pytest

from rolloutkit.cli import main
from rolloutkit.config.replay import load_replay
from rolloutkit.record.lives import lives_of_chains
from rolloutkit.replay import Replay, bound_seconds, summarize_replay
from rolloutkit.types import SampleId
from tests.benchmarks.policy.scenarios import chains_of, scenario_file
from tests.unit.replay.recordings import turn, write_lines

SCRIPTED = ("engine=simulated", "environment=scripted", "renderer.name=none", "run.time=virtual")
LOAD = ("environment.num_tasks=6", "environment.num_samples=4", "engine.parallelism=5")
SETTINGS = ("actions.step.slots=3", "actions.score.slots=1", "admission.max_samples=12")
NANOSECOND = 1e-9  # durations are rounded to it; a run adds up hundreds of them

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def somewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def outcome(capsys, *arguments):
    code = main([*arguments, "--json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return json.loads(captured.out)


def record(capsys, *arguments):
    return outcome(capsys, "run", *SCRIPTED, *LOAD, *SETTINGS, "output.dir=rec", *arguments)


def replay(capsys, *arguments, to="again"):
    options = ("trace=rec/trace.jsonl.gz", "engine=recorded", f"output.dir={to}")
    return outcome(capsys, "replay", *options, *SETTINGS, *arguments)


@pytest.mark.parametrize("order", ["fifo", "caas", "remaining", "oldest", "auto"])
def test_replay_under_the_same_settings_takes_as_long_as_the_recorded_run(capsys, order):
    recorded = record(capsys, f"actions.order={order}")

    again = replay(capsys, f"actions.order={order}")

    assert again["makespan_seconds"] == pytest.approx(
        recorded["makespan_seconds"], abs=1000 * NANOSECOND
    )
    for key in ("num_completed", "num_turns", "output_tokens", "score_mean", "binding_resource"):
        assert again[key] == pytest.approx(recorded[key])


def test_failures_and_retries_are_replayed_too(capsys):
    faults = ("environment.step_faults.crash=0.1", "environment.set_up_faults.crash=0.1")
    recorded = record(capsys, *faults, "run.max_failed=1")

    again = replay(capsys, "run.max_failed=1")

    assert recorded["num_failed"] > 0
    for key in ("num_failed", "failure_kinds", "stop_reasons"):
        assert again[key] == recorded[key]
    assert again["makespan_seconds"] == pytest.approx(
        recorded["makespan_seconds"], abs=1000 * NANOSECOND
    )


def test_endings_by_a_limit_are_kept(capsys):
    recorded = record(capsys, "limits.max_turns=3")

    assert recorded["stop_reasons"]["max_turns"] > 20
    assert replay(capsys)["stop_reasons"] == recorded["stop_reasons"]


def test_other_settings_give_another_makespan(capsys):
    recorded = record(capsys, "actions.order=fifo")

    faster = replay(capsys, "actions.order=fifo", "actions.step.slots=6")

    assert faster["makespan_seconds"] < recorded["makespan_seconds"]


@pytest.mark.parametrize("engine", ["recorded", "sim_reference", "sim_sglang"])
def test_two_replays_write_the_same_bytes(capsys, engine):
    record(capsys)
    options = (f"engine={engine}", "batch.num_groups=4", "batch.num_earlier=4")

    replay(capsys, *options, to="one")
    replay(capsys, *options, to="two")

    one = {path.name: path.read_bytes() for path in Path("one").iterdir()}
    assert one == {path.name: path.read_bytes() for path in Path("two").iterdir()}
    assert len(one) == 7


def test_cut_trace_is_replayed_as_far_as_samples_ended(capsys):
    record(capsys)
    whole = Path("rec/trace.jsonl.gz").read_bytes()
    Path("cut.gz").write_bytes(whole[: len(whole) // 2])

    code = main(["replay", "trace=cut.gz", "engine=recorded", "output.dir=cut", "--json"])

    captured = capsys.readouterr()
    assert code == 0
    assert "samples that had not ended by themselves" in captured.err
    summary = json.loads(captured.out)
    assert 0 < summary["num_completed"] < 24
    assert summary["num_failed"] == 0


def test_comparison_pairs_the_same_batches_and_writes_its_table(capsys, tmp_path):
    documents = [
        {"trace_id": str(n), "turns": [turn(tool_seconds=1.0 + n)] * (1 + n % 5)} for n in range(20)
    ]
    write_lines(tmp_path / "in.gz", *documents)
    grid = ("--compare", "actions.order=fifo,clairvoyant", "--compare", "actions.step.slots=2,4")
    options = ("trace=in.gz", "batch.num_groups=4", "batch.group_size=2", "engine=uncontended")

    arguments = ("replay", *grid, "--seeds", "3", *options)
    alone = outcome(capsys, *arguments, "--workers", "1", "output.dir=alone")
    shared = outcome(capsys, *arguments, "--workers", "2", "output.dir=shared")

    assert alone == shared
    assert json.loads(Path("shared/compare.json").read_text()) == shared
    assert Path("shared/compare.md").read_text().count("actions.order=") == 4
    assert [one["settings"]["actions.step.slots"] for one in shared["variants"]] == list("2424")
    assert shared["variants"][0]["change_percent"] is None
    assert shared["variants"][1]["change_percent"]["mean"] < -20
    assert shared["seeds"] == [0, 1, 2]


@pytest.mark.parametrize(
    ("order", "seconds"), [("fifo", 1457.0), ("caas", 1508.8), ("clairvoyant", None)]
)
def test_lives_made_of_chains_take_what_the_policy_study_says(order, seconds):
    scenario = scenario_file().scenarios["X1 fixed-mini"]
    chains = chains_of(scenario.fam)
    lives = {
        SampleId(f"group-{index // 8}", index % 8): lives_of_chains([chains[line]]).lives[0]
        for index, line in enumerate(scenario.batches["100"].samples)
    }
    overrides = [
        "trace=any",
        "engine=uncontended",
        f"actions.order={order}",
        f"actions.step.slots={scenario.slots}",
        f"admission.max_samples={scenario.n_ref}",
    ]
    replay = Replay(
        config=load_replay("replay", overrides),
        lives=lives,
        parallelism=None,
        history=None,
        num_left_out=0,
    )

    summary = summarize_replay(replay)
    makespan = summary.makespan_seconds

    assert bound_seconds(replay, summary) == pytest.approx(1006, abs=0.5)
    if seconds is None:  # the study's clairvoyance orders admission too
        assert makespan < 1.05 * 1032.9
    else:
        assert makespan == pytest.approx(seconds, rel=0.001)
