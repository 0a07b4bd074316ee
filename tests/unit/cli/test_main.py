import json
import subprocess
import sys
import time

import pytest

from rolloutkit.cli import main
from rolloutkit.cli.exit_codes import ExitCode

VIRTUAL = ("engine=simulated", "environment=scripted", "renderer.name=none", "run.time=virtual")


@pytest.fixture(autouse=True)
def somewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]])
def test_without_a_verb_the_verbs_are_listed(capsys, argv):
    assert main(argv) == ExitCode.OK
    assert {"run", "doctor", "report"} <= set(capsys.readouterr().out.split())


def test_help_and_version_come_at_once():
    script = "import sys, rolloutkit.cli as c; c.main(['--help']); sys.exit('hydra' in sys.modules)"
    started = time.process_time()
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True)

    assert done.returncode == 0
    assert time.process_time() - started < 0.5


def test_version_is_told(capsys):
    assert main(["--version"]) == ExitCode.OK
    assert capsys.readouterr().out.startswith("rolloutkit 0.")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["walk"],
            (
                "error: unknown verb: expected one of "
                "run, doctor, explain, plan, replay, report, trace, got 'walk'"
            ),
        ),
        (["run", "--fast"], "error: unrecognized arguments: --fast: see rolloutkit run --help"),
        (
            ["report"],
            "error: the following arguments are required: DIR: see rolloutkit report --help",
        ),
        (
            ["report", "nowhere"],
            "error: nowhere holds no trace.jsonl.gz: give the output directory",
        ),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(capsys, argv, message):
    assert main(argv) == ExitCode.BAD_INPUT

    captured = capsys.readouterr()
    assert captured.err.startswith(message)
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_options_may_stand_among_overrides(capsys):
    code = main(["run", *VIRTUAL, "--json", "run.seed=3", "--quiet"])

    assert code == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["num_completed"] == 4


def test_outputs_go_to_a_directory_named_by_config_and_time(tmp_path, capsys):
    assert main(["run", *VIRTUAL]) == ExitCode.OK

    (directory,) = (tmp_path / "runs").iterdir()
    assert directory.name.startswith("quickstart-20")
    assert f"rolloutkit report runs/{directory.name}" in capsys.readouterr().out


def test_report_shows_the_summary_again(capsys):
    main(["run", *VIRTUAL, "output.dir=mine", "--json"])
    first = capsys.readouterr().out

    assert main(["report", "mine", "--json"]) == ExitCode.OK
    assert capsys.readouterr().out == first
    assert main(["report", "mine"]) == ExitCode.OK
    assert capsys.readouterr().out.startswith("4 samples: 4 completed, 0 failed, 0 cancelled\n")


def test_too_many_failures_make_the_exit_code_1_and_say_so(capsys, tmp_path):
    crashing = ("environment.step_faults.crash=1", "retry.max_attempts=1", "output.dir=mine")

    assert main(["run", *VIRTUAL, *crashing]) == ExitCode.FAILED

    captured = capsys.readouterr()
    assert captured.err == (
        "error: 4 of 4 samples failed, more than run.max_failed of 0.5 allows: "
        "see trajectories.jsonl for why\n"
    )
    assert "4 samples: 0 completed, 4 failed" in captured.out
    assert main(["run", *VIRTUAL, *crashing[:2], "run.max_failed=1"]) == ExitCode.OK


def test_an_open_circuit_breaker_is_exit_code_1(capsys):
    crashing = ("environment.step_faults.crash=1", "environment.num_tasks=100", "output.dir=mine")

    assert main(["run", *VIRTUAL, *crashing, "--quiet"]) == ExitCode.FAILED

    captured = capsys.readouterr()
    assert "error: all of the first 10 samples failed, so the run stopped" in captured.err
    assert "circuit_open" in captured.out


def test_a_run_that_reaches_its_deadline_is_exit_code_1(capsys):
    assert main(["run", *VIRTUAL, "limits.run=3", "output.dir=mine"]) == ExitCode.FAILED
    assert capsys.readouterr().err == "error: the run ended early: deadline\n"


def test_doctor_shows_what_it_found(capsys):
    assert main(["doctor", *VIRTUAL]) == ExitCode.OK
    assert "4 tasks, 4 samples" in capsys.readouterr().out

    assert main(["doctor", *VIRTUAL, "tasks.file=none.jsonl", "--json"]) == ExitCode.BAD_INPUT
    checks = json.loads(capsys.readouterr().out)
    assert {"name": "environment", "verdict": "ok", "message": "scripted"} in checks
    assert [check["name"] for check in checks if check["verdict"] == "fail"] == ["tasks"]


def test_doctor_finds_an_engine_that_does_not_open(capsys, tmp_path, monkeypatch):
    (tmp_path / "broken_engine.py").write_text(
        "class Engine:\n"
        "    async def __aenter__(self): raise OSError('no GPU')\n"
        "    async def __aexit__(self, *_): pass\n"
    )
    (tmp_path / "own.yaml").write_text(
        "defaults: [base, {environment: scripted}, _self_]\n"
        "engine: {target: 'broken_engine:Engine'}\n"
    )
    monkeypatch.setattr(sys, "path", list(sys.path))

    assert main(["doctor", "--config", "own.yaml"]) == ExitCode.BAD_INPUT
    assert "engine: OSError: no GPU" in capsys.readouterr().out
