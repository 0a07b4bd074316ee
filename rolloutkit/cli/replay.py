"""`rolloutkit replay`: a recording again, under other settings; `--compare` tries several."""

from __future__ import annotations

import argparse
import sys
from datetime import datetime
from pathlib import Path

from rolloutkit import clock
from rolloutkit.cli.comparison import (
    JSON_NAME,
    encode_comparison,
    print_comparison,
    write_comparison,
)
from rolloutkit.cli.exit_codes import ExitCode
from rolloutkit.cli.interrupts import Interrupts
from rolloutkit.cli.summary import print_json, print_text, require_success
from rolloutkit.compare import compare, parse_grid
from rolloutkit.config.replay import load_replay
from rolloutkit.errors import ConfigError
from rolloutkit.estimate import History
from rolloutkit.output import RunDirectory, refuse_used
from rolloutkit.replay import Replay, batch_of, load_recording, make_replay, opened_replay


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", default="replay", metavar="NAME", help="a shipped config, or a YAML file"
    )
    parser.add_argument(
        "--config-dir", type=Path, metavar="DIR", help="a directory of your own configs and groups"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the summary as JSON and nothing else"
    )
    parser.add_argument(
        "--compare",
        action="append",
        metavar="KEY=VALUE,VALUE",
        help="replay each value; several --compare make a grid",
    )
    parser.add_argument(
        "--seeds", type=_count, default=1, metavar="N", help="with --compare: batches to draw"
    )
    parser.add_argument(
        "--workers", type=_count, default=2, metavar="N", help="with --compare: processes"
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="settings; trace=FILE is needed (see configs/replay.yaml)",
    )


def main(arguments: argparse.Namespace) -> int:
    """Replay and report. Raises ConfigError before anything is written, RunFailed after."""
    if arguments.compare:
        return _compare(arguments)
    config = load_replay(arguments.config, arguments.overrides, arguments.config_dir)
    output_dir = Path(config.output.dir or f"runs/replay-{datetime.now():%Y%m%d-%H%M%S}")
    refuse_used(output_dir)
    replay = make_replay(config, load_recording(Path(config.trace), config.batch))
    if replay.num_left_out:
        _say(f"left out: {replay.num_left_out} samples that had not ended by themselves")
    return _replay(replay, output_dir, as_json=arguments.json)


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, got {text!r}")
    return int(text)


def _compare(arguments: argparse.Namespace) -> int:
    grid = parse_grid(arguments.compare)
    config = load_replay(arguments.config, arguments.overrides, arguments.config_dir)
    output_dir = Path(config.output.dir or f"runs/compare-{datetime.now():%Y%m%d-%H%M%S}")
    refuse_used(output_dir)
    if (output_dir / JSON_NAME).exists():
        raise ConfigError(f"output.dir: {output_dir} holds another comparison: choose a new one")
    comparison = compare(
        arguments.config,
        arguments.overrides,
        grid,
        num_seeds=arguments.seeds,
        num_workers=arguments.workers,
        config_dir=arguments.config_dir,
    )
    write_comparison(output_dir, comparison)
    if arguments.json:
        sys.stdout.write(encode_comparison(comparison).decode())
    else:
        print_comparison(comparison)
        sys.stdout.write(f"written to {output_dir}\n")
    return ExitCode.OK


def _replay(replay: Replay, output_dir: Path, *, as_json: bool) -> int:
    config = replay.config
    directory = RunDirectory(output_dir, config=config.text)
    batch = batch_of(replay)
    history: History | None = None
    is_interrupted = False

    async def run() -> None:
        nonlocal history, is_interrupted
        sink, recorder = directory.sink, directory.recorder
        async with opened_replay(replay, batch, sink, recorder) as orchestrator:
            interrupts = Interrupts(orchestrator, config.limits.interrupt_grace, _say)
            try:
                with interrupts:
                    await orchestrator.run(batch.tasks())
            finally:
                history = orchestrator.next_history()
                is_interrupted = interrupts.count > 0

    try:
        clock.run(run(), time=config.run.time)
    except KeyboardInterrupt:
        is_interrupted = True
    finally:
        directory.keep_history(history)
        summary = directory.finish()
    if as_json:
        print_json(summary)
    else:
        print_text(summary)
        sys.stdout.write(
            f"\nwritten to {output_dir}; show it again: rolloutkit report {output_dir}\n"
        )
    if is_interrupted:
        return ExitCode.INTERRUPTED
    require_success(summary, config.run.max_failed)
    return ExitCode.OK


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
