"""Recipes run as their first lines say, on the simulated engine."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

RECIPES = Path(__file__).parents[2] / "recipes"
SIMULATED = ("engine=simulated", "run.time=virtual", "environment.tool_documents=compact")

pytestmark = pytest.mark.slow


def run_recipe(name: str, *arguments: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, RECIPES / name, *arguments],
        check=False,
        capture_output=True,
        cwd=folder,
        env={**os.environ, "HYDRA_FULL_ERROR": "1"},
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_bfcl_eval_writes_the_outputs_of_a_run(tmp_path):
    printed = run_recipe(
        "bfcl_eval.py",
        *SIMULATED,
        "environment.categories=[multi_turn_base]",
        "environment.limit=1",
        "hydra.run.dir=mine",
        folder=tmp_path,
    )

    assert printed.startswith("1 samples: 1 completed")
    assert {path.name for path in (tmp_path / "mine").iterdir()} >= {
        "config.yaml",
        "summary.json",
        "timeline.json",
        "report.html",
        "trace.jsonl.gz",
        "trajectories.jsonl",
    }


def test_bfcl_eval_multirun_gives_each_job_its_own_directory(tmp_path):
    run_recipe(
        "bfcl_eval.py",
        "-m",
        *SIMULATED,
        "environment.limit=1,2",
        "hydra.sweep.dir=sweep",
        folder=tmp_path,
    )

    summaries = [
        msgspec.json.decode((tmp_path / "sweep" / job / "summary.json").read_bytes())
        for job in ("0", "1")
    ]
    assert [summary["num_completed"] for summary in summaries] == [1, 2]


def test_bad_config_of_a_recipe_is_one_line_and_exit_code_2(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            RECIPES / "bfcl_eval.py",
            "environment.limit=0",
            f"hydra.run.dir={tmp_path / 'job'}",
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )

    assert done.returncode == 2
    assert done.stderr == "error: environment.limit: expected `int` >= 1, got 0\n"
