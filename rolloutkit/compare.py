"""Paired replays: the same batches under several settings, and what each setting is worth.

Variants are the grid of the values of some keys; every variant runs every seed's batch. Figures are
means over seeds with 90 % intervals by Student's t; a change is paired, seed by seed, with the
first variant, so that what makes a batch long or short drops out.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

import msgspec

from rolloutkit.config.replay import ReplayConfig, load_replay
from rolloutkit.errors import ConfigError, RunFailed
from rolloutkit.record.lives import Recording
from rolloutkit.replay import (
    Replay,
    bound_seconds,
    load_recording,
    make_replay,
    summarize_replay,
)

CONFIDENCE = 0.9
# 95 % quantiles of Student's t by degrees of freedom, the two-sided bounds of 90 %; those between
# two rows take the row above, so that an interval is never too narrow.
_QUANTILES = {
    1: 6.314, 2: 2.920, 3: 2.353, 4: 2.132, 5: 2.015, 6: 1.943, 7: 1.895, 8: 1.860, 9: 1.833,
    10: 1.812, 11: 1.796, 12: 1.782, 13: 1.771, 14: 1.761, 15: 1.753, 16: 1.746, 17: 1.740,
    18: 1.734, 19: 1.729, 20: 1.725, 21: 1.721, 22: 1.717, 23: 1.714, 24: 1.711, 25: 1.708,
    26: 1.706, 27: 1.703, 28: 1.701, 29: 1.699, 30: 1.697, 40: 1.684, 60: 1.671, 120: 1.658,
}  # fmt: skip


class Estimate(msgspec.Struct, frozen=True):
    """A mean over seeds; `plus_minus` is half its 90 % interval, None for a single seed."""

    mean: float
    plus_minus: float | None


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """What one choice of settings came to."""

    settings: dict[str, str]
    makespans: tuple[float, ...]  # seconds, by seed
    makespan_seconds: Estimate
    gap: Estimate | None  # makespan / lower bound
    change_percent: Estimate | None  # against the first variant, paired; None for itself
    num_failed: int  # samples, over all seeds

    @property
    def name(self) -> str:
        """Its settings in words."""
        return " ".join(f"{key}={value}" for key, value in self.settings.items())


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome: `compare.json`."""

    trace: str
    seeds: tuple[int, ...]
    confidence: float
    variants: tuple[Variant, ...]


class Outcome(NamedTuple):
    """One replay, as far as a comparison cares."""

    makespan_seconds: float
    gap: float | None
    num_failed: int


def parse_grid(axes: Sequence[str]) -> list[dict[str, str]]:
    """Every combination of `key=value,value,...`; the first value of each key comes first."""
    values: dict[str, list[str]] = {}
    for axis in axes:
        key, is_assignment, listed = axis.partition("=")
        choices = [choice.strip() for choice in listed.split(",")]
        if not key or not is_assignment or not all(choices):
            raise ConfigError(f"--compare: expected key=value,value,..., got {axis!r}")
        if key in values or len(set(choices)) < len(choices):
            raise ConfigError(f"--compare: {axis!r} repeats a key or a value: name each once")
        if key in ("trace", "batch.seed", "output.dir"):
            raise ConfigError(f"--compare: {key} is the same for all variants: compare another key")
        values[key] = choices
    return [
        dict(zip(values, combination, strict=True))
        for combination in itertools.product(*values.values())
    ]


def compare(
    name: str,
    overrides: Sequence[str],
    grid: Sequence[Mapping[str, str]],
    *,
    num_seeds: int,
    num_workers: int,
    config_dir: Path | None = None,
) -> Comparison:
    """Run every variant on every seed's batch, in processes of their own. Blocks.

    Raises ConfigError before anything runs, RunFailed for a replay that ended early.
    """
    configs = [
        load_replay(
            name, [*overrides, *(f"{key}={value}" for key, value in one.items())], config_dir
        )
        for one in grid
    ]
    first = configs[0]
    if num_seeds > 1 and first.batch.num_groups is None:
        raise ConfigError(
            f"--seeds: a batch as recorded is the same for all of {num_seeds} seeds: set "
            "batch.num_groups, or --seeds 1"
        )
    seeds = range(first.batch.seed, first.batch.seed + num_seeds)
    replays = _replays(configs, seeds)
    outcomes = _run(replays, num_workers)
    by_variant = [
        outcomes[start : start + num_seeds] for start in range(0, len(outcomes), num_seeds)
    ]
    makespans = [[one.makespan_seconds for one in row] for row in by_variant]
    variants = [
        Variant(
            settings=dict(settings),
            makespans=tuple(mine),
            makespan_seconds=estimate(mine),
            gap=_gap(row),
            change_percent=None if index == 0 else paired_change(mine, makespans[0]),
            num_failed=sum(one.num_failed for one in row),
        )
        for index, (settings, mine, row) in enumerate(zip(grid, makespans, by_variant, strict=True))
    ]
    return Comparison(
        trace=first.trace, seeds=tuple(seeds), confidence=CONFIDENCE, variants=tuple(variants)
    )


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and half the 90 % interval."""
    if len(values) < 2:
        return Estimate(fmean(values), None)
    half = student_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Estimate(fmean(values), half)


def paired_change(values: Sequence[float], reference: Sequence[float]) -> Estimate:
    """Change in percent, of each value against the reference of the same seed."""
    return estimate(
        [100.0 * (mine / other - 1.0) for mine, other in zip(values, reference, strict=True)]
    )


def student_quantile(num_degrees: int) -> float:
    """The 95 % quantile of Student's t, never too small."""
    return _QUANTILES[max(row for row in _QUANTILES if row <= num_degrees)]


def _replays(configs: Sequence[ReplayConfig], seeds: Sequence[int]) -> list[Replay]:
    """All replays, variant by variant; a recording is read once for all that read it alike."""
    recordings: dict[tuple[object, ...], Recording] = {}
    replays: list[Replay] = []
    for config in configs:
        options = config.batch
        key = (config.trace, options.rule, options.fill_tokens, options.fill_seconds)
        if key not in recordings:
            recordings[key] = load_recording(Path(config.trace), options)
        for seed in seeds:
            batch = msgspec.structs.replace(options, seed=seed)
            seeded = msgspec.structs.replace(config, batch=batch)
            replays.append(make_replay(seeded, recordings[key]))
    return replays


def _run(replays: Sequence[Replay], num_workers: int) -> list[Outcome]:
    """The outcomes in the order of the replays."""
    if num_workers == 1:
        return [_outcome(replay) for replay in replays]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(num_workers, len(replays)), mp_context=spawn) as pool:
        return list(pool.map(_outcome, replays))


def _outcome(replay: Replay) -> Outcome:
    summary = summarize_replay(replay)
    if summary.ended_early is not None or summary.makespan_seconds is None:
        raise RunFailed(f"a replay ended early: {summary.ended_early}: run it alone to see why")
    makespan, bound = summary.makespan_seconds, bound_seconds(replay, summary)
    return Outcome(makespan, makespan / bound if bound else None, summary.num_failed)


def _gap(row: Sequence[Outcome]) -> Estimate | None:
    gaps = [one.gap for one in row if one.gap is not None]
    return estimate(gaps) if len(gaps) == len(row) else None
