"""What the tactics against the tail are worth: the tables of `docs/tail.md`, by `make bench-tail`.

Paired replays of recorded runs with faults by a seed; 16 batches, about 10 CPU minutes. Names of
experiments as arguments choose some of them.
"""

import logging
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import msgspec

from rolloutkit.compare import estimate, paired_change
from rolloutkit.config.replay import BatchOptions, load_replay
from rolloutkit.record.lives import Recording
from rolloutkit.replay import load_recording, make_replay, summarize_replay

NUM_SEEDS = 16
DATA = Path(__file__).parents[1] / "data"
WORKERS = 2

COMMON = (
    "batch.num_earlier=8",
    "engine.progress_seconds=5",
    "actions.order=fifo",
    "admission.order=dataset",
)
SCENARIOS = {  # half of S2 and a third of S4 of the policy study
    "mini-bal": (
        f"trace={DATA / 'miniswe_gemini3_verified.jsonl.gz'}",
        "batch.num_groups=8",
        "engine.model=qwen3-32b",
        "engine.num_workers=1",
        "actions.step.slots=8",
        "admission.max_samples=35",
    ),
    "weka-env": (
        f"trace={DATA / 'weka_claude_code.jsonl.gz'}",
        "batch.num_groups=8",
        "engine.model=ling-3.0-flash",
        "engine.num_workers=1",
        "actions.step.slots=6",
        "admission.max_samples=52",
    ),
}
HEDGE = "tail.hedge.model_calls=true"
TIGHT = ("tail.hedge.floor_seconds=10", "tail.hedge.factor=1.5")
ACTIONS = ("tail.hedge.actions=true", "tail.hedge.idempotent=[tool]")
STALLS = ("faults.call_stalls=0.0005",)
STALLS_OFTEN = ("faults.call_stalls=0.002",)
HANGS = ("faults.call_hangs=0.0005", "limits.model_progress=600", "limits.model_call=1800")
TOOL_STALLS = ("faults.action_stalls=0.0005",)
NO_FAULTS = ()
ADAPTIVE = "tail.output_cap.adaptive=true"

EXPERIMENTS = {  # faults, and settings by name; the first is what the others are compared with
    "stalled calls, 1 in 2,000": (
        STALLS,
        {"off": (), "hedge": (HEDGE,), "tight hedge": (HEDGE, *TIGHT)},
    ),
    "stalled calls, 1 in 500": (STALLS_OFTEN, {"off": (), "hedge": (HEDGE,)}),
    "hanging calls": (HANGS, {"off": (), "hedge": (HEDGE,)}),
    "stalled actions": (TOOL_STALLS, {"off": (), "hedge": ACTIONS}),
    "no faults": (
        NO_FAULTS,
        {
            "off": (),
            "hedge of calls": (HEDGE,),
            "tight hedge of calls": (HEDGE, *TIGHT),
            "hedge of actions": ACTIONS,
            "adaptive cap": (ADAPTIVE,),
            "adaptive cap, factor 1": (ADAPTIVE, "tail.output_cap.factor=1"),
            "n + 1 samples": ("tail.oversampling.extra=1",),
            "n + 2 samples": ("tail.oversampling.extra=2",),
        },
    ),
}


@cache
def recording(path: str, options: BatchOptions) -> Recording:
    return load_recording(Path(path), options)


class Outcome(NamedTuple):
    makespan_seconds: float
    num_failed: int
    num_hedges: int
    num_won: int
    num_capped: int
    turns_kept: float
    lost_tokens: int
    prompt_tokens: int


def play(overrides: tuple[str, ...], seed: int) -> Outcome:
    logging.disable(logging.WARNING)  # of the bias, which is what is measured
    config = load_replay("replay", [*overrides, f"batch.seed={seed}"])
    replay = make_replay(
        config, recording(config.trace, msgspec.structs.replace(config.batch, seed=0))
    )
    summary = summarize_replay(replay)
    spare, hedges = summary.oversampling, summary.hedges
    turns = summary.num_turns / summary.num_samples if spare is None else spare.mean_turns_kept
    return Outcome(
        summary.makespan_seconds,
        summary.num_failed,
        hedges.num_model_calls + hedges.num_actions,
        hedges.num_won,
        summary.num_capped_turns,
        turns,
        hedges.lost_tokens,
        hedges.prompt_tokens,
    )


def rows(pool: ProcessPoolExecutor, experiment: str, scenario: str) -> Iterator[str]:
    faults, settings = EXPERIMENTS[experiment]
    reference = None
    for name, overrides in settings.items():
        run = partial(play, (*COMMON, *SCENARIOS[scenario], *faults, *overrides))
        outcomes = list(pool.map(run, range(NUM_SEEDS)))
        makespans = [one.makespan_seconds for one in outcomes]
        reference = reference or makespans
        mean, change = estimate(makespans), paired_change(makespans, reference)
        told = "-" if reference is makespans else f"{change.mean:+.1f} ± {change.plus_minus:.1f} %"
        cells = (
            f"{scenario}, {name}",
            f"{mean.mean:.0f} ± {mean.plus_minus:.0f}",
            told,
            f"{sum(one.num_failed for one in outcomes)}",
            f"{fmean(one.num_hedges for one in outcomes):.1f}",
            f"{fmean(one.num_won for one in outcomes):.1f}",
            f"{fmean(one.lost_tokens for one in outcomes):.0f}",
            f"{fmean(one.num_capped for one in outcomes):.1f}",
            f"{fmean(one.turns_kept for one in outcomes):.1f}",
        )
        yield f"| {' | '.join(cells)} |"


def main(chosen: list[str]) -> None:
    began = time.monotonic()
    with ProcessPoolExecutor(WORKERS) as pool:
        for experiment in chosen or EXPERIMENTS:
            print(f"\n### {experiment}\n")
            print(
                "| | makespan, s | change | failed, all batches | hedges a batch | won | "
                "lost tokens | capped turns | mean turns kept |"
            )
            print("|---|---|---|---|---|---|---|---|---|", flush=True)
            for scenario in SCENARIOS:
                for row in rows(pool, experiment, scenario):
                    print(row, flush=True)
    print(f"\n{time.monotonic() - began:.0f} s, {NUM_SEEDS} seeds, {WORKERS} processes")


if __name__ == "__main__":
    main(sys.argv[1:])
