"""Ctrl-C against a real process: everything is written, and nothing is left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

NUM_SAMPLES = 30
SCRIPTED = (
    "engine=simulated",
    "environment=scripted",
    "renderer.name=none",
    f"environment.num_tasks={NUM_SAMPLES}",
    "environment.set_up_seconds.mean=0",
    "environment.close_seconds.mean=0.2",
    "admission.max_samples=10",
    "output.dir=mine",
)


@pytest.fixture(autouse=True)
def heeded_interrupts():
    """Jobs in a shell's background inherit SIGINT ignored, and hand that on to their children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def start(tmp_path):
    processes = []

    def start(*arguments: str) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-m", "rolloutkit", "run", *arguments],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def wait_for_samples(folder: Path) -> None:
    """Wait until samples live: the trace is flushed when the run starts."""
    deadline = time.monotonic() + 15
    while not (folder / "mine" / "trace.jsonl.gz").exists():
        assert time.monotonic() < deadline, "the run did not start"
        time.sleep(0.05)
    time.sleep(1.0)


def ends(folder: Path) -> Counter:
    lines = (folder / "mine" / "trajectories.jsonl").read_text().splitlines()
    trajectories = [json.loads(line) for line in lines]
    assert sorted(it["task_id"] for it in trajectories) == sorted(
        f"task-{index}" for index in range(NUM_SAMPLES)
    )
    return Counter(it["cancel_reason"] or it["status"] for it in trajectories)


def assert_complete(folder: Path, process: subprocess.Popen) -> None:
    names = {path.name for path in (folder / "mine").iterdir()}
    assert {"config.yaml", "trace.jsonl.gz", "summary.json", "timeline.json"} <= names
    summary = json.loads((folder / "mine" / "summary.json").read_text())
    assert summary["trace_complete"]
    assert summary["num_samples"] == NUM_SAMPLES
    with pytest.raises(ProcessLookupError):  # its group is empty
        os.killpg(process.pid, 0)


def test_first_interrupt_lets_the_living_samples_finish(start, tmp_path):
    process = start(
        *SCRIPTED,
        "environment.num_turns={mean: 2, sigma: 0}",
        "engine.decode_tokens_per_second=500",
    )
    wait_for_samples(tmp_path)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=15)

    assert process.returncode == 130
    assert "samples may finish within 60 s; interrupt again to stop them" in stderr
    assert "Traceback" not in stderr
    counts = ends(tmp_path)
    assert counts["not_started"] >= 1
    assert counts["completed"] == NUM_SAMPLES - counts["not_started"]
    assert_complete(tmp_path, process)


def test_grace_limit_ends_what_does_not_finish(start, tmp_path):
    process = start(*SCRIPTED, "environment.num_turns.mean=500", "limits.interrupt_grace=0.5")
    wait_for_samples(tmp_path)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=15)

    assert process.returncode == 130
    assert ends(tmp_path) == {"interrupted": 10, "not_started": 20}
    assert_complete(tmp_path, process)


def test_second_interrupt_cancels_and_still_writes_everything(start, tmp_path):
    process = start(*SCRIPTED, "environment.num_turns.mean=500", "--quiet")
    wait_for_samples(tmp_path)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    started = time.monotonic()
    _, stderr = process.communicate(timeout=15)

    assert process.returncode == 130
    assert time.monotonic() - started < 10
    assert "interrupted again" in stderr
    assert ends(tmp_path) == {"interrupted": 10, "not_started": 20}
    assert_complete(tmp_path, process)


def test_interrupt_before_the_first_sample_writes_nothing(start, tmp_path):
    (tmp_path / "slow_engine.py").write_text(
        "import asyncio, pathlib\n"
        "class Engine:\n"
        "    async def __aenter__(self):\n"
        "        pathlib.Path('starting').touch()\n"
        "        await asyncio.sleep(60)\n"
        "    async def __aexit__(self, *_): pass\n"
    )
    (tmp_path / "own.yaml").write_text(
        "defaults: [base, {environment: scripted}, _self_]\n"
        "engine: {target: 'slow_engine:Engine'}\n"
    )
    process = start("--config", "own.yaml", "output.dir=mine")
    deadline = time.monotonic() + 15
    while not (tmp_path / "starting").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=15)

    assert process.returncode == 130
    assert "Traceback" not in stderr
    assert not (tmp_path / "mine").exists()
