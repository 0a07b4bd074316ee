"""What a recording says of a workload: sizes of turns and the pauses between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec

from rolloutkit.errors import ConfigError
from rolloutkit.record.chains import RecordedChain
from rolloutkit.record.imports import Format, ImportOptions, read_foreign
from rolloutkit.record.lives import Call, Life, read_lives
from rolloutkit.record.numeric import first_line, read_numeric
from rolloutkit.resources.workload import TurnSizes, Workload, WorkloadMeter


def read_workload(
    path: Path,
    options: ImportOptions,
    *,
    group_size: float | None = None,
    shared_prefix: float = 0.0,
) -> Workload:
    """The workload of a trace of ours, a file of numbers, or a log of OpenAI-style messages.

    Without `group_size` it is the mean number of samples of a task. Blocks. Raises ConfigError with
    the line at fault, or for what the file does not count.
    """
    try:
        first = msgspec.json.decode(first_line(path), type=_FirstLine)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path} line 1: no trace: {error}: give a trace file") from None
    if first.turns is not None:
        chains = read_numeric(path, options.rule, options.fills)
        samples, size = [_turns_of_chain(chain) for chain in chains], 1.0
    elif first.messages is not None:
        imported = read_foreign(path, Format.OPENAI, _with_seconds(options))
        samples = [_turns_of_chain(one.chain) for one in imported]
        size = len(imported) / len({one.task_id for one in imported})
    else:
        tokens = options.fills.tokens
        lives = read_lives(path, fill_tokens=tokens, fill_option="fill_tokens").lives
        samples = [turns for life in lives if (turns := _turns_of_life(life))]
        size = len(lives) / len(Counter(life.sample_id.task_id for life in lives))
    _check_counts(path, samples)
    meter = WorkloadMeter()
    for turns in samples:
        meter.add(turns)
    return meter.workload(
        group_size=size if group_size is None else group_size, shared_prefix=shared_prefix
    )


class _FirstLine(msgspec.Struct):
    turns: object = None
    messages: object = None


def _with_seconds(options: ImportOptions) -> ImportOptions:
    """Logs of messages tell no times; refuse them only where nobody said what to assume."""
    if options.fills.seconds is not None:
        return options
    raise ConfigError(
        "workload: a log of messages tells no act times: give fill_seconds=S to assume S of each"
    )


def _turns_of_chain(chain: RecordedChain) -> list[TurnSizes]:
    return [TurnSizes(*turn) for turn in chain.turns]


def _turns_of_life(life: Life) -> list[TurnSizes]:
    """The turns of the last attempt; actions side by side take as long as the longest."""
    turns: list[TurnSizes] = []
    for step in life.attempts[-1].steps:
        if isinstance(step, Call):
            if step.error is None:
                turns.append(TurnSizes(step.context, step.new, step.output, 0.0))
        elif turns:
            seconds = max(act.seconds for act in step)
            turns[-1] = turns[-1]._replace(act_seconds=turns[-1].act_seconds + seconds)
    return turns


def _check_counts(path: Path, samples: Iterable[list[TurnSizes]]) -> None:
    """Refuse a recording whose engine counted no tokens: contexts of one token plan nothing."""
    longest = max((turn.context for turns in samples for turn in turns), default=0)
    if longest <= 1:
        raise ConfigError(
            f"workload: {path} holds no token counts: record with an engine that reports usage, or "
            "declare numbers (turns=..., new_tokens=..., output_tokens=...)"
        )
