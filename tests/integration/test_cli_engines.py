"""The same small batch on the embedded engine and on a second real server, through the command."""

from pathlib import Path

import pytest

from rolloutkit.cli import main
from rolloutkit.sinks import read_trajectories
from rolloutkit.types import Status, Trajectory
from tests.contract.llama_server import llama_server

BATCH = (
    "environment.limit=1",
    "environment.num_samples=1",
    "limits.max_turns=2",
    "sampling.max_tokens=12",
    "sampling.temperature=0",
    "--quiet",
)

pytestmark = [pytest.mark.real_time, pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture(autouse=True)
def somewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def run_batch(folder: Path, *arguments: str) -> list[Trajectory]:
    assert main(["run", *BATCH, *arguments, f"output.dir={folder}"]) == 0
    return list(read_trajectories(folder / "trajectories.jsonl"))


def test_a_second_server_runs_the_batch_in_tokens_and_in_messages(tmp_path, capsys):
    (embedded,) = run_batch(tmp_path / "embedded")
    with llama_server() as url:
        server = ("engine=openai", f"engine.base_url={url}/v1")
        (exact,) = run_batch(tmp_path / "exact", *server, "renderer.tokenizer=bundled")
        (text,) = run_batch(tmp_path / "text", *server)

    assert embedded.status is exact.status is text.status is Status.COMPLETED
    assert embedded.num_turns == exact.num_turns == text.num_turns == 2
    assert embedded.chains[0].token_ids == exact.chains[0].token_ids
    assert any(embedded.chains[0].logprobs)
    assert any(exact.chains[0].logprobs)
    assert (exact.token_exact, text.token_exact) == (True, False)
