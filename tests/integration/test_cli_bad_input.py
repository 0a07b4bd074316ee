"""Whatever a user gets wrong: one line on stderr, exit code 2, and nothing is written."""

from pathlib import Path

import pytest

from rolloutkit.cli import main
from rolloutkit.estimate import ReferenceRates, next_history, write_history
from rolloutkit.types import SampleId

SCRIPTED = ("engine=simulated", "environment=scripted", "renderer.name=none", "run.time=virtual")


@pytest.fixture(autouse=True)
def files(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.jsonl").write_text('{"task_id": "a"}\n{"task_id": \n')
    (tmp_path / "doubled.jsonl").write_text(
        '{"task_id": "a"}\n{"task_id": "b"}\n{"task_id": "a"}\n'
    )
    other = next_history(None, "swe", ReferenceRates(), {SampleId("a", 0): 1.0})
    assert other is not None
    write_history(tmp_path / "other.json", other)
    (tmp_path / "model.gguf").write_bytes(b"GGUF, but not really")
    return tmp_path


def snapshot(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["limits.acton=3"], "limits.acton: unknown key: did you mean 'action'?"),
        (["admission.max_samples=0"], "admission.max_samples: expected `int` >= 1, got 0"),
        (["engine=llamacpp", "engine.model=none.gguf", "run.time=real"], "no such file: none.gguf"),
        (
            ["engine=llamacpp", "engine.model=model.gguf", "engine.sha256=abc", "run.time=real"],
            "model.gguf has sha256 ",
        ),
        (["tasks.file=broken.jsonl"], "broken.jsonl:2: not a task: "),
        (["tasks.file=doubled.jsonl"], "doubled.jsonl:3: task_id 'a' is that of line 1 too"),
        (
            ["environment.target=nowhere:Class"],
            "environment.target: 'nowhere:Class' cannot be imported",
        ),
        (["history.path=none.json"], "history.path: cannot read none.json: No such file"),
        (["history.path=broken.jsonl"], "history.path: broken.jsonl is no history file: "),
        (["history.path=other.json"], "other.json is of workload 'swe', this run is 'scripted'"),
        (["actions.order=clairvoyant"], "actions.order=clairvoyant needs true lengths"),
        (["admission.order=clairvoyant"], "admission.order=clairvoyant needs true lengths"),
        (["actions.fifo_lane=2"], "actions.fifo_lane: expected `float` <= 1.0, got 2"),
        (["output.dir=broken.jsonl"], "output.dir: not a directory: broken.jsonl"),
    ],
)
def test_mistake_is_one_line_and_changes_nothing(capsys, files, arguments, message):
    before = snapshot(files)

    code = main(["run", *SCRIPTED, *arguments])

    captured = capsys.readouterr()
    assert code == 2
    assert captured.err.startswith("error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert snapshot(files) == before


def test_directory_of_another_run_is_refused_and_stays_as_it_is(capsys, files):
    assert main(["run", *SCRIPTED, "output.dir=mine"]) == 0
    before = snapshot(files)
    capsys.readouterr()

    code = main(["run", *SCRIPTED, "output.dir=mine", "run.seed=5"])

    assert code == 2
    assert capsys.readouterr().err == (
        "error: output.dir: mine holds another run (config.yaml): choose a new directory\n"
    )
    assert snapshot(files) == before


@pytest.mark.real_time
def test_endpoint_that_nobody_serves_is_refused(capsys, files, unused_tcp_port):
    before = snapshot(files)
    url = f"http://127.0.0.1:{unused_tcp_port}/v1"

    code = main(["run", "engine=openai", f"engine.base_url={url}", "environment=scripted"])

    error = capsys.readouterr().err
    assert code == 2
    assert error.startswith(f"error: engine.base_url: {url}/models: Cannot connect to host")
    assert error.count("\n") == 1
    assert snapshot(files) == before


def test_log_probs_that_cannot_be_had_are_refused(capsys):
    engine = ("engine=openai", "engine.base_url=http://x/v1", "engine.needs_logprobs=true")

    code = main(["run", *engine, "environment=scripted"])

    assert code == 2
    assert capsys.readouterr().err == (
        "error: engine.needs_logprobs: messages bring no log-probs, got true: "
        "set renderer.tokenizer\n"
    )
