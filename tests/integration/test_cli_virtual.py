from pathlib import Path

import msgspec

from rolloutkit.cli import main
from rolloutkit.estimate import ReferenceRates, read_history
from rolloutkit.sinks import read_trajectories

LOAD = (
    "engine=simulated",
    "environment=scripted",
    "renderer.name=none",
    "environment.num_tasks=20",
    "environment.num_samples=2",
    "environment.step_faults.crash=0.02",
    "environment.step_faults.hang=0.02",
    "actions.step.slots=3",
    "actions.order=caas",
    "limits.action=20",
)
COSTS = ("scheduler_cpu_seconds", "event_loop_lag_seconds")


def outputs(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_two_virtual_runs_with_one_seed_write_the_same_bytes(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("first", "second"):
        assert main(["run", *LOAD, "run.time=virtual", "run.seed=7", f"output.dir={name}"]) == 0

    first, second = outputs(tmp_path / "first"), outputs(tmp_path / "second")
    assert set(first) == {
        "config.yaml",
        "trajectories.jsonl",
        "trace.jsonl.gz",
        "summary.json",
        "timeline.json",
        "report.html",
        "history.json",
    }
    summaries = [msgspec.json.decode(files.pop("summary.json")) for files in (first, second)]
    for summary in summaries:
        for name in COSTS:
            summary.pop(name)
    assert first == second
    assert summaries[0] == summaries[1]


def test_a_run_leaves_the_history_that_the_next_one_reads(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    rates = ReferenceRates()
    main(["run", *LOAD, "run.time=virtual", "output.dir=first"])

    again = ["actions.order=remaining", "history.path=first/history.json", "output.dir=second"]
    assert main(["run", *LOAD, "run.time=virtual", *again]) == 0

    first, second = (
        read_history(tmp_path / name / "history.json", "scripted", rates)
        for name in ("first", "second")
    )
    assert (first.num_epochs, second.num_epochs) == (1, 2)
    assert second.tasks.keys() >= first.tasks.keys()
    assert "explains" in capsys.readouterr().out


def test_every_sample_is_written_exactly_once_whatever_becomes_of_it(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    main(["run", *LOAD, "run.time=virtual", "output.dir=mine", "--quiet"])

    written = [
        str(it.sample_id) for it in read_trajectories(tmp_path / "mine" / "trajectories.jsonl")
    ]

    assert sorted(written) == sorted(f"task-{i}#{j}" for i in range(20) for j in range(2))


def test_a_sample_of_a_run_is_explained(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    main(["run", *LOAD, "run.time=virtual", "admission.max_samples=12", "output.dir=mine"])
    capsys.readouterr()

    assert main(["explain", "mine", "task-19#1"]) == 0

    told = capsys.readouterr().out
    assert told.startswith("task-19#1: ")
    assert "admission: waited" in told
    assert "before it: " in told
    assert main(["explain", "mine", "task-99#0"]) == 2
    assert main(["explain", "nowhere", "task-99#0"]) == 2
    assert capsys.readouterr().err.count("\n") == 2


def test_report_of_several_runs_compares_them(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    for order in ("fifo", "caas"):
        main(["run", *LOAD, "run.time=virtual", f"actions.order={order}", f"output.dir={order}"])
    capsys.readouterr()

    assert main(["report", "fifo", "caas", "--html", "both.html"]) == 0
    told = capsys.readouterr().out
    assert main(["report", "fifo", "caas", "--json"]) == 0
    summaries = msgspec.json.decode(capsys.readouterr().out)

    assert told.splitlines()[0].split() == ["fifo", "caas"]
    assert (tmp_path / "both.html").stat().st_size > 10_000
    assert {name: summary["order"] for name, summary in summaries.items()} == {
        "fifo": "fifo",
        "caas": "caas",
    }


def test_page_for_a_directory_that_does_not_exist_is_refused(tmp_path, capsys):
    assert main(["report", str(tmp_path), "--html", str(tmp_path / "none" / "a.html")]) == 2

    assert "--html: no directory" in capsys.readouterr().err


def test_workers_are_routed_by_the_policy_of_the_config_and_counted(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    overrides = [
        "engine=sim_reference",
        "engine.num_workers=3",
        "environment=scripted",
        "environment.num_tasks=12",
        "renderer.name=none",
        "run.time=virtual",
        "output.dir=out",
    ]

    assert main(["run", *overrides, "router.policy=round_robin"]) == 0

    summary = msgspec.json.decode((tmp_path / "out" / "summary.json").read_bytes())
    workers = summary["workers"]
    assert [one["worker"] for one in workers] == ["worker-0", "worker-1", "worker-2"]
    assert all(one["num_calls"] > 0 for one in workers)
    assert summary["num_moves"] == sum(one["num_arrivals"] for one in workers) > 0
    assert "samples moved" in capsys.readouterr().out


def test_an_unknown_routing_policy_is_refused_by_name(capsys):
    assert main(["run", "router.policy=stiky", "engine=simulated"]) == 2

    assert "router.policy" in capsys.readouterr().err
