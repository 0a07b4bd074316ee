"""Kept concurrency, on simulated SGLang servers whose caches are too small for those alive."""

import json
from pathlib import Path

import pytest

from rolloutkit.cli import main
from rolloutkit.record.events import SampleParked, SampleResumed, WindowChanged
from rolloutkit.record.trace import read_trace

CROWDED = (
    "engine=sim_sglang",
    "engine.memory_bytes=8e9",
    "environment=scripted",
    "environment.num_tasks=20",
    "environment.num_turns={mean: 12}",
    "environment.prompt_tokens={mean: 2000}",
    "environment.observation_tokens={mean: 800}",
    "environment.step_seconds={mean: 20, sigma: 0.5}",
    "run.time=virtual",
)


@pytest.fixture(autouse=True)
def somewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def outcome(capsys, *settings, to="out"):
    code = main(["run", "--quiet", "--json", *CROWDED, f"output.dir={to}", *settings])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return json.loads(captured.out)


def test_a_window_that_is_too_wide_is_cut_and_nobody_is_lost(capsys):
    adaptive = ("admission.control=adaptive", "admission.reference=16")

    crowded = outcome(capsys, "admission.max_samples=16", to="crowded")
    cut = outcome(capsys, "admission.max_samples=16", *adaptive, to="cut")

    events = list(read_trace(Path("cut/trace.jsonl.gz")))
    windows = [event for event in events if isinstance(event, WindowChanged)]
    assert windows[0].cause == "waste"
    assert windows[0].window == 12
    assert all(8 <= event.window <= 16 for event in windows)
    assert any(isinstance(event, SampleParked) for event in events)
    assert sum(isinstance(event, SampleParked) for event in events) == sum(
        isinstance(event, SampleResumed) for event in events
    )
    assert cut["num_completed"] == crowded["num_completed"] == cut["num_samples"]
    assert cut["recomputed_tokens"] < crowded["recomputed_tokens"]
    assert cut["windows"][0]["num_cuts"] >= 1


def test_the_reference_bounds_the_samples_alive_and_a_narrow_window_grows(capsys):
    few = ("admission.reference=2", "engine.memory_bytes=80e9", "environment.num_tasks=30")

    outcome(capsys, "admission.control=reference", *few, to="fixed")
    grown = outcome(capsys, "admission.control=adaptive", *few, to="grown")

    assert not json.loads(Path("fixed/summary.json").read_text())["windows"]
    assert grown["windows"] == [
        {"worker": "worker-0", "window": 3, "num_cuts": 0, "last_cause": "room"}
    ]


def test_two_adaptive_runs_write_the_same_bytes(capsys):
    adaptive = ("admission.control=adaptive", "admission.reference=12")

    outcome(capsys, *adaptive, to="one")
    outcome(capsys, *adaptive, to="two")

    one = {path.name: path.read_bytes() for path in Path("one").iterdir()}
    two = {path.name: path.read_bytes() for path in Path("two").iterdir()}
    assert {name: data for name, data in one.items() if name != "config.yaml"} == {
        name: data for name, data in two.items() if name != "config.yaml"
    }


def test_an_adaptive_run_without_a_reference_is_refused(capsys):
    code = main(["run", "--quiet", *CROWDED, "admission.control=adaptive"])

    assert code == 2
    assert not Path("runs").exists()
    assert "admission.control=adaptive needs admission.reference" in capsys.readouterr().err
