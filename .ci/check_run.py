"""Checks what `make run` left behind: a real model ran real tasks to their end, in tokens."""

import json
import math
import sys
from pathlib import Path


def main() -> None:
    directory = max(Path("runs").glob("quickstart-*"))  # the newest: names end in the time
    summary = json.loads((directory / "summary.json").read_text())
    rows = [json.loads(line) for line in (directory / "trajectories.jsonl").open()]
    good = [row for row in rows if row["status"] == "completed"]
    assert len(rows) == summary["num_samples"] == 16, len(rows)
    assert len({row["sample_id"] for row in rows}) == 16
    assert len(good) == summary["num_completed"] >= 12, len(good)
    for row in good:
        (chain,) = row["chains"]
        sampled = [
            logprob
            for logprob, is_sampled in zip(chain["logprobs"], chain["sampled_mask"], strict=True)
            if is_sampled
        ]
        assert row["token_exact"], row["sample_id"]
        assert row["num_turns"] >= 2, row["sample_id"]
        assert row["score_details"]["calls"] >= 1, row["sample_id"]
        assert len(sampled) == row["output_tokens"] > 0
        assert all(math.isfinite(logprob) and logprob <= 0 for logprob in sampled)
    assert summary["lower_bound_seconds"] <= summary["makespan_seconds"]
    assert summary["trace_complete"]
    assert len(summary["tail"]) == 5
    print(f"{len(good)} of 16 completed in {summary['makespan_seconds']:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
