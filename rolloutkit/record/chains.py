"""Recorded chains: what a sample asked of engine and tools, turn by turn, in sizes and times.

Reads the trace files of `tests/data` (schema there). What a file does not hold is derived by the
rules of the policy study ("Acceptance scenarios"), one rule per family of files; nothing else is
filled in. Contexts are as recorded, so they need not grow by what was said: reasoning is dropped
and conversations are compacted.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from rolloutkit.errors import ConfigError

MAX_CONTEXT = 200_000  # tokens; longer chains are scaled down to it
_MAX_CLIENT_SECONDS = 120.0  # weka: a longer pause is a person away (tests/data/README.md)
_MINISWE_TOKENS_PER_SECOND = 60.0  # decode speed that is taken out of the recorded gaps
_MINISWE_MIN_SECONDS = 0.05
_BFCL_PROMPT_TOKENS = 3_000
_BFCL_TEMPLATE_TOKENS = 20
_BFCL_OUTPUT_TOKENS = 64
_CHARS_PER_TOKEN = 4


class RecordedTurn(NamedTuple):
    """One completion and the tool calls it led to; 0 seconds = none, which takes no slot."""

    context: int  # tokens of the whole prompt
    new: int  # of those, not shared with the call before
    output: int
    tool_seconds: float


class RecordedChain(NamedTuple):
    """One recorded sample."""

    trace_id: str
    turns: tuple[RecordedTurn, ...]


class TraceTurn(msgspec.Struct, frozen=True):
    """A turn as it lies in the file; None = not recorded."""

    prompt_tokens_new: int | None = None
    output_tokens: int | None = None
    tool: str | None = None
    tool_seconds: float | None = None
    context_tokens: int | None = None
    gap_seconds: float | None = None
    output_chars: int | None = None
    observation_chars: int | None = None


class Trace(msgspec.Struct, frozen=True):
    """A line of a trace file."""

    trace_id: str
    turns: tuple[TraceTurn, ...]


Rule = Callable[[Trace], RecordedChain]


def read_chains(path: Path, family: str) -> list[RecordedChain]:
    """The chains of a gzipped trace file, one a line. ConfigError names the line that is wrong."""
    rule = RULES[family]
    decoder = msgspec.json.Decoder(Trace)
    chains: list[RecordedChain] = []
    with gzip.open(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                chains.append(rule(decoder.decode(line)))
            except (msgspec.DecodeError, ValueError) as error:
                raise ConfigError(f"{path}, line {number}: {error}") from None
    return chains


def _weka(trace: Trace) -> RecordedChain:
    return _scaled(trace, lambda turn, _: min(_seconds(turn.tool_seconds), _MAX_CLIENT_SECONDS))


def _miniswe(trace: Trace) -> RecordedChain:
    return _scaled(trace, _miniswe_tool_seconds)


def _miniswe_tool_seconds(turn: TraceTurn, output: int) -> float:
    if turn.gap_seconds is None:  # the last turn
        return 0.0
    return max(_MINISWE_MIN_SECONDS, turn.gap_seconds - output / _MINISWE_TOKENS_PER_SECOND)


def _scaled(trace: Trace, tool_seconds: Callable[[TraceTurn, int], float]) -> RecordedChain:
    """The chain with its contexts scaled so that the longest one ends at MAX_CONTEXT at most."""
    outputs = [max(1, _known(turn.output_tokens, "output_tokens")) for turn in trace.turns]
    contexts = [_known(turn.context_tokens, "context_tokens") for turn in trace.turns]
    longest = max(context + output for context, output in zip(contexts, outputs, strict=True))
    scale = min(1.0, MAX_CONTEXT / longest)
    turns: list[RecordedTurn] = []
    for index, turn in enumerate(trace.turns):
        context = int(contexts[index] * scale)
        new = context
        if index:
            new = int(_known(turn.prompt_tokens_new, "prompt_tokens_new") * scale)
        output = min(outputs[index], MAX_CONTEXT - context) if scale < 1.0 else outputs[index]
        seconds = tool_seconds(turn, output)
        turns.append(RecordedTurn(context, max(1, min(new, context)), output, seconds))
    return RecordedChain(trace.trace_id, tuple(turns))


def _bfcl(trace: Trace) -> RecordedChain:
    """Tokens from the lengths of the texts: BFCL's ground truth has no model behind it."""
    turns: list[RecordedTurn] = []
    context, shown = 0, 0
    for index, turn in enumerate(trace.turns):
        new = _BFCL_TEMPLATE_TOKENS + shown // _CHARS_PER_TOKEN if index else _BFCL_PROMPT_TOKENS
        output = _BFCL_OUTPUT_TOKENS + (turn.output_chars or 0) // _CHARS_PER_TOKEN
        context += new
        turns.append(RecordedTurn(context, new, output, _seconds(turn.tool_seconds)))
        context += output
        shown = turn.observation_chars or 0
    return RecordedChain(trace.trace_id, tuple(turns))


def _seconds(value: float | None) -> float:
    """Seconds of a tool call; none was made where none are recorded."""
    if value is not None and value < 0:
        raise ValueError(f"tool_seconds is negative: {value}")
    return value or 0.0


def _known(value: int | None, name: str) -> int:
    if value is None:
        raise ValueError(f"{name} is missing and no rule derives it")
    return value


RULES: Mapping[str, Rule] = {"weka": _weka, "miniswe": _miniswe, "bfcl": _bfcl}
