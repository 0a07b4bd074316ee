"""Whatever a user gets wrong: one line on stderr, exit code 2, and nothing is written."""

import gzip
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


GOOD = '{"trace_id": "a", "turns": [{"prompt_tokens_new": 9, "output_tokens": 5}]}\n'


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "trace: not set: give it a value"),
        (["trace=none.gz"], "cannot read none.gz: No such file or directory"),
        (["trace=model.gguf"], "model.gguf line 1: no trace: "),
        (["trace=version.gz"], "version.gz has schema version 99, this rolloutkit reads up to 1"),
        (["trace=missing.jsonl"], "missing.jsonl line 2: Object missing required field `trace_id`"),
        (["trace=chat.jsonl"], "chat.jsonl line 1: holds messages, no durations: rolloutkit trace"),
        (["trace=good.jsonl", "actions.step.slots=0"], "actions.step.slots: expected `int` >= 1"),
        (["trace=good.jsonl", "batch.group_size=0"], "batch.group_size: expected `int` >= 1"),
        (["trace=good.jsonl", "batch.icc=2"], "batch.icc: expected `float` <= 1.0, got 2"),
        (["trace=good.jsonl", "batch.environment=x"], "batch.environment: good.jsonl knows ''"),
        (["trace=good.jsonl", "batch.num_group=2"], "unknown key: did you mean 'num_groups'?"),
        (["trace=good.jsonl", "engine=recorded"], "does not know how long the calls of a#0 took"),
        (["trace=good.jsonl", "engine=simulated"], "engine.kind: a replay needs one of recorded,"),
        (["trace=good.jsonl", "engine.mean_tokens=5"], "engine.mean_tokens: lengths are those of"),
        (
            ["trace=good.jsonl", "history.path=other.json"],
            "other.json is of workload 'swe', this run is 'program'",
        ),
        (
            ["trace=good.jsonl", "--compare", "actions.order=fifo,caas", "--seeds", "2"],
            "--seeds: a batch as recorded is the same for all of 2 seeds",
        ),
        (["trace=good.jsonl", "--seeds", "0"], "argument --seeds: expected a number of at least 1"),
    ],
)
def test_replay_that_cannot_be_is_refused_in_one_line(capsys, files, arguments, message):
    (files / "good.jsonl").write_text(GOOD)
    (files / "missing.jsonl").write_text(GOOD + '{"turns": []}\n')
    (files / "chat.jsonl").write_text('{"messages": []}\n')
    header = b'{"event": "run_started", "t": 0, "schema_version": 99}\n'
    (files / "version.gz").write_bytes(gzip.compress(header))
    before = snapshot(files)

    code = main(["replay", *arguments])

    captured = capsys.readouterr()
    assert code == 2
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert snapshot(files) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["info"], "the following arguments are required: PATH"),
        (["info", "a", "b"], "trace info: expected FILE, got a b"),
        (["info", "none.gz"], "cannot read none.gz: No such file"),
        (["scrub", "none.gz", "out.gz"], "cannot read none.gz: No such file"),
        (
            ["import", "good.jsonl", "out.gz"],
            "trace import: not set: --from, one of shared, openai",
        ),
        (
            ["import", "--from", "openai", "chat.jsonl", "out.gz"],
            "chat.jsonl line 1: turns is empty: correct the line or leave it out",
        ),
        (
            ["import", "--from", "shared", "good.jsonl", "out.gz", "--fill-tokens", "many"],
            "--fill-tokens: expected a number, got 'many'",
        ),
        (["import", "--from", "shared", "good.jsonl", "good.jsonl"], "good.jsonl exists already"),
    ],
)
def test_trace_that_cannot_be_read_or_written_is_one_line(capsys, files, arguments, message):
    (files / "good.jsonl").write_text(GOOD)
    (files / "chat.jsonl").write_text('{"messages": []}\n')
    before = snapshot(files)

    code = main(["trace", *arguments])

    captured = capsys.readouterr()
    assert code == 2
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert snapshot(files) == before
