"""A run over two SGLang servers that it starts, through the command, as the README shows it."""

import os
from pathlib import Path

import pytest

from rolloutkit.cli import main
from rolloutkit.sinks import read_trajectories
from rolloutkit.types import Status
from tests.servers.places import MODEL, ROOT, SERVERS

pytestmark = [pytest.mark.real_time, pytest.mark.integration_slow, pytest.mark.timeout(500)]

CONFIG = ROOT / "tests" / "servers" / "configs" / "two_sglang.yaml"


def processes_naming(text: str) -> list[str]:
    """Command lines of living processes in which the text stands."""
    found: list[str] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # it has ended
            continue
        if text in command and folder.name != str(os.getpid()):
            found.append(command)
    return found


def test_a_run_starts_two_servers_uses_both_and_leaves_none(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    sglang = ROOT / "tests" / "servers" / "sglang_cpu"
    command = f"[{sglang},{SERVERS / 'sglang'},{MODEL},'{{port}}',--random-seed,'731']"

    status = main(
        [
            "run",
            f"--config={CONFIG}",
            f"engine.launch.command={command}",
            f"engine.launch.log_dir={tmp_path / 'logs'}",
            f"output.dir={tmp_path / 'run'}",
            "environment.limit=2",
            "environment.num_samples=2",
            "limits.max_turns=2",
            "sampling.max_tokens=12",
            "--quiet",
        ]
    )

    assert status == 0
    done = list(read_trajectories(tmp_path / "run" / "trajectories.jsonl"))
    assert [one.status for one in done] == [Status.COMPLETED] * 4
    assert all(one.token_exact and any(one.chains[0].logprobs) for one in done)
    assert len({one.worker for one in done}) == 2
    assert processes_naming("--random-seed 731") == []


def test_a_server_that_cannot_start_ends_the_run_with_its_log(
    tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(ROOT)
    command = f"[{SERVERS / 'sglang'}/bin/python,-c,'import sys; sys.exit(\"no such model\")']"

    status = main(
        [
            "run",
            f"--config={CONFIG}",
            f"engine.launch.command={command}",
            f"engine.launch.log_dir={tmp_path}",
            f"output.dir={tmp_path / 'run'}",
            "--quiet",
        ]
    )

    assert status == 2
    said = capsys.readouterr().err
    assert "engine.launch" in said
    assert "no such model" in said
    assert str(tmp_path / "worker-0.log") in said


def test_servers_that_are_not_there_are_named_before_any_work(
    tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(ROOT)

    status = main(
        [
            "run",
            "engine=sglang",
            "engine.workers=[http://127.0.0.1:9]",
            "renderer.tokenizer=bundled",
            f"output.dir={tmp_path / 'run'}",
            "--quiet",
        ]
    )

    assert status == 2
    assert "http://127.0.0.1:9" in capsys.readouterr().err
